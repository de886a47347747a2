"""A machine whose driver is the stand-in: scenarios in, `NvmlSource`s over it out."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from kvwatch.readings import DeviceReading, NvmlReading, Outcome, Reason
from kvwatch.sources.nvml import NvmlSource
from tests.nvml_standin.build import build, environment, write_scenario

UUIDS = tuple(f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(8))
GIB = 1 << 30
THREE_GPUS = """
driver 570.172.08
gpu 0 name="NVIDIA L40S" total=46068MiB reserved=500MiB used=30GiB
gpu 1 name="NVIDIA L40S" total=46068MiB reserved=500MiB used=10GiB
gpu 2 name="NVIDIA L40S" total=46068MiB reserved=500MiB used=0
proc gpu=0 pid=1200 type=C used=20GiB
proc gpu=0 pid=1201 type=C used=8GiB
proc gpu=1 pid=1300 type=C used=9GiB
"""


class Clock:
    """Time that passes only when told, for back-off."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Machine:
    """One scenario file and everything that reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "nvml.scenario"
        self.clock = Clock()
        self.sources: list[NvmlSource] = []
        self.scenario("")

    def scenario(self, text: str) -> None:
        """Replace what the driver says."""
        write_scenario(self.path, text)

    def environment(self, *, hidden: tuple[str, ...] = ()) -> dict[str, str]:
        """Return the environment of a child that finds the stand-in, without the hidden symbols."""
        return environment(build(hidden=hidden), self.path)

    def source(self, *, hidden: tuple[str, ...] = (), **settings: Any) -> NvmlSource:
        """Return a source over the stand-in; its back-off runs on the machine's clock."""
        settings = {
            "deadline_seconds": 10.0,
            "env": self.environment(hidden=hidden),
            "clock": self.clock,
            **settings,
        }
        source = NvmlSource(**settings)
        self.sources.append(source)
        return source

    async def close(self) -> None:
        """Close all sources."""
        for source in self.sources:
            await source.close()


async def started(source: NvmlSource) -> NvmlReading:
    """Poll until the child is up: how long that takes is the machine's affair."""
    until = time.monotonic() + 20
    while True:
        reading = await source.poll()
        if reason(reading, "driver") != Reason.TIMEOUT or time.monotonic() > until:
            return reading


def outcome(reading: NvmlReading, target: str) -> Outcome:
    """Return the one outcome of a target."""
    (found,) = (outcome for outcome in reading.outcomes if outcome.target == target)
    return found


def reason(reading: NvmlReading, target: str) -> Reason | None:
    """Return the reason of a target's outcome."""
    return outcome(reading, target).reason


def device(reading: NvmlReading, uuid: str) -> DeviceReading:
    """Return the one device of that UUID."""
    (found,) = (device for device in reading.devices if device.uuid == uuid)
    return found


def used(reading: NvmlReading, uuid: str) -> dict[int, int | None]:
    """Return a device's processes as PID -> bytes."""
    return {process.pid: process.used_bytes for process in device(reading, uuid).processes}


async def died(pid: int) -> None:
    """Wait until a process has ended, reaped or not; fails after five seconds."""
    until = time.monotonic() + 5
    while _lives(pid):
        assert time.monotonic() < until, f"{pid} is still alive"
        await asyncio.sleep(0.02)


def without_effect(pid: int, number: int) -> None:
    """Deliver no signal: to a process in an uninterruptible call not even SIGKILL gets through."""


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
