"""Measures one triage: `python bench/triage.py [--quick]`.

The seeded incident: thirty users were comfortable a month ago and queue at fifteen now, with no deploy in
between. Its month is polled every five minutes, the two hours that are compared every minute; then the
command is run as somebody on call runs it, start of Python and all, from the history file and from a real
Prometheus (Debian package prometheus). Wall time, median of ten runs.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

import figures  # noqa: E402

from tests.scenarios.days import DAYS  # noqa: E402
from tests.scenarios.history_path import write_history  # noqa: E402
from tests.scenarios.pipeline import moments, play  # noqa: E402
from tests.scenarios.prometheus_path import Backfill, exposition, serving  # noqa: E402
from tests.scenarios.world import DAY, HOUR  # noqa: E402

_RUNS = 10
_BUDGET_SECONDS = 2.0


def main() -> None:
    """Make the month, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="poll every hour in place of every five minutes")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    (day,) = [day for day in DAYS if day.name == "the-incident"]
    every = HOUR if options.quick else 300.0
    when = dict.fromkeys(
        (-30 * DAY - 3 * HOUR + every * step for step in range(int((30 * DAY + 3 * HOUR) / every))), False
    )
    when |= {moment: True for moment, closely in moments(day) if closely}
    published = play(day, 0, sorted(when.items()))
    print(f"{figures.machine()}\n")
    print("| kvwatch triage --server chat --baseline 30d | median | slowest |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        write_history(path, published)
        _measure(f"history, {len(published)} polls", "--history", str(path))
        backfill = Backfill()
        for poll in published:
            backfill.add(exposition(poll.snapshot, poll.at, "node-a:9836"), poll.at)
        backfill.write(Path(folder))
        with serving(Path(folder)) as url:
            _measure(f"Prometheus, {len(published)} scrapes", "--prometheus", url)


def _measure(name: str, *source: str) -> None:
    spent = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-m", "kvwatch", "triage", "--server", "chat", "--baseline", "30d", *source],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        spent.append(time.perf_counter() - began)
        if result.returncode != 1 or "prompts_longer" not in result.stdout:
            sys.exit(f"the incident is not explained:\n{result.stdout}{result.stderr}")
    print(f"| {name} | {figures.median(spent):.2f} s | {max(spent):.2f} s |", flush=True)
    if max(spent) > _BUDGET_SECONDS:
        sys.exit(f"longer than {_BUDGET_SECONDS:g} s")


if __name__ == "__main__":
    main()
