"""NVML faults that take the driver, the library or the child: reasons, deadlines, recovery."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason
from tests.nvml_standin.build import build
from tests.nvml_standin.machine import (
    GIB,
    THREE_GPUS,
    UUIDS,
    Machine,
    device,
    died,
    outcome,
    reason,
    started,
    used,
    without_effect,
)

if TYPE_CHECKING:
    from kvwatch.readings import NvmlReading
    from kvwatch.sources.nvml import NvmlSource

pytestmark = pytest.mark.anyio
DEADLINE = 0.4
HANG_1 = "delay nvmlDeviceGetComputeRunningProcesses_v3 ms=forever gpu=1\n"


def reasons(reading: NvmlReading) -> list[Reason | None]:
    """Return the reasons of the driver and the three GPUs."""
    return [reason(reading, target) for target in ("driver", *UUIDS[:3])]


async def polled_in_time(source: NvmlSource) -> NvmlReading:
    """Poll, and see that the deadline holds: half a second is for a busy machine."""
    began = time.monotonic()
    reading = await source.poll()
    assert time.monotonic() - began < DEADLINE + 0.5
    return reading


@pytest.mark.parametrize(
    "code, expected",
    [
        (9, Reason.DRIVER_NOT_LOADED),
        (4, Reason.PERMISSION),
        (18, Reason.VERSION_MISMATCH),
        (999, Reason.UNREACHABLE),
        (12345, Reason.UNREACHABLE),
    ],
)
async def test_init_fails(machine: Machine, code: int, expected: Reason) -> None:
    """A driver that does not initialise takes all devices along, with its reason, until it does."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    machine.scenario(THREE_GPUS + f"fail nvmlInit* code={code}\nfail nvmlDeviceGetCount_v2 code={code}\n")
    assert reasons(await source.poll()) == [expected] * 4
    reading = await source.poll()
    assert reasons(reading) == [expected] * 4
    assert len(reading.devices) == 3

    machine.scenario(THREE_GPUS)
    assert reasons(await source.poll()) == [None] * 4


async def test_driver_goes_while_devices_are_read(machine: Machine) -> None:
    """When the driver is unloaded under an open library, the next poll initialises again."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    machine.scenario(THREE_GPUS + "fail nvmlDevice* code=9 after=3\n")
    assert Reason.DRIVER_NOT_LOADED in reasons(await source.poll())
    machine.scenario(THREE_GPUS + "fail nvmlInitWithFlags code=9\n")
    assert reasons(await source.poll()) == [Reason.DRIVER_NOT_LOADED] * 4

    machine.scenario(THREE_GPUS)
    assert reasons(await source.poll()) == [None] * 4


async def test_library_appears(machine: Machine) -> None:
    """A machine without the library says so, and finds it once it is installed."""
    folder = machine.folder / "lib"
    folder.mkdir()
    machine.scenario(THREE_GPUS)
    source = machine.source(env={**machine.environment(), "LD_LIBRARY_PATH": str(folder)})
    reading = await source.poll()
    assert [(outcome.target, outcome.reason) for outcome in reading.outcomes] == [
        ("driver", Reason.LIBRARY_NOT_FOUND)
    ]

    shutil.copy(build() / "libnvidia-ml.so.1", folder)
    assert reasons(await source.poll()) == [None] * 4


async def test_driver_upgrade(machine: Machine) -> None:
    """A library that does not match a new driver is replaced with its process, at growing intervals."""
    folder = machine.folder / "lib"
    shutil.copytree(build(hidden=("nvmlDeviceGetMemoryInfo_v2",)), folder)
    machine.scenario(THREE_GPUS)
    source = machine.source(env={**machine.environment(), "LD_LIBRARY_PATH": str(folder)})
    assert device(await source.poll(), UUIDS[0]).memory_version == 1
    before = source.child_pids

    # The upgrade: the old library is still mapped and refused by the driver, the new one is on disk.
    shutil.copy(build() / "libnvidia-ml.so.1", folder / "new")
    (folder / "new").replace(folder / "libnvidia-ml.so.1")
    mismatch = THREE_GPUS + "fail nvmlInit* code=18\nfail nvmlDeviceGetCount_v2 code=18\n"
    machine.scenario(mismatch)
    assert reasons(await source.poll()) == [Reason.VERSION_MISMATCH] * 4
    assert reasons(await source.poll()) == [Reason.VERSION_MISMATCH] * 4
    second = source.child_pids
    await source.poll()
    assert source.child_pids[0] == second[0] not in before
    machine.clock.now += 5
    await source.poll()

    machine.scenario(THREE_GPUS)
    reading = await source.poll()
    assert source.child_pids[0] != second[0]
    assert reasons(reading) == [None] * 4
    assert device(reading, UUIDS[0]).memory_version == 2


@pytest.mark.parametrize(
    "code, expected",
    [(12, Reason.LIBRARY_NOT_FOUND), (18, Reason.VERSION_MISMATCH), (999, Reason.UNREACHABLE)],
)
async def test_a_process_that_can_never_initialise_again(
    machine: Machine, code: int, expected: Reason
) -> None:
    """Where only another process finds the driver put right, one is started, at growing intervals."""
    machine.scenario(THREE_GPUS + f"doomed code={code}\n")
    source = machine.source()
    for _ in range(3):
        assert reason(await source.poll(), "driver") == expected
    machine.scenario(THREE_GPUS)
    assert reason(await source.poll(), "driver") == expected, "the same process, doomed"
    machine.clock.now += 60
    assert reason(await source.poll(), "driver") == expected, "its last answer"
    assert reasons(await source.poll()) == [None] * 4


async def test_a_driver_that_is_loaded_later(machine: Machine) -> None:
    """A machine that boots with kvwatch up before its driver needs nothing when the driver comes."""
    machine.scenario(THREE_GPUS + "fail nvmlInitWithFlags code=9\n")
    source = machine.source()
    for _ in range(3):
        reading = await source.poll()
        assert [(outcome.target, outcome.reason) for outcome in reading.outcomes] == [
            ("driver", Reason.DRIVER_NOT_LOADED)
        ]
    before = source.child_pids

    machine.scenario(THREE_GPUS)
    assert reasons(await source.poll()) == [None] * 4
    assert source.child_pids == before, "the library may try again"


async def test_a_library_that_is_overwritten_in_place(machine: Machine) -> None:
    """Cut to nothing under the running child, then whole again: the crash costs the child, nothing else."""
    folder = machine.folder / "lib"
    folder.mkdir()
    library = folder / "libnvidia-ml.so.1"
    shutil.copy(build() / library.name, library)
    whole = library.read_bytes()
    machine.scenario(THREE_GPUS)
    source = machine.source(env={**machine.environment(), "LD_LIBRARY_PATH": str(folder)})
    await source.poll()

    library.write_bytes(b"")
    assert reasons(await source.poll()) == [Reason.UNREACHABLE] * 4
    assert reasons(await source.poll()) == [Reason.LIBRARY_NOT_FOUND] * 4
    library.write_bytes(whole)
    machine.clock.now += 60
    assert reasons(await source.poll()) == [None] * 4


async def test_one_device_hangs(machine: Machine) -> None:
    """A poll ends at its deadline with what was read; then the hung device is left alone for a while."""
    machine.scenario(THREE_GPUS)
    source = machine.source(deadline_seconds=DEADLINE)
    await started(source)
    hung = source.child_pids[0]
    machine.scenario(THREE_GPUS + HANG_1)
    reading = await polled_in_time(source)
    assert reasons(reading) == [None, None, Reason.TIMEOUT, Reason.TIMEOUT]
    assert used(reading, UUIDS[0]) == {1200: 20 * GIB, 1201: 8 * GIB}
    assert device(reading, UUIDS[1]).used_bytes is None
    assert "GPU 1 has not answered for" in outcome(reading, UUIDS[1]).detail
    assert "because of GPU 1" in outcome(reading, UUIDS[2]).detail

    for _ in range(2):
        reading = await started(source)
        assert reasons(reading) == [None, None, Reason.TIMEOUT, None]
        assert "left alone" in outcome(reading, UUIDS[1]).detail

    await died(hung)
    machine.clock.now += 5
    hung = source.child_pids[0]
    reading = await polled_in_time(source)
    assert reasons(reading) == [None, None, Reason.TIMEOUT, None], "asked again, after the others"
    assert "left alone" not in outcome(reading, UUIDS[1]).detail

    machine.scenario(THREE_GPUS)
    await died(hung)
    machine.clock.now += 5
    assert reason(await started(source), UUIDS[1]) == Reason.TIMEOUT, "left alone for longer"
    machine.clock.now += 5
    assert reasons(await started(source)) == [None] * 4


async def test_driver_hangs(machine: Machine) -> None:
    """When the driver as a whole hangs, all is unknown; with the hang gone, a new child reads all."""
    machine.scenario(THREE_GPUS)
    source = machine.source(deadline_seconds=DEADLINE)
    await started(source)
    machine.scenario(THREE_GPUS + "delay nvmlDeviceGetCount_v2 ms=forever\n")
    reading = await polled_in_time(source)
    assert reasons(reading) == [Reason.TIMEOUT] * 4
    assert outcome(reading, "driver").detail.startswith("the driver has not answered for")

    machine.scenario(THREE_GPUS)
    assert reasons(await started(source)) == [None] * 4


async def test_init_hangs(machine: Machine) -> None:
    """A child that never comes up is replaced, but only after its time to start."""
    machine.scenario(THREE_GPUS + "delay nvmlInitWithFlags ms=forever\n")
    source = machine.source(deadline_seconds=DEADLINE, start_seconds=2.5 * DEADLINE)
    assert reason(await polled_in_time(source), "driver") == Reason.TIMEOUT
    first = source.child_pids
    detail = outcome(await polled_in_time(source), "driver").detail
    assert source.child_pids == first
    assert "has not answered at the start" in detail
    await polled_in_time(source)
    await polled_in_time(source)
    assert source.child_pids[0] != first[0]

    machine.scenario(THREE_GPUS)
    machine.clock.now += 60
    assert [outcome.reason for outcome in (await started(source)).outcomes] == [None] * 4


async def test_slow_start_is_no_hang(machine: Machine) -> None:
    """Initialisation that takes several deadlines comes up in its first child."""
    machine.scenario(THREE_GPUS + "delay nvmlDeviceGetHandleByIndex_v2 ms=400 times=3\n")
    source = machine.source(deadline_seconds=DEADLINE)
    reading = await polled_in_time(source)
    first = source.child_pids
    assert [outcome.reason for outcome in reading.outcomes] == [Reason.TIMEOUT]
    reading = await started(source)

    assert reasons(reading) == [None] * 4
    assert source.child_pids == first


async def test_first_contact_hangs(machine: Machine) -> None:
    """A GPU that cannot be initialised is found out at the start, and the next child reads the others."""
    machine.scenario(THREE_GPUS + "delay nvmlDeviceGetHandleByIndex_v2 ms=forever gpu=1\n")
    source = machine.source(deadline_seconds=DEADLINE, start_seconds=2 * DEADLINE)
    reading = await started(source)

    assert [device.uuid for device in reading.devices] == [UUIDS[0], UUIDS[2]]
    assert [reason(reading, target) for target in (UUIDS[0], UUIDS[2])] == [None, None]
    assert reason(reading, "index:1") == Reason.TIMEOUT


async def test_slow_driver_is_no_hang(machine: Machine) -> None:
    """A driver too slow for the deadline gives what it can, and its child may finish."""
    machine.scenario(THREE_GPUS)
    source = machine.source(deadline_seconds=DEADLINE)
    await started(source)
    pids = source.child_pids
    slow = "".join(
        f"delay nvmlDeviceGetMemoryInfo_v2 ms={ms} gpu={gpu}\n" for gpu, ms in enumerate((10, 10, 1))
    )
    lists = "".join(f"delay {name} ms=90\n" for name in ("nvmlDeviceGetComputeRunningProcesses_v3",))
    machine.scenario(THREE_GPUS + slow + lists + "delay nvmlDeviceGetName ms=80\n")
    reading = await polled_in_time(source)
    assert reasons(reading)[:2] == [None, None]
    assert Reason.TIMEOUT in reasons(reading)

    machine.scenario(THREE_GPUS)
    assert reasons(await started(source)) == [None] * 4
    assert source.child_pids == pids


async def test_library_crashes(machine: Machine) -> None:
    """A library that crashes on one GPU takes its child along, and the other GPUs for one poll."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    machine.scenario(THREE_GPUS + "crash nvmlDeviceGetMemoryInfo* gpu=1\n")
    reading = await source.poll()
    assert reasons(reading) == [None, None, Reason.UNREACHABLE, Reason.UNREACHABLE]
    assert "signal 11" in outcome(reading, UUIDS[1]).detail
    assert reasons(await source.poll()) == [None, None, Reason.UNREACHABLE, None]

    machine.scenario(THREE_GPUS)
    machine.clock.now += 5
    assert reasons(await source.poll()) == [None] * 4


async def test_child_is_killed_between_polls(machine: Machine) -> None:
    """A child that somebody ended is replaced in the next poll, which misses nothing."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    (before,) = source.child_pids
    os.kill(before, signal.SIGKILL)
    await died(before)
    reading = await source.poll()

    assert reasons(reading) == [None] * 4
    assert source.child_pids != (before,)


async def test_child_is_killed_in_a_poll(machine: Machine) -> None:
    """A child that is killed while it is asked costs what it had not yet read, and is replaced."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    machine.scenario(THREE_GPUS + "delay nvmlDeviceGetUUID ms=forever gpu=1\n")
    polling = asyncio.create_task(source.poll())
    await asyncio.sleep(0.2)
    os.kill(source.child_pids[0], signal.SIGKILL)
    reading = await polling
    assert reasons(reading) == [None, None, Reason.UNREACHABLE, Reason.UNREACHABLE]

    machine.scenario(THREE_GPUS)
    machine.clock.now += 5
    assert reasons(await source.poll()) == [None] * 4


async def test_children_that_cannot_be_killed(machine: Machine) -> None:
    """Children in uninterruptible calls are counted: at the cap none is started until one ends."""
    machine.scenario(THREE_GPUS)
    source = machine.source(deadline_seconds=DEADLINE, start_seconds=DEADLINE, send_signal=without_effect)
    await started(source)
    machine.scenario(THREE_GPUS + "delay nvmlDeviceGetCount_v2 ms=forever\n")
    for _ in range(4):
        machine.clock.now += 60
        assert reasons(await polled_in_time(source)) == [Reason.TIMEOUT] * 4
    stuck = source.child_pids
    assert len(stuck) == 2
    detail = outcome(await polled_in_time(source), "driver").detail
    assert all(str(pid) in detail for pid in stuck)
    began = time.monotonic()
    await polled_in_time(source)
    assert time.monotonic() - began < DEADLINE, "nothing is waited for"
    assert source.child_pids == stuck

    for pid in stuck:
        os.kill(pid, signal.SIGKILL)
        await died(pid)
    machine.scenario(THREE_GPUS)
    machine.clock.now += 60
    assert reasons(await started(source)) == [None] * 4


async def test_device_that_holds_a_child_for_ever(machine: Machine) -> None:
    """A device is not asked while a child that it caught still hangs: that child knows already."""
    machine.scenario(THREE_GPUS)
    source = machine.source(deadline_seconds=DEADLINE, send_signal=without_effect)
    await started(source)
    (stuck,) = source.child_pids
    machine.scenario(THREE_GPUS + HANG_1)
    assert reason(await polled_in_time(source), UUIDS[1]) == Reason.TIMEOUT
    for _ in range(3):
        machine.clock.now += 1000
        reading = await started(source)
        assert reasons(reading) == [None, None, Reason.TIMEOUT, None]
        assert source.child_pids[1:] == (stuck,)

    os.kill(stuck, signal.SIGKILL)
    await died(stuck)
    machine.scenario(THREE_GPUS)
    assert reasons(await started(source)) == [None] * 4
