"""GPUs that are divided by MIG: instances as devices, nothing counted twice, changes under the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason
from tests.nvml_standin.machine import GIB, UUIDS, Machine, device, outcome, reason, used

if TYPE_CHECKING:
    from kvwatch.readings import NvmlReading

pytestmark = pytest.mark.anyio

WHOLE = "gpu 0 total=80GiB reserved=1GiB used=30GiB mig=0\nproc gpu=0 pid=7 type=C used=19GiB\n"
MIG = """
gpu 0 total=80GiB reserved=1GiB used=30GiB mig=1
mig gpu=0 slot=0 total=40GiB used=20GiB gi=1 ci=0
mig gpu=0 slot=2 total=20GiB used=9GiB gi=5 ci=0
proc gpu=0 slot=0 pid=7 type=C used=19GiB
proc gpu=0 slot=2 pid=8 type=C used=8GiB
gpu 1 total=24GiB used=1GiB
proc gpu=1 pid=9 type=C used=1GiB
"""
INSTANCES = tuple(f"MIG-00000000-0000-0000-0000-{slot:012d}" for slot in (0, 2))
SHARED = """
gpu 0 total=80GiB used=30GiB mig=1
mig gpu=0 slot=0 total=40GiB used=20GiB gi=1 ci=0
mig gpu=0 slot=1 total=40GiB used=20GiB gi=1 ci=1
mig gpu=0 slot=2 total=20GiB used=9GiB gi=5 ci=0
proc gpu=0 slot=0 pid=7 type=C used=11GiB
proc gpu=0 slot=1 pid=8 type=C used=8GiB
"""


def uuids(reading: NvmlReading) -> list[str]:
    """Return the devices' UUIDs."""
    return [device.uuid for device in reading.devices]


async def test_instances(machine: Machine) -> None:
    """Instances are devices with a parent, holes between them are passed, other GPUs are as ever."""
    machine.scenario(MIG)
    reading = await machine.source().poll()

    assert uuids(reading) == [UUIDS[0], *INSTANCES, UUIDS[1]]
    assert [device.parent_uuid for device in reading.devices] == [None, UUIDS[0], UUIDS[0], None]
    assert [used(reading, uuid) for uuid in INSTANCES] == [{7: 19 * GIB}, {8: 8 * GIB}]
    assert used(reading, UUIDS[1]) == {9: GIB}
    assert all(outcome.reason is None for outcome in reading.outcomes)


async def test_nothing_is_counted_twice(machine: Machine) -> None:
    """The divided GPU tells neither memory nor processes: sums over all devices are true."""
    machine.scenario(MIG)
    reading = await machine.source().poll()

    parent = device(reading, UUIDS[0])
    assert parent.divided
    assert not device(reading, INSTANCES[0]).divided
    assert (parent.total_bytes, parent.used_bytes, parent.free_bytes, parent.reserved_bytes) == (None,) * 4
    assert (parent.processes, parent.processes_reason) == ((), Reason.NOT_SUPPORTED)
    assert (parent.name, reason(reading, UUIDS[0])) == ("NVIDIA Stand-in", None)
    assert sum(device.used_bytes or 0 for device in reading.devices) == (20 + 9 + 1) * GIB
    assert sorted(process.pid for device in reading.devices for process in device.processes) == [7, 8, 9]


async def test_a_gpu_that_has_no_instance_yet(machine: Machine) -> None:
    """With MIG on and no instance, nobody can use the memory: none is shown, and that is no fault."""
    machine.scenario("gpu 0 total=80GiB used=1GiB mig=1\n")
    reading = await machine.source().poll()

    assert (uuids(reading), device(reading, UUIDS[0]).divided) == ([UUIDS[0]], True)
    assert (device(reading, UUIDS[0]).free_bytes, reason(reading, UUIDS[0])) == (None, None)


async def test_a_mode_that_is_pending_does_not_hold_yet(machine: Machine) -> None:
    """MIG that was switched on and waits for a reset divides nothing."""
    machine.scenario(WHOLE.replace("mig=0", "mig=0 pending=1"))
    reading = await machine.source().poll()

    assert (device(reading, UUIDS[0]).divided, device(reading, UUIDS[0]).used_bytes) == (False, 30 * GIB)


async def test_mode_switched_on_and_off(machine: Machine) -> None:
    """The GPU keeps its UUID; its instances come with the mode and are forgotten with it."""
    machine.scenario(WHOLE)
    source = machine.source()
    before = await source.poll()
    machine.scenario(MIG)
    divided = await source.poll()
    machine.scenario(WHOLE)
    after = await source.poll()

    assert [uuids(reading)[0] for reading in (before, divided, after)] == [UUIDS[0]] * 3
    assert uuids(divided)[1:3] == list(INSTANCES)
    assert [device(reading, UUIDS[0]).used_bytes for reading in (before, divided, after)] == [
        30 * GIB,
        None,
        30 * GIB,
    ]
    assert [outcome.target for outcome in after.outcomes] == ["driver", UUIDS[0], UUIDS[1]]
    assert reason(after, UUIDS[1]) == Reason.NOT_FOUND, "that card was pulled"


async def test_reconfiguration(machine: Machine) -> None:
    """Instances go by their UUIDs: a slot may hold another one, a removed one is forgotten."""
    machine.scenario(MIG)
    source = machine.source()
    await source.poll()
    machine.scenario(
        MIG.replace("slot=2 total", "slot=2 uuid=MIG-new total") + "mig gpu=0 slot=3 total=10GiB used=0"
    )
    reading = await source.poll()
    third = "MIG-00000000-0000-0000-0000-000000000003"
    assert uuids(reading) == [UUIDS[0], INSTANCES[0], "MIG-new", third, UUIDS[1]]
    assert (used(reading, "MIG-new"), used(reading, third)) == ({8: 8 * GIB}, {})

    machine.scenario("\n".join(line for line in MIG.splitlines() if "slot=2" not in line))
    reading = await source.poll()
    assert [outcome.target for outcome in reading.outcomes] == ["driver", UUIDS[0], INSTANCES[0], UUIDS[1]]
    assert all(outcome.reason is None for outcome in reading.outcomes)


async def test_instances_that_cannot_be_listed_are_not_forgotten(machine: Machine) -> None:
    """One that was there and cannot be read stays, with the reason of what failed."""
    machine.scenario(MIG)
    source = machine.source()
    await source.poll()

    machine.scenario(MIG + "fail nvmlDeviceGetMigDeviceHandleByIndex code=999 slot=2\n")
    reading = await source.poll()
    assert [reason(reading, uuid) for uuid in INSTANCES] == [None, Reason.UNREACHABLE]
    assert reason(reading, UUIDS[0]) == Reason.UNREACHABLE

    machine.scenario(MIG + "fail nvmlDeviceGetMaxMigDeviceCount code=999\n")
    reading = await source.poll()
    assert [reason(reading, uuid) for uuid in INSTANCES] == [Reason.UNREACHABLE] * 2

    machine.scenario(MIG + "fail nvmlDeviceGetMigMode code=999\n")
    reading = await source.poll()
    assert [reason(reading, uuid) for uuid in (UUIDS[0], *INSTANCES)] == [Reason.UNREACHABLE] * 3

    machine.scenario(MIG + "lost gpu=0\n")
    reading = await source.poll()
    assert [reason(reading, uuid) for uuid in (UUIDS[0], *INSTANCES)] == [Reason.DEVICE_LOST] * 3
    assert reason(reading, UUIDS[1]) is None

    machine.scenario(MIG)
    assert all(outcome.reason is None for outcome in (await source.poll()).outcomes)


async def test_an_instance_that_goes_while_it_is_read(machine: Machine) -> None:
    """What was still told is kept, what failed has its reason, the neighbour is untouched."""
    machine.scenario(
        MIG
        + "fail nvmlDeviceGetMemoryInfo* code=6 slot=2\n"
        + "fail nvmlDeviceGetComputeRunningProcesses* code=2 slot=2\n"
    )
    reading = await machine.source().poll()

    gone = device(reading, INSTANCES[1])
    assert (gone.memory_reason, gone.processes_reason) == (Reason.NOT_FOUND, Reason.INTERNAL_ERROR)
    assert [reason(reading, uuid) for uuid in (UUIDS[0], INSTANCES[0])] == [None, None]
    assert used(reading, INSTANCES[0]) == {7: 19 * GIB}


async def test_compute_instances_of_one_gpu_instance_share_its_memory(machine: Machine) -> None:
    """Each states the memory of the whole: it is shown once, and not set off against one's processes."""
    machine.scenario(SHARED)
    reading = await machine.source().poll()

    first, second, alone = (device for device in reading.devices if device.parent_uuid)
    assert [device.total_bytes for device in (first, second, alone)] == [40 * GIB, None, 20 * GIB]
    assert [device.memory_reason for device in (first, second, alone)] == [None, Reason.NOT_SUPPORTED, None]
    assert [device.processes_reason for device in (first, second, alone)] == [
        Reason.NOT_SUPPORTED,
        Reason.NOT_SUPPORTED,
        None,
    ]
    assert (used(reading, first.uuid), used(reading, second.uuid)) == ({7: 11 * GIB}, {8: 8 * GIB})
    assert (
        outcome(reading, second.uuid).detail == f"its memory is that of GPU instance 1, shown at {first.uuid}"
    )
    assert [reason(reading, device.uuid) for device in (first, second, alone)] == [
        Reason.NOT_SUPPORTED,
        Reason.NOT_SUPPORTED,
        None,
    ]


async def test_a_fault_of_a_shared_instance_goes_before(machine: Machine) -> None:
    """That memory is shared does not hide why a list failed."""
    machine.scenario(SHARED + "fail nvmlDeviceGetComputeRunningProcesses_v3 code=15 slot=1\n")
    reading = await machine.source().poll()

    assert reason(reading, "MIG-00000000-0000-0000-0000-000000000001") == Reason.DEVICE_LOST


async def test_a_driver_that_does_not_tell_gpu_instances(machine: Machine) -> None:
    """Where it is not known which share memory, each shows what it states."""
    machine.scenario(MIG)
    reading = await machine.source(hidden=("nvmlDeviceGetGpuInstanceId",)).poll()

    assert [device(reading, uuid).total_bytes for uuid in INSTANCES] == [40 * GIB, 20 * GIB]
    assert all(outcome.reason is None for outcome in reading.outcomes)
