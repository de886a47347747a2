"""What the kernel says of a process, and medians."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_KIB_PER_MIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A process's memory in MiB."""

    resident: float
    """VmRSS: shared pages count whole."""
    proportional: float | None
    """Pss: a page shared by n processes counts 1/n; None where it may not be read."""


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its ended threads, children left out (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def memory(pid: int) -> Memory:
    """Return what a process has resident."""
    resident = _kib(Path(f"/proc/{pid}/status"), "VmRSS:")
    if resident is None:
        raise ProcessLookupError(pid)
    proportional = _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
    return Memory(
        resident=resident / _KIB_PER_MIB,
        proportional=None if proportional is None else proportional / _KIB_PER_MIB,
    )


def children(pid: int) -> list[int]:
    """Return the PIDs of a process's children."""
    return [int(word) for task in Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()]  # fmt: skip


def machine() -> str:
    """Describe the machine in one line."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")),
        "unknown CPU",
    )  # fmt: skip
    return f"{os.cpu_count()} cores, {model}, Linux {os.uname().release}"


def load() -> str:
    """Return the load averages."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def _kib(path: Path, key: str) -> float | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) for line in lines if line.startswith(key)), None)
