"""What NVML says becomes readings: the real pynvml in the real child over the stand-in library."""

from __future__ import annotations

import pytest

from kvwatch.readings import Reason
from tests.nvml_standin.machine import GIB, THREE_GPUS, UUIDS, Machine, device, outcome, reason, used

pytestmark = pytest.mark.anyio
ONE_GPU = "gpu 0 total=80GiB reserved=1GiB used=30GiB\n"


async def test_several_devices(machine: Machine) -> None:
    """Every device is read with its memory in v2 meaning, its processes, its name and the driver."""
    machine.scenario(THREE_GPUS)
    reading = await machine.source().poll()

    assert [device.uuid for device in reading.devices] == list(UUIDS[:3])
    assert [outcome.target for outcome in reading.outcomes] == ["driver", *UUIDS[:3]]
    assert all(outcome.reason is None for outcome in reading.outcomes)
    first = device(reading, UUIDS[0])
    assert (first.index, first.name, first.driver) == (0, "NVIDIA L40S", "570.172.08")
    assert (first.memory_version, first.total_bytes) == (2, 46068 << 20)
    assert (first.used_bytes, first.reserved_bytes) == (30 * GIB, 500 << 20)
    assert first.free_bytes == (46068 << 20) - 30 * GIB - (500 << 20)
    assert used(reading, UUIDS[0]) == {1200: 20 * GIB, 1201: 8 * GIB}
    assert used(reading, UUIDS[2]) == {}
    assert device(reading, UUIDS[2]).processes_reason is None


async def test_child_is_kept_and_small(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """One child serves all polls; a change of the driver's answers shows in the next poll."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    pids = source.child_pids
    machine.scenario(THREE_GPUS.replace("used=0", "used=2GiB"))
    reading = await source.poll()

    assert device(reading, UUIDS[2]).used_bytes == 2 * GIB
    assert source.child_pids == pids
    with open(f"/proc/{pids[0]}/status") as status, capsys.disabled():  # noqa: ASYNC230, PTH123
        print(*(line.strip() for line in status if line.startswith(("VmRSS", "VmHWM"))))


async def test_no_gpu(machine: Machine) -> None:
    """A driver without a GPU is a fact: it answered, and there is no device."""
    machine.scenario("driver 570.0\n")
    reading = await machine.source().poll()

    assert reading.devices == ()
    assert [(outcome.target, outcome.reason) for outcome in reading.outcomes] == [("driver", None)]


async def test_unknown_process_memory(machine: Machine) -> None:
    """A process whose memory is N/A is there, with unknown bytes, not zero."""
    machine.scenario(ONE_GPU + "proc gpu=0 pid=7 type=C used=na\nproc gpu=0 pid=8 type=G used=0\n")
    reading = await machine.source().poll()

    assert used(reading, UUIDS[0]) == {7: None, 8: 0}
    assert reason(reading, UUIDS[0]) is None


async def test_process_in_several_lists(machine: Machine) -> None:
    """A process that computes, draws and uses MPS is counted once, with the most that a list says."""
    machine.scenario(
        ONE_GPU
        + "proc gpu=0 pid=7 type=CG used=3GiB\nproc gpu=0 pid=7 type=M used=5GiB\n"
        + "proc gpu=0 pid=8 type=C used=na\nproc gpu=0 pid=8 type=G used=1GiB\n"
    )
    reading = await machine.source().poll()

    assert used(reading, UUIDS[0]) == {7: 5 * GIB, 8: GIB}


@pytest.mark.parametrize(
    "record, memory, processes, complete, total",
    [
        pytest.param(
            "fail nvmlDeviceGetComputeRunningProcesses_v3 code=999",
            None,
            Reason.UNREACHABLE,
            {8: GIB, 9: GIB},
            Reason.UNREACHABLE,
            id="compute fails, graphics and MPS are fine",
        ),
        pytest.param(
            "fail nvmlDeviceGetComputeRunningProcesses_v3 code=4 when=fill",
            None,
            Reason.PERMISSION,
            {8: GIB, 9: GIB},
            Reason.PERMISSION,
            id="compute fails on its second call",
        ),
        pytest.param(
            "fail nvmlDeviceGetGraphicsRunningProcesses_v3 code=999",
            None,
            Reason.UNREACHABLE,
            {7: GIB, 9: GIB},
            Reason.UNREACHABLE,
            id="graphics fails",
        ),
        pytest.param(
            "fail nvmlDeviceGetGraphicsRunningProcesses_v3 code=3",
            None,
            None,
            {7: GIB, 9: GIB},
            None,
            id="no graphics list on this device",
        ),
        pytest.param(
            "fail nvmlDeviceGetMPSComputeRunningProcesses_v3 code=7 when=fill times=2",
            None,
            None,
            {7: GIB, 8: GIB, 9: GIB},
            None,
            id="a list outgrows its buffer twice",
        ),
        pytest.param(
            "fail nvmlDeviceGetMPSComputeRunningProcesses_v3 code=7 when=fill",
            None,
            Reason.IMPLAUSIBLE,
            {7: GIB, 8: GIB},
            Reason.IMPLAUSIBLE,
            id="a list never fits",
        ),
        pytest.param(
            "fail nvmlDeviceGetMemoryInfo* code=999",
            Reason.UNREACHABLE,
            None,
            {7: GIB, 8: GIB, 9: GIB},
            Reason.UNREACHABLE,
            id="memory fails, processes are fine",
        ),
        pytest.param(
            "fail nvmlDeviceGetMemoryInfo* code=3",
            Reason.NOT_SUPPORTED,
            None,
            {7: GIB, 8: GIB, 9: GIB},
            Reason.NOT_SUPPORTED,
            id="a unified-memory part",
        ),
        pytest.param(
            "fail nvmlDeviceGetMigMode code=999",
            None,
            Reason.UNREACHABLE,
            {7: GIB, 8: GIB, 9: GIB},
            Reason.UNREACHABLE,
            id="whether there are MIG instances is unknown",
        ),
    ],
)
async def test_part_of_a_device_fails(
    machine: Machine,
    record: str,
    memory: Reason | None,
    processes: Reason | None,
    complete: dict[int, int],
    total: Reason | None,
) -> None:
    """Only the part whose call failed is unknown, with its reason; all is back when the fault goes."""
    text = ONE_GPU + "".join(
        f"proc gpu=0 pid={7 + i} type={kind} used=1GiB\n" for i, kind in enumerate("CGM")
    )
    machine.scenario(text + record + "\n")
    source = machine.source()
    reading = await source.poll()

    assert device(reading, UUIDS[0]).memory_reason == memory
    assert (device(reading, UUIDS[0]).used_bytes is None) == (memory is not None)
    assert device(reading, UUIDS[0]).processes_reason == processes
    assert used(reading, UUIDS[0]) == complete
    assert reason(reading, UUIDS[0]) == total
    assert reason(reading, "driver") is None

    machine.scenario(text)
    reading = await source.poll()
    assert reason(reading, UUIDS[0]) is None
    assert used(reading, UUIDS[0]) == {7: GIB, 8: GIB, 9: GIB}


@pytest.mark.parametrize("code", [15, 16])
async def test_one_device_lost(machine: Machine, code: int) -> None:
    """A lost device keeps its identity and its reason while the others go on."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    fault = "lost gpu=1\n" if code == 15 else "fail nvmlDevice* code=16 gpu=1\n"
    machine.scenario(THREE_GPUS + fault)
    reading = await source.poll()

    lost = device(reading, UUIDS[1])
    assert (lost.name, lost.total_bytes, lost.processes) == ("NVIDIA L40S", None, ())
    assert lost.memory_reason == lost.processes_reason == reason(reading, UUIDS[1]) == Reason.DEVICE_LOST
    assert used(reading, UUIDS[0]) == {1200: 20 * GIB, 1201: 8 * GIB}
    assert [reason(reading, target) for target in ("driver", UUIDS[0], UUIDS[2])] == [None, None, None]

    machine.scenario(THREE_GPUS)
    reading = await source.poll()
    assert used(reading, UUIDS[1]) == {1300: 9 * GIB}


async def test_device_lost_before_the_first_poll(machine: Machine) -> None:
    """A device whose UUID nobody ever knew is told by its index."""
    machine.scenario(THREE_GPUS + "lost gpu=1\n")
    reading = await machine.source().poll()

    assert [device.uuid for device in reading.devices] == [UUIDS[0], UUIDS[2]]
    assert reason(reading, "index:1") == Reason.DEVICE_LOST
    assert reason(reading, "driver") is None


@pytest.mark.parametrize(
    "record, expected",
    [
        pytest.param("fail nvmlDevice* code=4 gpu=1", Reason.PERMISSION, id="no permission"),
        pytest.param("fail nvmlDevice* code=17 gpu=1", Reason.PERMISSION, id="a device cgroup"),
        pytest.param("fail nvmlDevice* code=8 gpu=1", Reason.UNREACHABLE, id="power cables"),
        pytest.param("fail nvmlDevice* code=27 gpu=1", Reason.LOADING, id="not ready"),
        pytest.param("fail nvmlDeviceGetUUID code=999 gpu=1", Reason.UNREACHABLE, id="no UUID"),
    ],
)
async def test_a_device_that_is_counted_and_cannot_be_read(
    machine: Machine, record: str, expected: Reason
) -> None:
    """GetCount counts it: it is told by its index, later by its UUID, while the others go on."""
    machine.scenario(THREE_GPUS + record + "\n")
    source = machine.source()
    reading = await source.poll()
    assert [device.uuid for device in reading.devices] == [UUIDS[0], UUIDS[2]]
    assert reason(reading, "index:1") == expected
    assert [reason(reading, target) for target in ("driver", UUIDS[0], UUIDS[2])] == [None] * 3

    machine.scenario(THREE_GPUS)
    assert used(await source.poll(), UUIDS[1]) == {1300: 9 * GIB}
    machine.scenario(THREE_GPUS + record + "\n")
    reading = await source.poll()
    assert reason(reading, UUIDS[1]) == device(reading, UUIDS[1]).memory_reason == expected
    assert used(reading, UUIDS[0]) == {1200: 20 * GIB, 1201: 8 * GIB}


async def test_device_disappears(machine: Machine) -> None:
    """A device that the driver lists no more stays `not_found`, also when others take its index."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    machine.scenario(
        f"gpu 0 uuid={UUIDS[1]} total=46068MiB used=10GiB\ngpu 1 uuid={UUIDS[2]} total=46068MiB used=0\n"
    )
    reading = await source.poll()

    assert {device.uuid for device in reading.devices} == set(UUIDS[:3])
    assert [reason(reading, uuid) for uuid in UUIDS[:3]] == [Reason.NOT_FOUND, None, None]
    assert len(reading.outcomes) == 4


@pytest.mark.parametrize("stride", [32, 16])
async def test_entries_of_another_size(machine: Machine, stride: int) -> None:
    """Process lists in another layout come with success: they are refused, the memory is kept."""
    machine.scenario(THREE_GPUS + f"stride {stride}\n")
    reading = await machine.source().poll()

    garbled = device(reading, UUIDS[0])
    assert (garbled.processes, garbled.processes_reason) == ((), Reason.IMPLAUSIBLE)
    assert garbled.used_bytes == 30 * GIB
    assert reason(reading, UUIDS[0]) == Reason.IMPLAUSIBLE
    assert used(reading, UUIDS[1]) == {1300: 9 * GIB}


async def test_implausible_memory(machine: Machine) -> None:
    """Memory whose parts do not make up the total is not shown."""
    machine.scenario("gpu 0 total=80GiB used=90GiB free=1GiB\n")
    reading = await machine.source().poll()

    garbled = device(reading, UUIDS[0])
    assert (garbled.total_bytes, garbled.used_bytes, garbled.free_bytes) == (None, None, None)
    assert garbled.memory_reason == reason(reading, UUIDS[0]) == Reason.IMPLAUSIBLE


V3 = tuple(f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute"))
V2 = tuple(name.replace("_v3", "_v2") for name in V3)


async def test_old_driver(machine: Machine) -> None:
    """Without the newer functions the older ones are asked: v1 memory, whose used includes reserved."""
    machine.scenario(THREE_GPUS)
    reading = await machine.source(hidden=("nvmlDeviceGetMemoryInfo_v2", *V3)).poll()

    first = device(reading, UUIDS[0])
    assert (first.memory_version, first.reserved_bytes) == (1, None)
    assert first.used_bytes == 30 * GIB + (500 << 20)
    assert used(reading, UUIDS[0]) == {1200: 20 * GIB, 1201: 8 * GIB}
    assert all(outcome.reason is None for outcome in reading.outcomes)


async def test_memory_of_another_version(machine: Machine) -> None:
    """A driver that refuses our memory structure is asked for the first one."""
    machine.scenario(ONE_GPU + "fail nvmlDeviceGetMemoryInfo_v2 code=25\n")
    reading = await machine.source().poll()

    assert device(reading, UUIDS[0]).memory_version == 1


async def test_no_process_lists_at_all(machine: Machine) -> None:
    """A driver without any process list gives no processes and says so."""
    machine.scenario(THREE_GPUS)
    reading = await machine.source(hidden=(*V3, *V2)).poll()

    assert device(reading, UUIDS[0]).processes_reason == Reason.NOT_SUPPORTED
    assert device(reading, UUIDS[0]).used_bytes == 30 * GIB


async def test_names_that_are_no_text(machine: Machine) -> None:
    """A name in broken UTF-8 costs the name only; a broken UUID costs the device."""
    machine.scenario("gpu 0 name=L\\xff40S total=8GiB used=1GiB\ngpu 1 uuid=GPU-\\xff total=8GiB used=1GiB\n")
    reading = await machine.source().poll()

    assert (device(reading, UUIDS[0]).name, reason(reading, UUIDS[0])) == (None, None)
    assert reason(reading, "index:1") == Reason.IMPLAUSIBLE
    assert len(reading.devices) == 1


async def test_same_uuid_twice(machine: Machine) -> None:
    """A second device of the same UUID is refused, the first one stays."""
    machine.scenario(f"gpu 0 total=8GiB used=1GiB\ngpu 1 uuid={UUIDS[0]} total=8GiB used=2GiB\n")
    reading = await machine.source().poll()

    assert device(reading, UUIDS[0]).used_bytes == GIB
    assert reason(reading, "index:1") == Reason.IMPLAUSIBLE


async def test_details_name_the_call(machine: Machine) -> None:
    """A detail says which call failed and with which code."""
    machine.scenario(ONE_GPU + "fail nvmlDeviceGetMemoryInfo* code=999\n")
    reading = await machine.source().poll()

    assert outcome(reading, UUIDS[0]).detail == "nvmlDeviceGetMemoryInfo: Unknown Error (999)"
