"""Measures the history file: `python bench/history.py [--quick] [--folder DIR]`.

Thirty days of eight servers, a row a minute each: what writing one minute costs, how large the file
becomes, how long a triage takes to load it, how long the check at a start takes. Times are wall time on
this disk: compare ratios of one run, not milliseconds of two.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parent.parent))

import figures

from kvwatch.history.minute import Minute
from kvwatch.history.reader import HistoryReader
from kvwatch.history.store import Store
from kvwatch.observation import Observation, Setup
from kvwatch.readings import SumCount
from kvwatch.snapshot import KvGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MINUTE, HOUR, DAY = 60, 3600, 86400
BEGIN = 1_780_000_000 // DAY * DAY
SETUP = Setup(
    engine="vllm",
    model="meta-llama/Llama-3.1-8B-Instruct",
    version="0.32.0",
    model_hash="0123456789abcdef",
    fingerprint="0123456789ab",
    settings=tuple((f"setting_{number}", "a value of usual length") for number in range(30)),
    cache_dtype="bfloat16",
    tensor_parallel=1,
    block_size=16,
    share_ratio=0.9,
    full_length_tokens=32768,
    request_limit=256,
    bytes_per_block=2 << 20,
    resident_blocks=2048,
    groups=(KvGroup(kind="full", layers=32, block_size=16, page_bytes=65536, window=None),),
    devices=("GPU-01234567-89ab-cdef-0123-456789abcdef",),
    driver="580.95.05",
)


def minute(server: int, at: int, random_: random.Random) -> Minute:
    """Return a busy minute in which everything is known; every third day the server got other flags."""
    finished = random_.randrange(20, 200)
    observation = Observation(
        server=f"server-{server}",
        rank="0",
        at=float(at),
        seconds=60.0,
        setup=replace(SETUP, fingerprint=f"{server:06x}{(at - BEGIN) // (3 * DAY):06x}"),
        started_at=BEGIN + (at - BEGIN) // (3 * DAY) * 3 * DAY + 12.25,
        sleeping=False,
        usable_blocks=8191,
        usable_bytes=8191 * (2 << 20),
        typical_prompt_tokens=random_.gauss(1800, 100),
        typical_generation_tokens=random_.gauss(350, 20),
        typical_capacity=random_.gauss(60, 3),
        finished=float(finished),
        finished_prompt_tokens=float(finished * 1800),
        finished_generation_tokens=float(finished * 350),
        usage_mean=random_.random(),
        usage_max=random_.random(),
        running_mean=random_.uniform(5, 40),
        running_max=float(random_.randrange(20, 60)),
        waiting_mean={"capacity": random_.random(), "deferred": 0.0},
        waiting_max=float(random_.randrange(5)),
        preemptions=float(random_.randrange(2)),
        suspected=0.0,
        queue_seconds=SumCount(sum=random_.uniform(0, 30), count=float(finished)),
        prefix_queries=float(finished * 1800),
        prefix_hits=float(finished * 600),
        generation_tokens=float(finished * 350),
        device_bytes={SETUP.devices[0]: 70 << 30},
    )
    return Minute(observation=observation, polls=12, first_at=at + 2.5, last_at=at + 57.5)


def batches(servers: int, days: int) -> Iterator[list[Minute]]:
    """Yield an hour of all servers at a time."""
    random_ = random.Random(1)  # noqa: S311 - made-up traffic
    for start in range(BEGIN, BEGIN + days * DAY, HOUR):
        yield [
            minute(server, at, random_)
            for at in range(start, start + HOUR, MINUTE)
            for server in range(servers)
        ]


def seconds_of(call: Callable[[], object], times: int) -> float:
    """Return the median wall time."""
    spent = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        spent.append(time.perf_counter() - started)
    return figures.median(spent)


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three days in place of thirty")
    parser.add_argument("--folder", type=Path, help="where to write: the disk that is measured")
    options = parser.parse_args()
    days, servers = (3 if options.quick else 30), 8
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(Path(folder) / "history.db", days, servers)


def measure(path: Path, days: int, servers: int) -> None:
    """Fill a file and print what it costs."""
    end = BEGIN + days * DAY
    store = Store(path, retention_seconds=365 * DAY, max_bytes=8 << 30, wall_clock=lambda: float(end))
    made = written = 0.0
    rows = 0
    started = time.perf_counter()
    for batch in batches(servers, days):
        made += time.perf_counter() - started
        started = time.perf_counter()
        store.write(batch)
        written += time.perf_counter() - started
        rows += len(batch)
        started = time.perf_counter()
    random_ = random.Random(2)  # noqa: S311
    moment = iter(range(end, end + DAY, MINUTE))

    def write_minute() -> None:
        at = next(moment)
        store.write([minute(server, at, random_) for server in range(servers)])

    one = seconds_of(write_minute, 50)
    store.close()
    size = path.stat().st_size
    print(f"| rows, of {servers} servers over {days} days | {rows} |")
    print(f"| file | {size / 2**20:.0f} MiB, {size / rows:.0f} bytes a row |")
    print(f"| a row, written an hour at a time | {written / rows * 1e6:.0f} us |")
    print(f"| one minute of {servers} servers, safe on disk | {one * 1000:.1f} ms |")

    def opened() -> None:
        store.write([])
        store.close()
        store._checked = None  # noqa: SLF001 - as a new process would

    print(f"| opening, with the check of all of it | {seconds_of(opened, 3) * 1000:.0f} ms |")

    def read(count: int, since: int, step: float | None) -> int:
        with HistoryReader(path) as reader:
            return sum(
                len(reader.observations(f"server-{server}", since, end, step=step)) for server in range(count)
            )

    for name, count, since, step in (
        ("four servers, all of it by the hour", 4, BEGIN, HOUR),
        ("one server, all of it by the hour", 1, BEGIN, HOUR),
        ("one server, a day by the minute", 1, end - DAY, None),
        ("four servers, two hours by the minute", 4, end - 2 * HOUR, None),
        ("one server, all of it by the minute", 1, BEGIN, None),
    ):
        observations = read(count, since, step)
        spent = seconds_of(lambda count=count, since=since, step=step: read(count, since, step), 3)
        print(f"| {name}: {observations} observations | {spent * 1000:.0f} ms |")
    with HistoryReader(path) as reader:
        spent = seconds_of(lambda: reader.setups("server-0", BEGIN, end), 3)
        print(f"| one server's setups over all of it | {spent * 1000:.0f} ms |")
        spent = seconds_of(lambda: reader.starts("server-0", BEGIN, end), 3)
        print(f"| one server's starts over all of it | {spent * 1000:.0f} ms |")


if __name__ == "__main__":
    main()
