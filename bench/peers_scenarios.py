"""What the driver says while the peers are compared; `{a}`, `{b}` are living processes, `{gone}` is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CARD = 'gpu {index} name="NVIDIA L40S" total=46068MiB reserved=500MiB used={used}'
TWO = (
    "driver 570.172.08\n"
    + CARD.format(index=0, used="30GiB")
    + "\n"
    + CARD.format(index=1, used="10GiB")
    + "\nproc gpu=0 pid={a} type=C used=20GiB\nproc gpu=0 pid={b} type=C used=8GiB\n"
    + "proc gpu=1 pid={a} type=C used=9GiB\n"
)
MIG = (
    'driver 570.172.08\ngpu 0 name="NVIDIA A100" total=80GiB reserved=1GiB used=30GiB mig=1\n'
    "mig gpu=0 slot=0 total=40GiB used=20GiB gi=1 ci=0\n"
    "mig gpu=0 slot=1 total=20GiB used=9GiB gi=5 ci=0\n"
    "proc gpu=0 slot=0 pid={a} type=C used=19GiB\nproc gpu=0 slot=1 pid={b} type=C used=8GiB\n"
    + CARD.format(index=1, used="10GiB")
    + "\nproc gpu=1 pid={a} type=C used=9GiB\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A state of the driver."""

    name: str
    text: str
    hidden: tuple[str, ...] = ()
    """Functions that this driver lacks."""
    explained: Mapping[str, str] | None = None
    """Program -> why it differs from kvwatch here; nothing else may differ."""


PEERS = ("nvitop", "gpustat", "nvitop-exporter")
MISREAD = "the peer shows the misread list of an early R535 driver, kvwatch refuses it as implausible"
UNIFIED = (
    "the peer shows the machine's RAM for the card's memory, kvwatch nothing that the driver did not say"
)
DIVIDED = "kvwatch tells the divided GPU's memory and processes by instance only, so that sums are true"
SCENARIOS = (
    Scenario(name="healthy, nothing runs", text=TWO.partition("proc")[0]),
    Scenario(name="two processes on one card", text=TWO),
    Scenario(
        name="a process that computes and draws",
        text=TWO.replace("pid={b} type=C", "pid={b} type=CG"),
    ),
    Scenario(
        name="a process that has ended",
        text=TWO.replace("pid={b}", "pid={gone}"),
    ),
    Scenario(name="bytes of a process are N/A", text=TWO.replace("used=8GiB", "used=na")),
    Scenario(
        name="the compute list of one card fails",
        text=TWO + "fail nvmlDeviceGetComputeRunningProcesses* code=999 gpu=0\n",
    ),
    Scenario(
        name="the memory of one card fails", text=TWO + "fail nvmlDeviceGetMemoryInfo* code=999 gpu=0\n"
    ),
    Scenario(
        name="a unified-memory part",
        text=TWO + "fail nvmlDeviceGetMemoryInfo* code=3 gpu=0\n",
        explained=dict.fromkeys(("nvitop", "nvitop-exporter"), UNIFIED),
    ),
    Scenario(name="one card is lost", text=TWO + "lost gpu=0\n"),
    Scenario(name="a driver with v1 memory only", text=TWO, hidden=("nvmlDeviceGetMemoryInfo_v2",)),
    Scenario(
        name="MIG, two instances",
        text=MIG,
        explained=dict.fromkeys(PEERS, DIVIDED),
    ),
    Scenario(
        name="MIG, a free slot between them",
        text=MIG.replace("slot=1", "slot=2"),
        explained=dict.fromkeys(PEERS, DIVIDED),
    ),
    Scenario(
        name="process lists in another layout",
        text=TWO + "stride 32\n",
        explained=dict.fromkeys(PEERS, MISREAD),
    ),
)
