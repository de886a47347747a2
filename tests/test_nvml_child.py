"""The NVML child as a process: what it inherits, how it ends, and children that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvwatch.readings import Reason
from kvwatch.sources.nvml import NvmlSource
from kvwatch.sources.nvml_process import child_command
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
    without_effect,
)

pytestmark = pytest.mark.anyio
HANG = "delay nvmlDeviceGetCount_v2 ms=forever\n"


def descriptors(pid: int) -> dict[str, str]:
    """Return what a process's descriptors point to."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = str(path.readlink())
    return found


async def test_child_inherits_nothing(machine: Machine) -> None:
    """The child has a session of its own and no descriptor of the daemon, not even an inheritable one."""
    machine.scenario(THREE_GPUS)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)  # noqa: FBT003
    source = machine.source()
    await source.poll()
    (pid,) = source.child_pids
    targets = descriptors(pid).values()

    assert os.getsid(pid) == pid
    assert descriptors(os.getpid())[str(writer)] not in targets
    assert all(target.startswith("pipe:") for target in targets)
    os.close(reader)
    os.close(writer)


async def test_child_ignores_interrupts(machine: Machine) -> None:
    """Ctrl-C is the daemon's to handle: the child goes on."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    (pid,) = source.child_pids
    os.kill(pid, signal.SIGINT)
    await source.poll()

    assert source.child_pids == (pid,)


PARENT = """
import asyncio, sys, time
from kvwatch.sources.nvml import NvmlSource

async def main():
    source = NvmlSource(deadline_seconds=5)
    await source.poll()
    print(*source.child_pids, flush=True)
    await source.poll()

asyncio.run(main())
"""


async def test_child_ends_with_its_parent(machine: Machine) -> None:
    """A daemon that is killed leaves no child behind, not even one that hangs."""
    machine.scenario(THREE_GPUS + HANG.replace("forever", "forever after=1"))
    root = str(Path(__file__).parents[1])
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", PARENT],
        env={**machine.environment(), "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        await asyncio.sleep(0.2)
        parent.kill()
    await died(pid)


async def test_chatty_library(machine: Machine) -> None:
    """What a library prints does not get between the answers, and is kept for the details."""
    machine.scenario(THREE_GPUS + 'print "{not json"\ndelay nvmlDeviceGetCount_v2 ms=forever after=1\n')
    source = machine.source(deadline_seconds=0.4)
    assert reason(await started(source), UUIDS[0]) is None
    reading = await source.poll()

    assert reason(reading, "driver") == Reason.TIMEOUT
    assert outcome(reading, "driver").detail.endswith("{not json")


async def test_close(machine: Machine) -> None:
    """Closing ends the child in order and at once; a closed source asks nothing more."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    (pid,) = source.child_pids
    began = time.monotonic()
    await source.close()
    assert time.monotonic() - began < 1
    await died(pid)
    reading = await source.poll()

    assert source.child_pids == ()
    assert reason(reading, "driver") == reason(reading, UUIDS[0]) == Reason.NOT_ENABLED


@pytest.mark.parametrize("killable", [True, False])
async def test_close_while_it_hangs(machine: Machine, *, killable: bool) -> None:
    """Closing takes less than two seconds while a call hangs, also where SIGKILL does nothing."""
    machine.scenario(THREE_GPUS)
    source = machine.source(send_signal=os.kill if killable else without_effect)
    await source.poll()
    (pid,) = source.child_pids
    machine.scenario(THREE_GPUS + HANG)
    polling = asyncio.create_task(source.poll())
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await source.close()
    assert time.monotonic() - began < 2
    assert reason(await polling, "driver") is not None
    assert time.monotonic() - began < 2

    if not killable:
        assert source.child_pids == (pid,)
        os.kill(pid, signal.SIGKILL)
        await died(pid)
        await source.close()
    await died(pid)


VALID = '{"poll": 1, "opening": 0}'
DRIVER = '{"poll": 1, "driver": {"version": "1", "count": 0}}'


@pytest.mark.parametrize(
    "program, expected, detail",
    [
        pytest.param(
            "while True: print('x' * 65536, end='')", Reason.TOO_LARGE, "more than", id="endless line"
        ),
        pytest.param(f"while True: print('{VALID}')", Reason.TOO_LARGE, "more than", id="endless lines"),
        pytest.param("while True: print('<html>')", Reason.PARSE_ERROR, "<html>", id="no JSON"),
        pytest.param(f"print('{DRIVER}'); print('<html>')", Reason.PARSE_ERROR, "<html>", id="ends badly"),
        pytest.param(f"print('{DRIVER}'); time.sleep(60)", Reason.TIMEOUT, "has not answered", id="no end"),
        pytest.param("print('[]')", Reason.PARSE_ERROR, "[]", id="no object"),
        pytest.param("print('{\"poll\": 1}')", Reason.PARSE_ERROR, "KeyError", id="no answer in it"),
        pytest.param("print('[' * 100000)", Reason.PARSE_ERROR, "RecursionError", id="nested too deep"),
        pytest.param(
            'print(\'{"poll": 1, "driver": {"version": "1", "count": 4294967295}}\')',
            Reason.IMPLAUSIBLE,
            "4294967295 GPUs",
            id="impossible count",
        ),
        pytest.param(
            "sys.exit('no pynvml')", Reason.INTERNAL_ERROR, "status 1: no pynvml", id="ends at once"
        ),
        pytest.param(
            "os.write(2, b'x' * 10**6 + b'the end'); os.abort()", Reason.UNREACHABLE, "the end", id="aborts"
        ),
        pytest.param("os.close(1); time.sleep(60)", Reason.INTERNAL_ERROR, "closed its output", id="closes"),
        pytest.param("os.close(0); time.sleep(60)", Reason.TIMEOUT, "has not answered", id="does not listen"),
        pytest.param("time.sleep(60)", Reason.TIMEOUT, "has not answered", id="says nothing"),
    ],
)
async def test_children_that_misbehave(machine: Machine, program: str, expected: Reason, detail: str) -> None:
    """Whatever a child does, the poll ends in time with a reason."""
    source = machine.source(
        deadline_seconds=1 if expected == Reason.TIMEOUT else 10,
        start_seconds=0.5,
        command=[sys.executable, "-uSc", f"import os, sys, time\nsys.stdin.readline()\n{program}"],
    )
    began = time.monotonic()
    reading = await source.poll()
    assert time.monotonic() - began < 5
    assert reason(reading, "driver") == expected
    assert detail in outcome(reading, "driver").detail
    assert reading.devices == ()


async def test_restarts_back_off(machine: Machine) -> None:
    """A child that ends at once is started twice, then after 5 s, 10 s and so on."""
    count = machine.folder / "starts"
    program = f"open({str(count)!r}, 'a').write('x'); raise SystemExit('broken')"
    source = machine.source(command=[sys.executable, "-Sc", program])

    async def starts_after(seconds: float) -> int:
        machine.clock.now += seconds
        reading = await source.poll()
        assert reason(reading, "driver") in {Reason.INTERNAL_ERROR, Reason.UNREACHABLE}
        assert "broken" in outcome(reading, "driver").detail
        return len(count.read_text())

    assert [await starts_after(s) for s in (0, 0, 0, 4, 1, 0, 9, 1, 19, 1)] == [1, 2, 2, 2, 3, 3, 3, 4, 4, 5]


async def test_no_program() -> None:
    """A child that cannot be started is an outcome, not an exception."""
    source = NvmlSource(deadline_seconds=1, command=["/nonexistent/kvwatch-nvml"])
    reading = await source.poll()
    await source.close()

    assert reason(reading, "driver") == Reason.INTERNAL_ERROR
    assert "/nonexistent/kvwatch-nvml" in outcome(reading, "driver").detail


MODULE = f"""
from types import SimpleNamespace as Record
nvmlMemory_v2 = 2
class Error(Exception):
    value = 999
def nvmlInit(): pass
nvmlShutdown = nvmlInit
def nvmlSystemGetDriverVersion(): return "simulated"
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return {UUIDS[0]!r}
def nvmlDeviceGetName(handle): return b"simulated"
def nvmlDeviceGetMemoryInfo(handle, version=None):
    return Record(total=4 << 30, reserved=0, used=1 << 30, free=3 << 30)
def nvmlDeviceGetComputeRunningProcesses_v3(handle): return [Record(pid=7, usedGpuMemory=1 << 30)]
def nvmlDeviceGetGraphicsRunningProcesses_v3(handle): return []
def nvmlDeviceGetMPSComputeRunningProcesses_v3(handle): raise Error("simulated")
"""


async def test_another_module(machine: Machine) -> None:
    """A module with pynvml's functions takes its place, and need not have those for MIG."""
    (machine.folder / "simulated_gpus.py").write_text(MODULE)
    source = machine.source(
        command=child_command("simulated_gpus"), env={**os.environ, "PYTHONPATH": str(machine.folder)}
    )
    reading = await source.poll()

    simulated = device(reading, UUIDS[0])
    assert (simulated.name, simulated.driver, simulated.used_bytes) == ("simulated", "simulated", GIB)
    assert [process.pid for process in simulated.processes] == [7]
    assert simulated.processes_reason == Reason.UNREACHABLE


async def test_cancelled_poll(machine: Machine) -> None:
    """A poll that was cancelled does not spoil the next one."""
    machine.scenario(THREE_GPUS)
    source = machine.source()
    await source.poll()
    machine.scenario(THREE_GPUS + "delay nvmlDeviceGetUUID ms=300 gpu=1 times=1\n")
    polling = asyncio.create_task(source.poll())
    await asyncio.sleep(0.1)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    machine.scenario(THREE_GPUS.replace("used=0", "used=2GiB"))
    reading = await source.poll()

    assert [outcome.reason for outcome in reading.outcomes] == [None] * 4
    assert device(reading, UUIDS[2]).used_bytes == 2 * GIB
