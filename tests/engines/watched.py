"""The real daemon as a process of its own beside one engine, and what it says from poll to poll."""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

INTERVAL_SECONDS = 0.4  # data is withdrawn after three: shorter ones go blind on a busy machine
READ_SECONDS = 0.1  # twice a poll, so that none is missed
COLUMNS = {
    "run": "kvwatch_requests_running",
    "wait": "kvwatch_requests_waiting",
    "usage": "kvwatch_kv_usage_ratio",
    "now": "kvwatch_full_length_requests_fit_now",
    "sure": "kvwatch_full_length_requests_fit_guaranteed",
    "empty": "kvwatch_full_length_requests_fit_empty",
    "held": "kvwatch_full_length_requests_resident_limit",
    "headroom": "kvwatch_full_length_requests_headroom",
    "suspect": "kvwatch_recompute_suspected_total",
    "preempt": "kvwatch_preemptions_total",
}
_UNCOUNTED = ("usage",)  # changes with every token: no line of its own
_MOST_LINES = 14


@dataclass(frozen=True, slots=True)
class Sample:
    """The columns at one moment; a series that is absent is None."""

    second: float
    values: Mapping[str, float | None]

    def __getitem__(self, column: str) -> float:
        """Return a column's value; an absent one ends the proof."""
        value = self.values[column]
        if value is None:
            raise LookupError(f"{COLUMNS[column]} is absent {self.second:.1f} s after the start")
        return value

    @property
    def blind(self) -> bool:
        """Tell whether the daemon had no current data: a slow poll may outlast three intervals."""
        return self.values["run"] is None

    def __str__(self) -> str:
        cells = [f"{'?' if value is None else format(value, '.4g'):>8}" for value in self.values.values()]
        return f"{self.second:6.1f}  {'  '.join(cells)}"


class Watched:
    """A running daemon that watches one server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.started = time.monotonic()

    def text(self) -> str:
        """Return the exposition, empty while there is none: on a stalled machine nobody answers in time."""
        try:
            with urllib.request.urlopen(self.url + "/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except (OSError, http.client.HTTPException):
            return ""

    def value(self, family: str) -> float | None:
        """Return the sum of a family's samples, None when it has none."""
        return value_of(self.text(), family)

    def sample(self) -> Sample:
        """Return the columns now."""
        text = self.text()
        return Sample(
            time.monotonic() - self.started,
            {column: value_of(text, family) for column, family in COLUMNS.items()},
        )

    def until(self, condition: Callable[[Sample], bool], *, seconds: float = 60.0) -> Sample:
        """Read until a condition holds."""
        deadline = time.monotonic() + seconds
        while True:
            sample = self.sample()
            with contextlib.suppress(LookupError):
                if condition(sample):
                    return sample
            if time.monotonic() > deadline:
                reasons = re.findall(r"^kvwatch_source_reason.*", self.text(), re.MULTILINE)
                raise TimeoutError(
                    f"did not come true in {seconds:.0f} s, the last was\n{sample}\n" + "\n".join(reasons)
                )
            time.sleep(READ_SECONDS)

    def idle(self) -> Sample:
        """Wait until nothing runs or waits and the pool is empty, for two polls."""
        self.until(lambda sample: sample["run"] == sample["wait"] == sample["usage"] == 0)
        time.sleep(2 * INTERVAL_SECONDS)
        return self.until(lambda sample: sample["run"] == sample["wait"] == sample["usage"] == 0)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Sample]]:
        """Collect samples until the block ends, then print the ones that differ in more than the usage."""
        samples: list[Sample] = []
        over = threading.Event()

        def record() -> None:
            while not over.wait(READ_SECONDS):
                samples.append(self.sample())

        thread = threading.Thread(target=record, daemon=True)
        thread.start()
        try:
            yield samples
        finally:
            time.sleep(2 * INTERVAL_SECONDS)  # the last state must have been polled
            over.set()
            thread.join()
            print(table(samples), flush=True)


def value_of(text: str, family: str) -> float | None:
    """Return the sum of a family's samples in an exposition, None when it has none."""
    values = re.findall(rf"^{family}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, values)) if values else None


def table(samples: list[Sample]) -> str:
    """Return a small series: the samples at which something but the usage changed, thinned in the middle."""
    lines: list[str] = []
    last: dict[str, float | None] = {}
    for sample in samples:
        counted = {key: value for key, value in sample.values.items() if key not in _UNCOUNTED}
        if counted != last:
            lines.append(str(sample))
            last = counted
    if len(lines) > _MOST_LINES:
        step = -(-len(lines) // (_MOST_LINES - 1))
        lines = [*lines[:-1:step], lines[-1]]
    return "\n".join(["second  " + "  ".join(f"{name:>8}" for name in COLUMNS), *lines])


@contextlib.contextmanager
def watching(port: int, options: str) -> Iterator[Watched]:
    """Run `python -m kvwatch run` on the server at a port until the block ends; `options`: its YAML."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "kvwatch.yaml", Path(folder) / "log"
        file.write_text(
            f"listen: 127.0.0.1:0\ninterval: {INTERVAL_SECONDS * 1000:.0f}ms\nnvml: {{enabled: false}}\n"
            "discovery: false\nhistory: off\n"
            f"servers: [{{name: s, url: 'http://127.0.0.1:{port}', {options}}}]\n"
        )
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "kvwatch", "run", "--config", str(file)], stderr=output
            )
        try:
            yield Watched(_address(log, process))
        finally:
            process.terminate()
            process.wait()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    while process.poll() is None:
        found = re.search(r"listens on (\S+)/", log.read_text())
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise SystemExit(log.read_text())
