"""Each fault of the driver as `/metrics` shows it: one real daemon that lives through all of them."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.daemon import Series, parse, reason, value
from tests.nvml_standin.build import build, environment, write_scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1 << 20
GONE_PID = 4_100_000
"""A number that no process of a test machine has."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """All that the exposition says of one device, in MiB; what it does not say is not in here."""

    memory: dict[str, int] = field(default_factory=dict)
    processes: dict[str, int | None] = field(default_factory=dict)
    """By `first`, `second` or the number."""
    ledger: dict[str, int] = field(default_factory=dict)
    reason: str | None = None


A = Shown(
    memory={"total": 1000, "used": 700, "free": 280, "reserved": 20},
    processes={"first": 400, "second": 250},
    ledger={"other": 650, "unattributed": 50, "reserved": 20, "free": 280},
)
B = Shown(
    memory={"total": 1000, "used": 300, "free": 680, "reserved": 20},
    processes={"first": 200},
    ledger={"other": 200, "unattributed": 100, "reserved": 20, "free": 680},
)
C = Shown(
    memory={"total": 1000, "used": 0, "free": 980, "reserved": 20},
    ledger={"other": 0, "unattributed": 0, "reserved": 20, "free": 980},
)
CARD_A = "gpu 0 uuid=GPU-a name=A total=1000MiB reserved=20MiB used=700MiB mig=0"
FIRST = "proc gpu=0 pid={first} type=C used=400MiB"
SECOND = "proc gpu=0 pid={second} type=G used=250MiB"
HEALTHY = f"""
driver 570.172.08
{CARD_A}
{FIRST}
{SECOND}
gpu 1 uuid=GPU-b name=B total=1000MiB reserved=20MiB used=300MiB
proc gpu=1 pid={{first}} type=C used=200MiB
gpu 2 uuid=GPU-c name=C total=1000MiB reserved=20MiB used=0
"""
PARTLY = {"reserved": 20, "free": 280}


@dataclass
class Node:
    """A machine whose driver is the stand-in, and the daemon on it."""

    scenario: Path
    names: dict[str, int]
    url: str = ""

    def now(self, text: str) -> None:
        """Let the driver say something else."""
        for name, pid in self.names.items():
            text = text.replace(f"{{{name}}}", str(pid))
        write_scenario(self.scenario, text)

    def until(self, condition: Callable[[Series], bool]) -> Series:
        """Scrape until it is so, or for five seconds; return the last exposition."""
        until = time.monotonic() + 5
        while True:
            series = parse(httpx.get(self.url + "metrics", trust_env=False, verify=False).text)  # noqa: S501
            if condition(series) or time.monotonic() > until:
                return series
            time.sleep(0.05)

    def shown(self, series: Series, device: str) -> Shown:
        """Return what is said of a device."""
        pids = {str(pid): name for name, pid in self.names.items()}
        listed = [dict(labels) for labels in series.get("kvwatch_process_info", {})]
        return Shown(
            memory={
                part: int(number // MIB)
                for part in ("total", "used", "free", "reserved")
                if (number := value(series, f"device_memory_{part}_bytes", device=device)) is not None
            },
            processes={
                pids.get(labels["pid"], labels["pid"]): None if used is None else int(used // MIB)
                for labels in listed
                if labels["device"] == device
                for used in [value(series, "process_memory_bytes", device=device, pid=labels["pid"])]
            },
            ledger={
                dict(labels)["component"]: int(number // MIB)
                for labels, number in series.get("kvwatch_device_ledger_bytes", {}).items()
                if ("device", device) in labels
            },
            reason=reason(series, "nvml", device) if device_is_known(series, device) else None,
        )

    def all_shown(self, series: Series) -> tuple[Shown, ...]:
        """Return what is said of the three cards."""
        return tuple(self.shown(series, f"GPU-{letter}") for letter in "abc")


def device_is_known(series: Series, device: str) -> bool:
    """Tell whether a device was ever identified."""
    return value(series, "source_up", source="nvml", target=device) is not None


@pytest.fixture(scope="module")
def machine_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Return one machine with one daemon for all tests: every fault is followed by a recovery."""
    folder = tmp_path_factory.mktemp("node")
    sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    names = dict(zip(("first", "second"), (process.pid for process in sleepers), strict=True))
    node = Node(scenario=folder / "nvml.scenario", names=names)
    node.now(HEALTHY)
    configuration = folder / "kvwatch.yaml"
    configuration.write_text(
        "listen: 127.0.0.1:0\ninterval: 200ms\ndiscovery: false\nnvml: {enabled: true, deadline: 5s}\n"
    )
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "kvwatch", "run", "--config", str(configuration)],
            stderr=log,
            env=environment(build(), node.scenario),
        )
    until = time.monotonic() + 20
    while not node.url:
        assert time.monotonic() < until, (folder / "log").read_text()
        time.sleep(0.05)
        lines = (folder / "log").read_text().splitlines()
        node.url = next((line.split()[-1] for line in lines if "listens on" in line), "")
    yield node
    assert daemon.poll() is None, "it lived through all of them"
    daemon.terminate()
    assert daemon.wait(5) == 0
    for process in sleepers:
        process.kill()
        process.wait()


@pytest.fixture
def node(machine_of_the_module: Node) -> Iterator[Node]:
    """Return the machine in health, and see that it recovers when the test's fault goes."""
    node = machine_of_the_module
    for _ in ("before", "after"):
        node.now(HEALTHY)
        series = node.until(lambda series: node.all_shown(series) == (A, B, C))
        assert node.all_shown(series) == (A, B, C)
        assert reason(series, "nvml", "driver") is None
        if _ == "before":
            yield node


FAULTS = [
    pytest.param("lost gpu=0", Shown(reason="device_lost"), id="lost"),
    pytest.param("fail nvmlDevice* code=16 gpu=0", Shown(reason="device_lost"), id="reset required"),
    pytest.param("fail nvmlDevice* code=4 gpu=0", Shown(reason="permission"), id="no permission"),
    pytest.param(
        "fail nvmlDevice* code=17 gpu=0", Shown(reason="permission"), id="closed by a device cgroup"
    ),
    pytest.param("fail nvmlDevice* code=27 gpu=0", Shown(reason="loading"), id="not ready"),
    pytest.param("fail nvmlDevice* code=999 gpu=0", Shown(reason="unreachable"), id="unknown error"),
    pytest.param(
        "fail nvmlDeviceGetMemoryInfo* code=999 gpu=0",
        Shown(processes=A.processes, ledger={"other": 650}, reason="unreachable"),
        id="memory fails",
    ),
    pytest.param(
        "fail nvmlDeviceGetMemoryInfo* code=3 gpu=0",
        Shown(processes=A.processes, ledger={"other": 650}, reason="not_supported"),
        id="unified memory",
    ),
    pytest.param(
        "fail nvmlDeviceGetMemoryInfo_v2 code=13 gpu=0",
        replace(
            A,
            memory={"total": 1000, "used": 720, "free": 280},
            ledger={"other": 650, "unattributed": 70, "free": 280},
        ),
        id="only v1 memory",
    ),
    pytest.param(
        "fail nvmlDeviceGetComputeRunningProcesses_v3 code=999 gpu=0",
        replace(A, processes={"second": 250}, ledger=PARTLY, reason="unreachable"),
        id="compute list fails",
    ),
    pytest.param(
        "fail nvmlDeviceGetGraphicsRunningProcesses_v3 code=999 gpu=0",
        replace(A, processes={"first": 400}, ledger=PARTLY, reason="unreachable"),
        id="graphics list fails",
    ),
    pytest.param(
        "fail nvmlDeviceGetGraphicsRunningProcesses_v3 code=3 gpu=0",
        replace(
            A,
            processes={"first": 400},
            ledger={"other": 400, "unattributed": 300, "reserved": 20, "free": 280},
        ),
        id="no graphics list",
    ),
    pytest.param(
        "fail nvmlDeviceGet*RunningProcesses_v3 code=3 gpu=0\n"
        "fail nvmlDeviceGetComputeRunningProcesses_v3 code=3 gpu=0",
        replace(A, processes={"second": 250}, ledger=PARTLY, reason="not_supported"),
        id="no compute list",
    ),
    pytest.param(
        "fail nvmlDeviceGetMPSComputeRunningProcesses_v3 code=7 when=fill gpu=0\n"
        "proc gpu=0 pid={first} type=M used=1MiB",
        replace(A, ledger=PARTLY, reason="implausible"),
        id="a list never fits",
    ),
    pytest.param(
        "proc gpu=0 pid={second} type=C used=250MiB\nstride 32",
        replace(A, processes={}, ledger=PARTLY, reason="implausible"),
        id="wrong ABI",
    ),
    pytest.param("fail nvmlDeviceGetUUID code=999 gpu=0", Shown(reason="unreachable"), id="no UUID"),
    pytest.param(
        "fail nvmlDeviceGetMigMode code=999 gpu=0",
        replace(A, ledger=PARTLY, reason="unreachable"),
        id="MIG mode fails",
    ),
]


@pytest.mark.parametrize("record, expected", FAULTS)
def test_a_fault_of_one_device(node: Node, record: str, expected: Shown) -> None:
    """What failed is absent with its reason, what was read is there, and no other device blinks."""
    node.now(HEALTHY + record + "\n")
    series = node.until(lambda series: node.shown(series, "GPU-a") == expected)
    assert node.all_shown(series) == (expected, B, C)
    assert reason(series, "nvml", "driver") is None
    assert value(series, "device_info", device="GPU-a", index="0") == 1
    if expected.reason:
        own = {"source": "nvml", "target": "GPU-a"}
        counted = value(series, "source_failures_total", **own, reason=expected.reason)
        assert counted is not None
        assert counted >= 1
        assert value(series, "source_last_success_timestamp_seconds", **own) is not None


STATES = [
    pytest.param(
        (FIRST, FIRST.replace("400MiB", "na")),
        replace(A, processes={"first": None, "second": 250}, ledger=PARTLY),
        id="bytes are N/A",
    ),
    pytest.param(
        (f"{FIRST}\n{SECOND}", f"{FIRST.replace('400MiB', 'na')}\n{SECOND.replace('250MiB', 'na')}"),
        replace(A, processes={"first": None, "second": None}, ledger=PARTLY),
        id="WSL2: all bytes are N/A",
    ),
    pytest.param(
        (f"{FIRST}\n{SECOND}", ""),
        replace(A, processes={}, ledger={"other": 0, "unattributed": 700, "reserved": 20, "free": 280}),
        id="used, but nobody is listed",
    ),
    pytest.param(
        (FIRST, FIRST.replace("400MiB", "50MiB")),
        replace(
            A,
            processes={"first": 50, "second": 250},
            ledger={"other": 300, "unattributed": 400, "reserved": 20, "free": 280},
        ),
        id="managed memory",
    ),
    pytest.param(
        (FIRST, FIRST.replace("400MiB", "600MiB")),
        replace(
            A,
            processes={"first": 600, "second": 250},
            ledger={"other": 850, "reserved": 20, "free": 280},
        ),
        id="shared buffers count for both",
    ),
    pytest.param(
        (FIRST, FIRST.replace("{first}", str(GONE_PID))),
        replace(A, processes={str(GONE_PID): 400, "second": 250}),
        id="a process that has ended",
    ),
    pytest.param(
        (CARD_A, CARD_A.replace("used=700MiB", "used=1700MiB")),
        Shown(processes=A.processes, ledger={"other": 650}, reason="implausible"),
        id="more used than there is",
    ),
    pytest.param(
        (CARD_A, CARD_A + " free=900MiB"),
        Shown(processes=A.processes, ledger={"other": 650}, reason="implausible"),
        id="free is not what is left",
    ),
    pytest.param(
        (CARD_A, CARD_A.replace("total=1000MiB reserved=20MiB used=700MiB", "total=0 used=0")),
        Shown(processes=A.processes, ledger={"other": 650}, reason="implausible"),
        id="a success of zeros",
    ),
]


@pytest.mark.parametrize("change, expected", STATES)
def test_an_answer_that_must_not_be_misread(node: Node, change: tuple[str, str], expected: Shown) -> None:
    """The driver reports success; what it says is shown as it is, or refused, and never made up for."""
    assert change[0] in HEALTHY
    node.now(HEALTHY.replace(*change))
    series = node.until(lambda series: node.shown(series, "GPU-a") == expected)
    assert node.all_shown(series) == (expected, B, C)


@pytest.mark.parametrize(
    "code, expected",
    [
        pytest.param(4, "permission", id="no permission"),
        pytest.param(9, "driver_not_loaded", id="not loaded"),
        pytest.param(12, "library_not_found", id="no library"),
        pytest.param(18, "version_mismatch", id="another version"),
        pytest.param(999, "unreachable", id="a container that lost its devices"),
    ],
)
def test_a_fault_of_the_driver(node: Node, code: int, expected: str) -> None:
    """All devices keep their identity and lose every figure, with the driver's reason."""
    node.now(HEALTHY + f"fail nvmlInit* code={code}\nfail nvmlDeviceGetCount_v2 code={code}\n")
    series = node.until(lambda series: reason(series, "nvml", "driver") == expected)
    assert reason(series, "nvml", "driver") == expected
    assert node.all_shown(series) == (Shown(reason=expected),) * 3
    assert len(series["kvwatch_device_info"]) == 3
    assert value(series, "up") == 1


def test_no_gpu_at_all(node: Node) -> None:
    """A driver that counts none is up; the cards that were there are gone, and not merely silent."""
    node.now("driver 570.172.08\n")
    series = node.until(lambda series: reason(series, "nvml", "GPU-a") == "not_found")
    assert reason(series, "nvml", "driver") is None
    assert node.all_shown(series) == (Shown(reason="not_found"),) * 3


def test_a_card_that_is_pulled(node: Node) -> None:
    """Another card takes its index, none takes its place."""
    rest = HEALTHY.replace(CARD_A, "").replace(FIRST, "").replace(SECOND, "")
    node.now(rest.replace("gpu 1", "gpu 0").replace("gpu=1", "gpu=0").replace("gpu 2", "gpu 1"))
    series = node.until(lambda series: reason(series, "nvml", "GPU-a") == "not_found")
    assert node.all_shown(series) == (Shown(reason="not_found"), B, C)
    assert value(series, "device_info", device="GPU-b", index="0") == 1


MIG = """
gpu 0 uuid=GPU-a name=A total=1000MiB reserved=20MiB used=700MiB mig=1
mig gpu=0 slot=0 uuid=MIG-x name="A 3g" total=500MiB used=400MiB gi=1
mig gpu=0 slot=3 uuid=MIG-y name="A 1g" total=200MiB used=100MiB gi=5
proc gpu=0 slot=0 pid={first} type=C used=390MiB
proc gpu=0 slot=3 pid={second} type=C used=90MiB
"""


def test_mig_is_switched_on_changed_and_off(node: Node) -> None:
    """Instances come with a parent, sums over devices are true, and all is as before at the end."""
    rest = HEALTHY.replace(CARD_A, "").replace(FIRST, "").replace(SECOND, "")
    node.now(MIG + rest)
    x = Shown(
        memory={"total": 500, "used": 400, "free": 100, "reserved": 0},
        processes={"first": 390},
        ledger={"other": 390, "unattributed": 10, "reserved": 0, "free": 100},
    )
    series = node.until(lambda series: node.shown(series, "MIG-x") == x)
    assert node.all_shown(series) == (Shown(), B, C), "up, and nothing that its instances tell as well"
    assert node.shown(series, "MIG-x") == x
    assert node.shown(series, "MIG-y").processes == {"second": 90}
    assert value(series, "device_info", device="MIG-y", parent="GPU-a", index="0") == 1
    assert value(series, "device_info", device="GPU-a", parent="") == 1
    totals = series["kvwatch_device_memory_total_bytes"].values()
    assert sum(totals) == (500 + 200 + 1000 + 1000) * MIB
    first = [
        labels for labels in series["kvwatch_process_info"] if ("pid", str(node.names["first"])) in labels
    ]
    assert len(first) == 2, "on MIG-x and on GPU-b"

    node.now(MIG.replace("slot=3 uuid=MIG-y", "slot=1 uuid=MIG-z").replace("slot=3", "slot=1") + rest)
    series = node.until(lambda series: node.shown(series, "MIG-z").processes == {"second": 90})
    assert node.shown(series, "MIG-x") == x
    assert not device_is_known(series, "MIG-y")
    assert value(series, "device_info", device="MIG-y") is None

    node.now(HEALTHY)
    series = node.until(lambda series: node.shown(series, "GPU-a") == A)
    assert not device_is_known(series, "MIG-x")
    assert node.all_shown(series) == (A, B, C)


def test_compute_instances_that_share_memory(node: Node) -> None:
    """The memory of their GPU instance is there once, and no rest is reckoned from one's processes."""
    rest = HEALTHY.replace(CARD_A, "").replace(FIRST, "").replace(SECOND, "")
    node.now(MIG.replace("total=200MiB used=100MiB gi=5", "total=500MiB used=400MiB gi=1") + rest)
    series = node.until(lambda series: node.shown(series, "MIG-y").processes == {"second": 90})
    assert node.shown(series, "MIG-x") == Shown(
        memory={"total": 500, "used": 400, "free": 100, "reserved": 0},
        processes={"first": 390},
        ledger={"reserved": 0, "free": 100},
        reason="not_supported",
    )
    assert node.shown(series, "MIG-y") == Shown(processes={"second": 90}, reason="not_supported")
