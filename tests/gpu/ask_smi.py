"""What `nvidia-smi` says of the devices and of the processes on them, in its own unit, MiB."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEADLINE_SECONDS = 20
FIELDS = ("total", "used", "free", "reserved")


class NoGpuError(Exception):
    """There is no GPU here, or no driver to ask."""


@dataclass(frozen=True, kw_only=True)
class Smi:
    """One look: MiB by device and field, MiB by device and PID; None where it says N/A."""

    memory: Mapping[str, Mapping[str, int | None]]
    processes: Mapping[str, Mapping[int, int | None]] = field(default_factory=dict)


def look() -> Smi:
    """Ask once. Raises NoGpuError."""
    memory: dict[str, dict[str, int | None]] = {}
    for uuid, *values in _rows("gpu", ["uuid", *(f"memory.{name}" for name in FIELDS)]):
        memory[uuid] = dict(zip(FIELDS, map(_mib, values), strict=True))
    if not memory:
        raise NoGpuError("nvidia-smi lists no device")
    processes: dict[str, dict[int, int | None]] = {uuid: {} for uuid in memory}
    for uuid, pid, used in _rows("compute-apps", ["gpu_uuid", "pid", "used_memory"]):
        processes.setdefault(uuid, {})[int(pid)] = _mib(used)
    return Smi(memory=memory, processes=processes)


def _rows(query: str, names: list[str]) -> list[list[str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NoGpuError("there is no nvidia-smi")
    command = [program, f"--query-{query}={','.join(names)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise NoGpuError(f"nvidia-smi does not answer within {DEADLINE_SECONDS} s") from error
    if done.returncode:
        raise NoGpuError(f"nvidia-smi: {(done.stdout + done.stderr).strip()}")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return [[cell.strip() for cell in line.split(",")] for line in lines]


def _mib(text: str) -> int | None:
    return int(text) if text.isdigit() else None
