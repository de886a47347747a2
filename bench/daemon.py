"""Measures the real daemon against its budgets: `python bench/daemon.py [--quick] [--python PATH]`.

Eight stand-in devices, 32 processes (or `--processes`), eight replayed vLLM servers; the daemon, its NVML
child and the servers are processes of their own. Figures are medians over three daemons. CPU time is the
kernel's count for the process, so other work on the machine moves it little; latencies and the start are
wall time, and other work moves those a lot: compare them with nvitop-exporter's, measured in the same run.
"""

from __future__ import annotations

import argparse
import gzip
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parent.parent))

import figures
import subjects
from crowd import measure_crowd
from results import GROWTH, Results, table

from tests.nvml_standin.build import build

if TYPE_CHECKING:
    from collections.abc import Callable

PROCESSES = 32
INTERVAL_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    daemons: int
    polls: int
    """In each window of CPU time, one second apart."""
    scrapes: int
    """Of each format in each window of latencies."""
    pairs: int
    """Of scrapes of the daemon and of nvitop-exporter."""
    starts: int
    growth: tuple[int, ...]
    """Servers, on eight devices."""
    device_growth: tuple[int, ...]
    """Devices, of eight servers."""
    growth_polls: int
    real_seconds: int
    """Of the window at the real interval; 0: none."""


FULL = Plan(
    daemons=3,
    polls=7,
    scrapes=80,
    pairs=10,
    starts=5,
    growth=(1, 8, 32, 64),
    device_growth=(1, 8, 16),
    growth_polls=3,
    real_seconds=25,
)
QUICK = Plan(
    daemons=1,
    polls=4,
    scrapes=40,
    pairs=4,
    starts=3,
    growth=(1, 8),
    device_growth=(),
    growth_polls=2,
    real_seconds=0,
)


def share(milliseconds: float) -> float:
    """Return CPU milliseconds a poll as a percentage of a core at the usual interval."""
    return milliseconds / 1000 / INTERVAL_SECONDS * 100


def between_polls(fleet: subjects.Fleet) -> int:
    """Wait until a poll has begun and, at an interval of a second, surely ended; return its number."""
    before = fleet.polls()
    while (now := fleet.polls()) == before:
        time.sleep(0.02)
    time.sleep(0.6)
    return now


def cpu_per_poll(
    fleet: subjects.Fleet, daemon: subjects.Daemon, polls: int, each: Callable[[], None]
) -> tuple[float, float]:
    """Return the CPU milliseconds of daemon and NVML child for one poll; `each` runs after every poll."""
    child = daemon.nvml_child
    first = between_polls(fleet)
    own, childs = figures.cpu_seconds(daemon.pid), figures.cpu_seconds(child)
    last = first
    while last - first < polls:
        last = between_polls(fleet)
        each()
    spent = figures.cpu_seconds(daemon.pid) - own, figures.cpu_seconds(child) - childs
    return spent[0] / (last - first) * 1000, spent[1] / (last - first) * 1000


def measure_latency(results: Results, url: str, scrapes: int, label: str) -> None:
    """Scrape in all formats by turns while polls go on, twenty milliseconds apart."""
    clients = {kind: subjects.Client(url) for kind in subjects.FORMATS}
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(scrapes):
        for kind, client in clients.items():
            seconds[kind].append(client.get(kind=kind)[0])
            time.sleep(0.02)
    for kind, values in seconds.items():
        for percent in (50, 99):
            results.add(f"{label}, {kind}, p{percent}", figures.percentile(values, percent) * 1000)


def measure_daemon(results: Results, plan: Plan, fleet: subjects.Fleet, folder: Path, python: str) -> None:
    """Start one daemon and take every figure of it; the hanging sources come last."""
    with subjects.daemon(fleet, "1s", folder, python) as daemon:
        results.add("start to ready", daemon.ready_seconds)
        results.add("start to ready, CPU of the daemon", daemon.ready_cpu_seconds)
        own, child = cpu_per_poll(fleet, daemon, plan.polls, lambda: None)
        results.add("poll, CPU of the daemon", own)
        results.add("poll, CPU of the NVML child", child)
        results.add("share of a core at 5 s", share(own + child))
        first: list[float] = []

        def scrape() -> None:
            first.append(subjects.Client(daemon.url).get(kind="OpenMetrics")[0] * 1000)

        scraped, child = cpu_per_poll(fleet, daemon, plan.polls, scrape)
        results.add("first scrape after a poll, CPU", scraped - own)
        results.add("share of a core at 5 s, with a scrape a poll", share(scraped + child))
        results.add("first scrape after a poll, OpenMetrics", figures.median(first))
        measure_latency(results, daemon.url, plan.scrapes, "/metrics")
        measure_crowd(results, daemon.url)
        body = subjects.Client(daemon.url).get()[2]
        results.add("bytes of a scrape, plain", len(body) / 1024)
        results.add("bytes of a scrape, gzip", len(gzip.compress(body, 6)) / 1024)
        results.add("series of a scrape", count_series(body))
        for name, pid in (("daemon", daemon.pid), ("NVML child", daemon.nvml_child)):
            memory = figures.memory(pid)
            results.add(f"resident memory of the {name}", memory.resident)
            if memory.proportional is not None:
                results.add(f"proportional memory of the {name}", memory.proportional)
        fleet.hang()
        try:
            time.sleep(1.5)
            measure_latency(results, daemon.url, plan.scrapes, "/metrics while a server and the driver hang")
        finally:
            fleet.heal()


def measure_growth(results: Results, plan: Plan, library: Path, python: str) -> None:
    """Measure a poll of few and of many servers, and of few and of many devices."""
    sizes = [(count, subjects.DEVICES, f"poll of {count} servers") for count in plan.growth]
    sizes += [(8, count, f"poll of {count} devices") for count in plan.device_growth]
    for servers, devices, name in sizes:
        with (
            tempfile.TemporaryDirectory() as folder,
            subjects.fleet(servers, max(PROCESSES, servers), library, Path(folder), devices=devices) as fleet,
            subjects.daemon(
                fleet, "2s" if servers > subjects.DEVICES else "1s", Path(folder), python
            ) as daemon,
        ):
            for _ in range(3):
                own, child = cpu_per_poll(fleet, daemon, plan.growth_polls, lambda: None)
                results.add(f"{name}, CPU", own)
                results.add(f"{name}, CPU of the NVML child", child)
            body = subjects.Client(daemon.url).get()[2]
            results.add(f"{name}, slowest source", slowest_source(body) * 1000)
            results.add(f"{name}, series", count_series(body))
            results.add(f"{name}, resident memory", figures.memory(daemon.pid).resident)
    each: list[float] = []
    for few, many in pairwise(plan.growth):
        less, more = (results.get(f"poll of {count} servers, CPU") or 0.0 for count in (few, many))
        each.append((more - less) / (many - few))
        results.add(f"each server from {few} to {many}, CPU", each[-1])
    if len(each) > 1:
        results.add(GROWTH, each[-1] / each[0])


def measure_real_interval(
    results: Results, plan: Plan, fleet: subjects.Fleet, folder: Path, python: str
) -> None:
    """Measure the whole daemon at its usual interval, without the arithmetic."""
    with subjects.daemon(fleet, "5s", folder, python) as daemon:
        time.sleep(2.5)
        pids = (daemon.pid, daemon.nvml_child)
        before = sum(map(figures.cpu_seconds, pids))
        time.sleep(plan.real_seconds)
        spent = sum(map(figures.cpu_seconds, pids)) - before
        results.add("share of a core at 5 s, watched", spent / plan.real_seconds * 100)


def measure_program(results: Results, name: str, command: list[str], runs: int) -> None:
    """Run a program to its end; keep its CPU and wall seconds."""
    for _ in range(runs):
        started = time.perf_counter()
        pid = os.posix_spawn(
            command[0],
            command,
            {**os.environ, "PYTHONPATH": str(subjects.ROOT)},
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
        )
        usage = os.wait4(pid, 0)[2]
        results.add(name, time.perf_counter() - started)
        results.add(f"{name}, CPU", usage.ru_utime + usage.ru_stime)


def measure_nvitop(results: Results, plan: Plan, fleet: subjects.Fleet, folder: Path, python: str) -> None:
    """Scrape the daemon and nvitop-exporter by turns, so that both meet the same other work."""
    program = subjects.nvitop_program(install=plan is FULL)
    if program is None:
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seconds: dict[str, list[float]] = defaultdict(list)
    with (
        subjects.daemon(fleet, "1s", folder, python) as daemon,
        subjects.nvitop(program, fleet, port) as url,
    ):
        ours, theirs = subjects.Client(daemon.url), subjects.Client(url)
        for _ in range(plan.pairs):
            between_polls(fleet)
            seconds["first"].append(ours.get()[0])
            for _ in range(3):
                seconds["again"].append(ours.get()[0])
                spent, _, body = theirs.get()
                seconds["nvitop"].append(spent)
        results.add("nvitop-exporter, series", count_series(body))
    medians = {name: figures.median(values) for name, values in seconds.items()}
    results.add("nvitop-exporter, /metrics, p50", medians["nvitop"] * 1000)
    results.add("/metrics again, p50 / nvitop-exporter's", medians["again"] / medians["nvitop"])
    results.add("/metrics first after a poll, p50 / nvitop-exporter's", medians["first"] / medians["nvitop"])


def slowest_source(body: bytes) -> float:
    """Return the seconds that the slowest source of the last poll took: all are asked at once."""
    lines = [line for line in body.splitlines() if line.startswith(b"kvwatch_source_duration_seconds{")]
    return max(float(line.rpartition(b" ")[2]) for line in lines)


def count_series(body: bytes) -> int:
    """Count the series of an exposition."""
    return sum(not line.startswith(b"#") for line in body.splitlines())


def environment(python: str) -> str:
    """Describe the Python that runs the daemon."""
    code = (
        "import sys, importlib.util as u; extra = u.find_spec('rich') and u.find_spec('click'); "
        "print(sys.version.split()[0], 'with rich and click, which httpx then imports' if extra else '')"
    )
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the daemon against its budgets.")
    parser.add_argument("--quick", action="store_true", help="one daemon instead of three, under a minute")
    parser.add_argument(
        "--processes", type=int, default=PROCESSES, help=f"processes on the devices (default {PROCESSES})"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the daemon")
    options = parser.parse_args()
    plan, python, results = QUICK if options.quick else FULL, options.python, Results()
    started = time.perf_counter()
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {figures.machine()}; load {figures.load()}")
    print(f"daemon: Python {environment(python)}; {options.processes} processes\n", flush=True)
    library = build()
    measure_program(results, "python -c pass", [python, "-c", "pass"], plan.starts)
    measure_program(results, "kvwatch --help", [python, "-m", "kvwatch", "--help"], plan.starts)
    cost = [python, "-m", "kvwatch", "cost", "tests/captures/vllm/tiny-llama-config.json", "--pool", "12GiB"]
    measure_program(results, "kvwatch cost", cost, plan.starts)
    with (
        tempfile.TemporaryDirectory() as name,
        subjects.fleet(8, options.processes, library, Path(name)) as fleet,
    ):
        for _ in range(plan.daemons):
            measure_daemon(results, plan, fleet, Path(name), python)
        if plan.real_seconds:
            measure_real_interval(results, plan, fleet, Path(name), python)
        measure_nvitop(results, plan, fleet, Path(name), python)
    measure_growth(results, plan, library, python)
    print("\n".join(table(results, plan.growth, plan.device_growth)))
    print(f"\n{time.perf_counter() - started:.0f} s; load {figures.load()}")


if __name__ == "__main__":
    main()
