"""Scripted days in a real Prometheus: expositions with timestamps, back-filled by promtool, served.

All days share one database; each has an instance of its own, as if its daemon ran on another machine.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kvwatch.families import Families, add_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kvwatch.snapshot import Snapshot

_BLOCK_SECONDS = 7200
_START_SECONDS = 30.0


def selector(name: str) -> str:
    """Return what selects a day's series."""
    return f'instance="{name}"'


def exposition(snapshot: Snapshot, at: float, instance: str) -> Iterator[str]:
    """Yield a snapshot's lines as scraped at a moment: with the labels of the scrape and a timestamp."""
    families = Families("15 min")
    add_data(families, snapshot)
    yield from scraped(families, at, instance)


def scraped(families: Families, at: float, instance: str) -> Iterator[str]:
    """Yield the lines of families."""
    own = f'job="kvwatch",instance="{instance}"'
    for family in families.used():
        for sample in family.samples:
            labels = "".join(f',{name}="{_escaped(value)}"' for name, value in sample.labels.items())
            yield f"{sample.name}{{{own}{labels}}} {sample.value} {at}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Backfill:
    """Lines by block of the database: promtool reads a whole file once for each block that it makes."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[str]] = defaultdict(list)

    def add(self, lines: Iterable[str], at: float) -> None:
        """Add a scrape's lines."""
        self._blocks[int(at // _BLOCK_SECONDS)].extend(lines)

    def write(self, folder: Path) -> None:
        """Make the database."""
        data = folder / "data"
        data.mkdir()

        def make(block: int) -> None:
            file = folder / f"{block}.om"
            file.write_text("\n".join([*self._blocks[block], "# EOF", ""]))
            command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "-q", str(file), str(data)]
            subprocess.run(command, check=True, capture_output=True)
            file.unlink()

        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(make, sorted(self._blocks)))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run a Prometheus over the database; yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "prometheus.yml").write_text("{}\n")
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={address}",
            "--log.level=error",
        ]
    )
    try:
        _wait_until_ready(f"http://{address}/-/ready")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    ends_at = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError), opener.open(url, timeout=1):
            return
        if time.monotonic() > ends_at:
            raise TimeoutError(url)
        time.sleep(0.05)
