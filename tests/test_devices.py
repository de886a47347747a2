"""Devices, processes and the ledger: real pynvml over the stand-in, real processes, the real daemon."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from kvwatch.wiring import Devices
from tests.daemon import Series, config, reason, running, value
from tests.nvml_standin.build import build, write_scenario
from tests.replay import CAPTURES, replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvwatch.config import Config

pytestmark = pytest.mark.anyio

MIB = 1 << 20
TINY_LLAMA = CAPTURES / "vllm" / "tiny-llama-config.json"
NVML = "{enabled: true, deadline: 1s}"


@pytest.fixture
def child() -> Iterator[int]:
    """Return the PID of a child of this process, which listens for the replayed server."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def stranger() -> Iterator[int]:
    """Return the PID of a process that is no relative of this one."""
    shell = subprocess.run(
        ["sh", "-c", "sleep 60 >&- 2>&- & echo $!"], capture_output=True, text=True, check=True
    )
    pid = int(shell.stdout)
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Return the scenario file of this test."""
    return tmp_path / "nvml.scn"


def standin(scenario: Path) -> Devices:
    """Return devices as the stand-in library states them."""
    return Devices(environment={"LD_LIBRARY_PATH": str(build()), "KVWATCH_NVML_SCENARIO": str(scenario)})


def two_cards(*processes: str) -> str:
    """Return a scenario of two cards of 1,000 MiB."""
    return (
        "gpu 0 uuid=GPU-a name=A total=1000MiB reserved=20MiB used=700MiB\n"
        "gpu 1 uuid=GPU-b name=B total=1000MiB reserved=20MiB used=0\n" + "\n".join(processes) + "\n"
    )


def watching(url: str, options: str = "") -> Config:
    """Return a configuration with devices and one server `s`."""
    return config(f"servers: [{{name: s, url: '{url}', engine: vllm, {options}}}]", nvml=NVML)


def ledger(series: Series, device: str) -> dict[tuple[str, str], float]:
    """Return a device's ledger in MiB: (server, component) -> MiB."""
    return {
        (dict(labels).get("server", ""), dict(labels)["component"]): number / MIB
        for labels, number in series.get("kvwatch_device_ledger_bytes", {}).items()
        if ("device", device) in labels
    }


async def test_the_ledger_of_a_card_adds_up_to_its_total(scenario: Path, child: int, stranger: int) -> None:
    """The server's engine is found as a descendant of its listener, its pool by the cost model."""
    write_scenario(
        scenario,
        two_cards(
            f"proc gpu=0 pid={child} type=C used=400MiB", f"proc gpu=0 pid={stranger} type=G used=250MiB"
        ),
    )
    async with (
        replaying(vllm_pages("draining")) as replay,
        running(watching(replay.url, f"model_config: {TINY_LLAMA}"), devices=standin(scenario)) as daemon,
    ):
        series = await daemon.until(lambda series: value(series, "process_info", pid=str(child)) == 1)
        pool = 100 * 32 * 1024 / MIB  # blocks x tokens x bytes: 4 layers x 2 heads x (32 + 32) x 2 bytes
        assert ledger(series, "GPU-a") == {
            ("s", "kv_cache"): pool,
            ("s", "weights_and_working"): 400 - pool,
            ("", "other"): 250,
            ("", "unattributed"): 50,
            ("", "reserved"): 20,
            ("", "free"): 280,
        }
        assert sum(ledger(series, "GPU-a").values()) == 1000
        assert ledger(series, "GPU-b") == {
            ("", "other"): 0,
            ("", "unattributed"): 0,
            ("", "reserved"): 20,
            ("", "free"): 980,
        }
        assert value(series, "process_info", pid=str(child), server="s", match="tree") == 1
        assert value(series, "process_info", pid=str(stranger), server="", match="none") == 1
        assert value(series, "server_device_memory_bytes", server="s", device="GPU-a") == 400 * MIB
        # The captured server's pin overrides its share, so it claims what it holds.
        assert value(series, "device_share_sum_ratio", device="GPU-a") == 0.4
        assert value(series, "device_share_sum_ratio", device="GPU-b") is None
        assert value(series, "device_share_limit_ratio", device="GPU-b") == 0.95


async def test_memory_that_is_not_available_makes_what_depends_on_it_unknown(
    scenario: Path, child: int, stranger: int
) -> None:
    """N/A bytes of one process are neither zero nor somebody else's."""
    write_scenario(
        scenario,
        two_cards(f"proc gpu=0 pid={child} type=C used=400MiB", f"proc gpu=0 pid={stranger} type=C used=na"),
    )
    async with (
        replaying(vllm_pages("draining")) as replay,
        running(watching(replay.url), devices=standin(scenario)) as daemon,
    ):
        series = await daemon.until(lambda series: value(series, "process_info", pid=str(child)) == 1)
        assert value(series, "process_memory_bytes", pid=str(stranger)) is None
        assert value(series, "process_info", pid=str(stranger)) == 1
        assert ledger(series, "GPU-a") == {
            ("s", "undivided"): 400,
            ("", "reserved"): 20,
            ("", "free"): 280,
        }


async def test_a_lost_device_and_a_hung_driver_cost_nothing_else(scenario: Path, child: int) -> None:
    """One device lost, then the whole driver hanging, then all well: the server's series never blink."""
    healthy = two_cards(f"proc gpu=0 pid={child} type=C used=400MiB")
    write_scenario(scenario, healthy)
    async with (
        replaying(vllm_pages("draining")) as replay,
        running(watching(replay.url), devices=standin(scenario)) as daemon,
    ):
        await daemon.until(lambda series: value(series, "device_memory_used_bytes", device="GPU-b") == 0)
        write_scenario(scenario, healthy + "lost gpu=1\n")
        series = await daemon.until(lambda series: reason(series, "nvml", "GPU-b") is not None)
        assert reason(series, "nvml", "GPU-b") == "device_lost"
        assert value(series, "device_memory_used_bytes", device="GPU-b") is None
        assert value(series, "device_memory_used_bytes", device="GPU-a") == 700 * MIB
        write_scenario(scenario, healthy + "delay * ms=forever\n")
        series = await daemon.until(lambda series: reason(series, "nvml", "GPU-a") == "timeout")
        assert value(series, "device_memory_used_bytes", device="GPU-a") is None
        assert value(series, "requests_running", server="s") == 2
        assert await daemon.text("/-/healthy") == "kvwatch is healthy.\n"
        write_scenario(scenario, healthy)
        await daemon.until(
            lambda series: (
                value(series, "device_memory_used_bytes", device="GPU-a") == 700 * MIB
                and reason(series, "nvml", "GPU-b") is None
            )
        )


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({"LD_LIBRARY_PATH": "/nowhere"}, "library_not_found"),
        ({"KVWATCH_NVML_SCENARIO": "/nowhere.scn"}, "driver_not_loaded"),
    ],
)
async def test_no_library_and_no_driver_are_told_apart(environment: dict[str, str], expected: str) -> None:
    """Both leave no device series, and each its own reason."""
    library = {"LD_LIBRARY_PATH": str(build())}
    async with (
        replaying(vllm_pages("idle")) as replay,
        running(watching(replay.url), devices=Devices(environment={**library, **environment})) as daemon,
    ):
        series = await daemon.until(lambda series: "kvwatch_requests_running" in series)
        assert reason(series, "nvml", "driver") == expected
        assert not any(name.startswith("kvwatch_device") for name in series)


async def test_a_driver_upgrade_heals_without_a_restart(scenario: Path, tmp_path: Path, child: int) -> None:
    """The library is replaced, the old one is refused, and a fresh child reads the new driver."""
    library = tmp_path / "lib"
    shutil.copytree(build(hidden=("nvmlDeviceGetMemoryInfo_v2",)), library)
    healthy = two_cards(f"proc gpu=0 pid={child} type=C used=400MiB")
    write_scenario(scenario, "driver 570.172.08\n" + healthy)
    devices = Devices(environment={"LD_LIBRARY_PATH": str(library), "KVWATCH_NVML_SCENARIO": str(scenario)})
    async with (
        replaying(vllm_pages("draining")) as replay,
        running(watching(replay.url), devices=devices) as daemon,
    ):
        series = await daemon.until(
            lambda series: value(series, "device_memory_used_bytes", device="GPU-a") == 720 * MIB
        )
        assert value(series, "device_memory_reserved_bytes", device="GPU-a") is None, "v1 memory"
        shutil.copy(build() / "libnvidia-ml.so.1", library / "new")
        (library / "new").replace(library / "libnvidia-ml.so.1")
        write_scenario(scenario, healthy + "doomed code=18\nfail nvmlDeviceGetCount_v2 code=18\n")
        series = await daemon.until(lambda series: reason(series, "nvml", "driver") == "version_mismatch")
        assert reason(series, "nvml", "GPU-a") == "version_mismatch"
        assert value(series, "device_memory_used_bytes", device="GPU-a") is None
        assert value(series, "requests_running", server="s") == 2
        write_scenario(scenario, "driver 580.65.06\n" + healthy)
        series = await daemon.until(
            lambda series: value(series, "device_memory_reserved_bytes", device="GPU-a") == 20 * MIB,
            seconds=20,
        )
        assert value(series, "device_info", device="GPU-a", driver="580.65.06") == 1
        assert value(series, "device_memory_used_bytes", device="GPU-a") == 700 * MIB
