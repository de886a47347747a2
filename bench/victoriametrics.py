"""Compares VictoriaMetrics with Prometheus: `python bench/victoriametrics.py [--folder FOLDER]`.

All scripted days of triage are put into both. Then every rule of deploy/prometheus is asked at moments of
those days, the recording rules are replayed by vmalert, and `kvwatch triage` is asked about every day. It
prints what agrees and what does not, and never fails. Needs the Debian packages prometheus and
victoria-metrics, or the latter's programs in FOLDER.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

import figures  # noqa: E402

from tests.scenarios.days import DAYS  # noqa: E402
from tests.scenarios.prometheus_path import Backfill, exposition, serving  # noqa: E402
from tests.scenarios.rehearsal import by_prometheus, faults, rehearse  # noqa: E402
from tests.scenarios.world import MINUTE, NOW  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOMENTS = tuple(NOW - MINUTE * minutes for minutes in (0, 3, 10, 25, 55))
_PROGRAMS = ("victoria-metrics", "vmalert")
_IMPORT_LINES = 20_000
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Vector = dict[str, float]


def main() -> None:
    """Fill both, ask both, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where victoria-metrics and vmalert lie")
    options = parser.parse_args()
    programs = {
        name: str(options.folder / name) if options.folder else shutil.which(name) or name
        for name in _PROGRAMS
    }
    logging.disable(logging.WARNING)
    rehearsals = [rehearse(day, 0) for day in DAYS]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        backfill = Backfill()
        lines: list[str] = []
        for rehearsal in rehearsals:
            for poll in rehearsal.published:
                scrape = list(exposition(poll.snapshot, poll.at, rehearsal.day.name))
                lines += scrape
                backfill.add(scrape, poll.at)
        backfill.write(Path(folder))
        prometheus = stack.enter_context(serving(Path(folder)))
        victoria = stack.enter_context(_victoria(programs["victoria-metrics"], Path(folder)))
        _fill(victoria, lines)
        print(f"{figures.machine()}\n")
        print(f"{len(DAYS)} days, {len(lines):,} samples; {_version(programs['victoria-metrics'])}\n")
        _compare_rules(prometheus, victoria)
        _replay(programs["vmalert"], victoria)
        _compare_triage(prometheus, victoria)


@contextlib.contextmanager
def _victoria(program: str, folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        program,
        f"-storageDataPath={folder / 'victoria'}",
        f"-httpListenAddr={address}",
        "-retentionPeriod=100y",
        "-search.latencyOffset=0s",
        "-loggerLevel=ERROR",
    ]
    process = subprocess.Popen(command)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), _OPENER.open(f"http://{address}/health", timeout=1):
                break
            time.sleep(0.05)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def _version(program: str) -> str:
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


def _fill(url: str, lines: list[str]) -> None:
    """Import scrapes; timestamps are milliseconds there."""
    for first in range(0, len(lines), _IMPORT_LINES):
        part = "\n".join(
            re.sub(r" (\S+)$", lambda m: f" {round(float(m[1]) * 1000)}", line)
            for line in lines[first : first + _IMPORT_LINES]
        )
        _OPENER.open(f"{url}/api/v1/import/prometheus", data=part.encode(), timeout=60).close()
    _OPENER.open(f"{url}/internal/force_flush", timeout=60).close()


def _ask(url: str, query: str, at: float) -> Vector | str:
    """Return what an instant query gives, or the error."""
    fields = urllib.parse.urlencode({"query": query, "time": at})
    try:
        with _OPENER.open(f"{url}/api/v1/query?{fields}", timeout=60) as answer:
            document: Any = json.load(answer)
    except urllib.error.HTTPError as error:
        return error.read().decode()[:200]
    found = {}
    for item in document["data"]["result"]:
        labels = {name: text for name, text in item["metric"].items() if name != "__name__"}
        found[json.dumps(labels, sort_keys=True)] = float(item["value"][1])
    return found


def _rules() -> dict[str, str]:
    """Return every rule's expression; a recorded series in it stands as its own expression."""
    recorded: dict[str, str] = {}
    found: dict[str, str] = {}
    for file in sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml")):
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                expression = rule["expr"]
                for name, meaning in recorded.items():
                    expression = expression.replace(name, f"({meaning})")
                found[rule.get("alert") or rule["record"]] = expression
                if "record" in rule:
                    recorded[rule["record"]] = expression
    return found


def _compare_rules(prometheus: str, victoria: str) -> None:
    print(
        "| rule | answers in Prometheus | the same | only there | only in VictoriaMetrics "
        "| another value | by at most |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, expression in _rules().items():
        total = same = lost = new = other = 0
        apart = 0.0
        for at in _MOMENTS:
            ours, theirs = (_ask(url, expression, at) for url in (prometheus, victoria))
            if isinstance(ours, str) or isinstance(theirs, str):
                print(f"| {name} | error: {ours if isinstance(ours, str) else theirs} |")
                break
            total += len(ours)
            agreeing = [
                key
                for key, value in ours.items()
                if key in theirs and math.isclose(value, theirs[key], rel_tol=1e-9)
            ]
            same += len(agreeing)
            lost += len(ours.keys() - theirs.keys())
            new += len(theirs.keys() - ours.keys())
            other += len(ours.keys() & theirs.keys()) - len(agreeing)
            apart = max(
                [
                    apart,
                    *(abs(theirs[key] / ours[key] - 1) for key in ours.keys() & theirs.keys() if ours[key]),
                ]
            )
        else:
            print(f"| {name} | {total} | {same} | {lost} | {new} | {other} | {apart:.1%} |")
    print()


def _replay(program: str, victoria: str) -> None:
    """Let vmalert evaluate the recording rules over the last hour of the days, and count what it recorded."""
    start, end = (datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for at in (NOW - 3600, NOW))
    command = [
        program,
        f"-rule={ROOT / 'deploy' / 'prometheus' / 'kvwatch.recording.rules.yml'}",
        f"-datasource.url={victoria}",
        f"-remoteWrite.url={victoria}",
        f"-replay.timeFrom={start}",
        f"-replay.timeTo={end}",
        # A rule that reads what the one before it recorded must find it: vmalert records in batches.
        "-remoteWrite.flushInterval=500ms",
        "-replay.rulesDelay=4s",
        "-loggerLevel=ERROR",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    _OPENER.open(f"{victoria}/internal/force_flush", timeout=60).close()
    counted = _ask(
        victoria,
        'count by (kind) (label_replace({__name__=~".+:kvwatch_.+"}, "kind", "$1", "__name__", "(.+)"))',
        NOW,
    )
    print(f"vmalert replay: exit status {done.returncode}; series that it recorded: {counted}\n")


def _compare_triage(prometheus: str, victoria: str) -> None:
    told: list[str] = []
    for day in DAYS:
        ours, theirs = by_prometheus(day, prometheus), by_prometheus(day, victoria)
        wrong = faults(day, theirs)
        if ours.cause != theirs.cause or ours.confidence != theirs.confidence or wrong:
            told.append(
                f"{day.name}: {ours.cause}, {ours.confidence} / {theirs.cause}, {theirs.confidence}; {wrong}"
            )
    print(f"triage: {len(DAYS) - len(told)} of {len(DAYS)} days have the same right verdict")
    for line in told:
        print(f"  {line}")


if __name__ == "__main__":
    main()
