"""Letting the driver go on request: nothing of it stays open, and it is taken up again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from kvwatch.readings import Reason
from tests.daemon import parse, reason, value
from tests.nvml_standin import machine as at
from tests.nvml_standin.build import build, write_scenario
from tests.nvml_standin.machine import THREE_GPUS, UUIDS, Machine, died, started, without_effect
from tests.replay import replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvwatch.readings import NvmlReading
    from kvwatch.sources.nvml import NvmlSource
    from tests.daemon import Series

pytestmark = pytest.mark.anyio
LIBRARY = "libnvidia-ml.so.1"
DEADLINE = 0.4


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return the file that stands for /dev/nvidia0."""
    path = tmp_path / "nvidia0"
    path.touch()
    return path


def holders(node: Path) -> list[int]:
    """Return every process that has the device open or the stand-in mapped, as `fuser` would."""
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            open_files = {os.readlink(link) for link in (process / "fd").iterdir()}  # noqa: PTH115 - deleted files
            mapped = (process / "maps").read_text()
            if str(node) in open_files or (str(node.parent) in mapped and LIBRARY in mapped):
                found.add(int(process.name))
    return sorted(found)


def own_library(folder: Path, *, hidden: tuple[str, ...] = ()) -> Path:
    """Return a folder of this test alone with the stand-in in it, so that its users can be told."""
    library = folder / "lib"
    library.mkdir(exist_ok=True)
    shutil.copy(build(hidden=hidden) / LIBRARY, library / "new")
    (library / "new").replace(library / LIBRARY)
    return library


def source_of(machine: Machine, node: Path, **settings: object) -> NvmlSource:
    """Return a source whose driver keeps the device open."""
    machine.scenario(THREE_GPUS + f"hold {node}\n")
    library = {"LD_LIBRARY_PATH": str(own_library(machine.folder))}
    return machine.source(env={**machine.environment(), **library}, **settings)


def reasons(reading: NvmlReading) -> set[Reason | None]:
    """Return the reasons of the driver and the three GPUs."""
    return {at.reason(reading, target) for target in ("driver", *UUIDS[:3])}


async def test_nothing_of_the_driver_stays_open(machine: Machine, node: Path) -> None:
    """The child ends; no process has the device or the library; every device says why it is not read."""
    source = source_of(machine, node)
    assert reasons(await source.poll()) == {None}
    assert holders(node) == list(source.child_pids)

    source.let_go(600)
    reading = await source.poll()
    assert (source.child_pids, holders(node)) == ((), [])
    assert reasons(reading) == {Reason.NOT_ENABLED}
    assert at.outcome(reading, "driver").detail == "let go; SIGUSR2 takes it up again, else it is in 600 s"
    assert all(device.used_bytes is None for device in reading.devices)
    for _ in range(3):
        await source.poll()
        assert holders(node) == []


async def test_it_is_taken_up_by_another_process(machine: Machine, node: Path) -> None:
    """On request, and by itself when the time is over; a second request starts the time anew."""
    source = source_of(machine, node)
    await source.poll()
    before = source.child_pids
    source.let_go(600)
    await source.poll()
    source.take_up()
    assert reasons(await source.poll()) == {None}
    assert source.child_pids != before
    assert holders(node) == list(source.child_pids)

    source.let_go(600)
    await source.poll()
    machine.clock.now += 400
    source.let_go(600)
    machine.clock.now += 599
    assert reasons(await source.poll()) == {Reason.NOT_ENABLED}
    machine.clock.now += 1
    assert reasons(await source.poll()) == {None}


async def test_it_is_let_go_before_the_first_poll(machine: Machine, node: Path) -> None:
    """A driver that was never asked is left alone as well."""
    source = source_of(machine, node)
    source.let_go(600)
    reading = await source.poll()

    assert [(outcome.target, outcome.reason) for outcome in reading.outcomes] == [
        ("driver", Reason.NOT_ENABLED)
    ]
    assert holders(node) == []


async def test_a_poll_that_runs_may_end_first(machine: Machine, node: Path) -> None:
    """A request in the midst of a poll takes nothing from it; the next one lets go."""
    source = source_of(machine, node)
    await source.poll()
    machine.scenario(THREE_GPUS + f"hold {node}\ndelay nvmlDeviceGetUUID ms=300 gpu=1 times=1\n")
    polling = asyncio.create_task(source.poll())
    await asyncio.sleep(0.1)
    source.let_go(600)
    assert reasons(await polling) == {None}
    assert reasons(await source.poll()) == {Reason.NOT_ENABLED}
    assert holders(node) == []


async def test_a_child_that_hangs_is_killed(machine: Machine, node: Path) -> None:
    """A hung call does not keep the driver: a reset is what it needs, and after it every GPU is asked."""
    source = source_of(machine, node, deadline_seconds=DEADLINE)
    await started(source)
    hang = "delay nvmlDeviceGetComputeRunningProcesses_v3 ms=forever gpu=1\n"
    machine.scenario(THREE_GPUS + f"hold {node}\n" + hang)
    assert at.reason(await source.poll(), UUIDS[1]) == Reason.TIMEOUT
    source.let_go(600)
    for _ in range(100):
        if reasons(await source.poll()) == {Reason.NOT_ENABLED}:
            break
        await asyncio.sleep(0.05)
    assert holders(node) == []

    machine.scenario(THREE_GPUS + f"hold {node}\n")
    source.take_up()
    assert reasons(await started(source)) == {None}, "GPU 1 is not left alone any longer"


async def test_a_child_that_cannot_be_killed_is_named(machine: Machine, node: Path) -> None:
    """While one hangs in an uninterruptible call, the driver is not let go, and kvwatch says so."""
    source = source_of(machine, node, deadline_seconds=DEADLINE, send_signal=without_effect)
    await started(source)
    (stuck,) = source.child_pids
    machine.scenario(THREE_GPUS + f"hold {node}\ndelay nvmlDeviceGetCount_v2 ms=forever\n")
    await source.poll()
    source.let_go(600)
    reading = await source.poll()
    assert reasons(reading) == {Reason.TIMEOUT}
    assert at.outcome(reading, "driver").detail.endswith(f"have not ended: {stuck}")
    assert holders(node) == [stuck]

    os.kill(stuck, signal.SIGKILL)
    await died(stuck)
    assert reasons(await source.poll()) == {Reason.NOT_ENABLED}


async def test_the_driver_is_replaced_meanwhile(machine: Machine, node: Path) -> None:
    """Unloaded, another library installed, loaded: what is taken up is the new one, with its functions."""
    library = own_library(machine.folder, hidden=("nvmlDeviceGetMemoryInfo_v2",))
    machine.scenario(THREE_GPUS)
    source = machine.source(env={**machine.environment(), "LD_LIBRARY_PATH": str(library)})
    assert at.device(await source.poll(), UUIDS[0]).memory_version == 1
    source.let_go(600)
    await source.poll()
    own_library(machine.folder)
    machine.scenario(THREE_GPUS.replace("570.172.08", "580.65.06"))
    source.take_up()
    reading = await source.poll()

    assert (at.device(reading, UUIDS[0]).memory_version, at.device(reading, UUIDS[0]).driver) == (
        2,
        "580.65.06",
    )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts `kvwatch run` over the stand-in, with a configuration."""
    processes: list[subprocess.Popen[str]] = []

    def start(configuration: str) -> subprocess.Popen[str]:
        (tmp_path / "kvwatch.yaml").write_text(configuration)
        environment = {
            "LD_LIBRARY_PATH": str(own_library(tmp_path)),
            "KVWATCH_NVML_SCENARIO": str(tmp_path / "nvml.scenario"),
        }
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "kvwatch", "run", "--config", str(tmp_path / "kvwatch.yaml")],
                stderr=log,
                text=True,
                env={**os.environ, **environment},
            )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


class Page:
    """The metrics of a daemon in another process, found by its log."""

    def __init__(self, log: Path) -> None:
        self.log = log

    async def until(self, condition: Callable[[Series], bool]) -> Series:
        """Scrape until a condition holds."""
        series: Series = {}
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - plain HTTP
            for _ in range(400):
                await asyncio.sleep(0.05)
                url = next((line.split()[-1] for line in self._lines() if "listens on" in line), None)
                if url is not None:
                    series = parse((await client.get(url + "metrics")).text)
                    if condition(series):
                        return series
        raise AssertionError((series, self._lines()))

    def _lines(self) -> list[str]:
        return self.log.read_text().splitlines()


async def test_signals_of_the_daemon(
    run: Callable[..., subprocess.Popen[str]], tmp_path: Path, node: Path
) -> None:
    """SIGUSR1 and SIGUSR2 work at once, whatever the interval; the servers are read as ever."""
    write_scenario(tmp_path / "nvml.scenario", THREE_GPUS + f"hold {node}\n")
    async with replaying(vllm_pages("draining")) as replay:
        daemon = run(
            "listen: 127.0.0.1:0\ninterval: 1h\ntypical_window: 2h\ndiscovery: false\n"
            "nvml: {enabled: true, deadline: 1m, let_go: 1h}\n"
            f"servers: [{{name: s, url: '{replay.url}', engine: vllm}}]\n"
        )
        page = Page(tmp_path / "log")
        await page.until(lambda series: value(series, "source_up", source="nvml", target=UUIDS[0]) == 1)
        (child,) = holders(node)
        assert child != daemon.pid

        daemon.send_signal(signal.SIGUSR1)
        series = await page.until(
            lambda series: value(series, "source_up", source="nvml", target="driver") == 0
        )
        assert holders(node) == []
        assert {reason(series, "nvml", target) for target in ("driver", *UUIDS[:3])} == {"not_enabled"}
        assert "kvwatch_device_memory_used_bytes" not in series
        assert "kvwatch_process_info" not in series
        assert len(series["kvwatch_device_info"]) == 3
        assert value(series, "requests_running", server="s") == 2

        write_scenario(tmp_path / "nvml.scenario", THREE_GPUS.replace("used=0", "used=1GiB"))
        daemon.send_signal(signal.SIGUSR2)
        series = await page.until(
            lambda series: value(series, "source_up", source="nvml", target="driver") == 1
        )
        assert value(series, "device_memory_used_bytes", device=UUIDS[2]) == 1 << 30
        text = (tmp_path / "log").read_text()
        assert "letting the driver go for 3600 s" in text
        daemon.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.wait, 5) == 0


async def test_the_daemon_takes_it_up_by_itself(
    run: Callable[..., subprocess.Popen[str]], tmp_path: Path, node: Path
) -> None:
    """Nobody who forgets the second signal is blind for longer than configured."""
    write_scenario(tmp_path / "nvml.scenario", THREE_GPUS + f"hold {node}\n")
    daemon = run(
        "listen: 127.0.0.1:0\ninterval: 200ms\ndiscovery: false\nnvml: {enabled: true, let_go: 1s}\n"
    )
    page = Page(tmp_path / "log")
    await page.until(lambda series: value(series, "source_up", source="nvml", target="driver") == 1)
    daemon.send_signal(signal.SIGUSR1)
    await page.until(lambda series: value(series, "source_up", source="nvml", target="driver") == 0)
    await page.until(lambda series: value(series, "source_up", source="nvml", target="driver") == 1)
    assert len(holders(node)) == 1


async def test_without_a_driver_the_signals_do_no_harm(
    run: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """With NVML switched off they are told to be without effect."""
    write_scenario(tmp_path / "nvml.scenario", THREE_GPUS)
    daemon = run("listen: 127.0.0.1:0\ninterval: 200ms\ndiscovery: false\nnvml: {enabled: false}\n")
    page = Page(tmp_path / "log")
    await page.until(lambda series: value(series, "up") == 1)
    daemon.send_signal(signal.SIGUSR1)
    daemon.send_signal(signal.SIGUSR2)
    await page.until(lambda _: "there is none to take up" in (tmp_path / "log").read_text())
    assert "there is none to let go" in (tmp_path / "log").read_text()
    assert daemon.poll() is None


async def test_signals_to_all_of_a_unit_spare_the_child(machine: Machine, node: Path) -> None:
    """`systemctl kill` without more reaches the child too: it leaves the answer to the daemon."""
    source = source_of(machine, node)
    await source.poll()
    (child,) = source.child_pids
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        os.kill(child, number)
    assert reasons(await source.poll()) == {None}
    assert source.child_pids == (child,)
