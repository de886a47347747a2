"""What the servers on a device claim of it, by share, by pin and by what they hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.engines import ADAPTERS
from kvwatch.join import Inputs, join
from kvwatch.readings import (
    DeviceReading,
    EngineReading,
    GpuProcess,
    Outcome,
    Page,
    ProcessIdentity,
    ProcessTable,
    RankReading,
    Reason,
    Source,
)
from kvwatch.snapshot import ClaimBasis, DeviceState
from kvwatch.target import Target
from tests.replay import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIB = 1 << 20
TOTAL = 46_068 * MIB
"""An L40S, as its driver states it."""


def reading(
    *,
    share: float | None = None,
    pin: int | None = None,
    ranks: int = 1,
    engine: str = "vllm",
    sleeping: bool = False,
    kept: bool = False,
) -> EngineReading:
    """Return a server's reading; a share is shown on its page as vLLM shows it."""
    return EngineReading(
        engine=engine,
        ranks=tuple(RankReading(rank=str(rank)) for rank in range(ranks)),
        share_ratio=share,
        pin_bytes=pin,
        sleeping=sleeping,
        memory_kept=kept if sleeping else True,
        settings=() if share is None else (("gpu_memory_utilization", str(share)),),
    )


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A server and what its processes hold: device index -> a figure for each process."""

    reading: EngineReading | None
    held: Mapping[int, Sequence[int | None]]
    share: float | None = None
    """As the configuration or the command line has it."""
    pin: int | None = None
    tensor: int | None = None


def devices_of(
    servers: Sequence[Placed],
    *,
    strangers: Sequence[int] = (),
    reasons: Mapping[int, Reason] | None = None,
    count: int = 1,
    total: int | None = TOTAL,
    lookups: Mapping[str, Reason] | None = None,
    awake: Mapping[str, Mapping[str, int]] | None = None,
) -> tuple[DeviceState, ...]:
    """Join servers s0, s1, ... on devices GPU-0, GPU-1, ...; strangers are on the first."""
    pid = 100
    listed: dict[int, list[GpuProcess]] = {index: [] for index in range(count)}
    processes: dict[int, ProcessIdentity] = {}
    listeners: dict[str, tuple[int, ...]] = {}
    for number, server in enumerate(servers):
        listener = pid = pid + 1
        processes[pid] = ProcessIdentity(pid=pid, start_ticks=1, parent_pid=1, name="vllm")
        if server.held:
            listeners[f"s{number}"] = (listener,)
        for index, figures in server.held.items():
            for used in figures:
                pid += 1
                processes[pid] = ProcessIdentity(pid=pid, start_ticks=1, parent_pid=listener, name="worker")
                listed[index].append(GpuProcess(pid=pid, used_bytes=used))
    for used in strangers:
        pid += 1
        processes[pid] = ProcessIdentity(pid=pid, start_ticks=1, parent_pid=1, name="python3")
        listed[0].append(GpuProcess(pid=pid, used_bytes=used))
    names = [f"s{number}" for number in range(len(servers))]
    return join(
        Inputs(
            targets=tuple(
                Target(
                    name=name, url=f"http://h:{port}", host="h", port=port, share_ratio=server.share,
                    pin_bytes=server.pin, tensor_parallel=server.tensor,
                )
                for port, (name, server) in enumerate(zip(names, servers, strict=True), start=1)
            ),
            engines={
                name: server.reading
                for name, server in zip(names, servers, strict=True)
                if server.reading is not None
            },
            models={},
            devices=tuple(
                DeviceReading(
                    uuid=f"GPU-{index}", index=index, name="card", driver="1", total_bytes=total,
                    processes=tuple(own), processes_reason=(reasons or {}).get(index),
                )
                for index, own in listed.items()
            ),
            processes=ProcessTable(
                processes=processes, listeners=listeners,
                outcomes=tuple(
                    Outcome(source=Source.PROCFS, target=name, reason=(lookups or {}).get(name))
                    for name in names
                ),
            ),
            awake_bytes=awake or {},
        )
    ).devices  # fmt: skip


# A known card: the chat server measured at 26,358 MiB, the pinned embedding server at 11,154 MiB.
CHAT = Placed(reading=reading(share=0.5722), held={0: [26_358 * MIB]})
EMBEDDING = Placed(reading=reading(pin=1761 * MIB), held={0: [11_154 * MIB]})
LLAMA = Placed(reading=reading(engine="llamacpp"), held={0: [4607 * MIB]})

SUMS: dict[str, tuple[tuple[DeviceState, ...], float | None]] = {
    "a share": (devices_of([CHAT]), 0.5722),
    "a share beside a pin, which claims what it holds": (
        devices_of([CHAT, EMBEDDING]), 0.5722 + 11_154 / 46_068),
    "a llama-server claims what it holds": (devices_of([CHAT, LLAMA]), 0.5722 + 4607 / 46_068),
    "a share and more held than it": (
        devices_of([replace(CHAT, held={0: [30_000 * MIB]})]), 30_000 / 46_068),
    "a share and less held than it": (devices_of([replace(CHAT, held={0: [1 * MIB]})]), 0.5722),
    "a share and N/A held": (devices_of([replace(CHAT, held={0: [None]})]), 0.5722),
    "a pin and N/A held": (devices_of([replace(EMBEDDING, held={0: [None]})]), None),
    "a share of which the page says that a block count overrides it": (
        devices_of([Placed(
            reading=replace(reading(), settings=(("gpu_memory_utilization", "0.92"),)),
            held={0: [20_000 * MIB]}, share=0.92,
        )]), 20_000 / 46_068),
    "a share that only the command line states": (
        devices_of([Placed(reading=reading(), held={0: [1]}, share=0.3)]), 0.3),
    "a share, and the server does not answer yet": (
        devices_of([Placed(reading=None, held={0: [1]}, share=0.3)]), 0.3),
    "a pin, and the server does not answer yet": (
        devices_of([CHAT, Placed(reading=None, held={0: [8 * MIB]}, pin=1761 * MIB)]), None),
    "no share is known, and the server does not answer": (
        devices_of([CHAT, Placed(reading=None, held={0: [8 * MIB]})]), None),
    "two ranks on one card": (
        devices_of([Placed(reading=reading(share=0.4, ranks=2), held={0: [1, 1]}, tensor=1)]), 0.8),
    "two ranks on one card, tensor_parallel not known": (
        devices_of([Placed(reading=reading(share=0.4, ranks=2), held={0: [1, 1]})]), 0.8),
    "two ranks on one card by a single process": (
        devices_of([Placed(reading=reading(share=0.4, ranks=2), held={0: [1]})]), 0.4),
    "one rank beside an API server with a context": (
        devices_of([Placed(reading=reading(share=0.4), held={0: [1, 1]}, tensor=1)]), 0.4),
    "three processes of two ranks on a card and on none other": (
        devices_of([Placed(reading=reading(share=0.3, ranks=2), held={0: [1, 1, 1]}, tensor=1)]), 0.6),
    "a rank of two workers of which one device is not seen": (
        devices_of([Placed(reading=reading(share=0.6), held={0: [1]}, tensor=2)]), 0.6),
    "two ranks of two workers, of which half are not seen": (
        devices_of([Placed(reading=reading(share=0.2, ranks=2), held={0: [1, 1]}, tensor=2)]), None),
    "a stranger claims nothing": (devices_of([CHAT], strangers=[9_000 * MIB]), 0.5722),
    "a stranger who may be a server's": (
        devices_of([CHAT, replace(EMBEDDING, held={})], strangers=[1], lookups={"s1": Reason.PERMISSION}),
        None),
    "the list of processes is cut": (devices_of([CHAT], reasons={0: Reason.PERMISSION}), None),
    "no server is on it": (devices_of([], strangers=[1]), None),
    "a pin, and the card's total is not known": (devices_of([EMBEDDING], total=None), None),
    "a paused server keeps its memory": (
        devices_of([replace(CHAT, reading=reading(share=0.5722, sleeping=True, kept=True))]), 0.5722),
    "a sleeper is counted apart": (
        devices_of([CHAT, Placed(reading=reading(share=0.5, sleeping=True), held={0: [900 * MIB]})]), 0.5722),
    "only sleepers": (devices_of([Placed(reading=reading(share=0.5, sleeping=True), held={0: [1]})]), 0.0),
}  # fmt: skip


@pytest.mark.parametrize("situation", SUMS)
def test_the_sum_of_shares_of_a_card(situation: str) -> None:
    """Known to the last byte, or absent."""
    states, expected = SUMS[situation]
    assert states[0].share_sum_ratio == (None if expected is None else pytest.approx(expected, abs=1e-12))


ASLEEP = reading(share=0.5, sleeping=True)
PINNED_ASLEEP = reading(pin=1761 * MIB, sleeping=True)
LLAMA_ASLEEP = reading(engine="llamacpp", sleeping=True)
BEFORE = {"s0": {"GPU-0": 11_154 * MIB}}
SLEEPERS: dict[str, tuple[tuple[DeviceState, ...], float | None]] = {
    "nobody sleeps": (devices_of([CHAT]), 0.0),
    "its share, whatever it holds now": (devices_of([Placed(reading=ASLEEP, held={0: [900 * MIB]})]), 0.5),
    "a pinned one: what it held when awake": (
        devices_of([Placed(reading=PINNED_ASLEEP, held={0: [900 * MIB]})], awake=BEFORE), 11_154 / 46_068),
    "a pinned one that was never seen awake": (
        devices_of([Placed(reading=PINNED_ASLEEP, held={0: [900 * MIB]})]), None),
    "a llama-server that holds nothing now": (
        devices_of([Placed(reading=LLAMA_ASLEEP, held={})], awake=BEFORE), 11_154 / 46_068),
    "a llama-server that never held this card": (
        devices_of([Placed(reading=LLAMA_ASLEEP, held={}), CHAT], awake={"s0": {}}), 0.0),
    "a llama-server of which nothing is known": (
        devices_of([Placed(reading=LLAMA_ASLEEP, held={}), CHAT]), None),
    "a paused one claims awake": (
        devices_of([Placed(reading=reading(share=0.5, sleeping=True, kept=True), held={0: [1]})]), 0.0),
    "the list of processes is cut": (
        devices_of([Placed(reading=ASLEEP, held={0: [1]})], reasons={0: Reason.PERMISSION}), None),
}  # fmt: skip


@pytest.mark.parametrize("situation", SLEEPERS)
def test_what_sleepers_would_claim_on_waking(situation: str) -> None:
    """Counted apart from the running ones; unknown where their waking memory is."""
    states, expected = SLEEPERS[situation]
    assert states[0].share_asleep_ratio == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_a_tensor_parallel_server_claims_on_each_of_its_devices() -> None:
    """And on no other; beyond its share only where it holds more."""
    states = devices_of(
        [Placed(reading=reading(share=0.6), held={0: [1], 1: [40_000 * MIB]}, tensor=2)], count=3
    )
    assert [state.share_sum_ratio for state in states] == [0.6, 40_000 / 46_068, None]
    assert [claim.basis for state in states for claim in state.claims] == [ClaimBasis.SHARE, ClaimBasis.HELD]


def test_ranks_side_by_side_on_two_cards() -> None:
    """Four ranks on two cards claim twice on each; three ranks on two cards cannot be placed."""
    four = devices_of([Placed(reading=reading(share=0.4, ranks=4), held={0: [1, 1], 1: [1, 1]})], count=2)
    assert [state.share_sum_ratio for state in four] == [0.8, 0.8]
    three = devices_of([Placed(reading=reading(share=0.4, ranks=3), held={0: [1, 1], 1: [1]})], count=2)
    assert [state.share_sum_ratio for state in three] == [None, 0.4]


def test_on_a_mig_instance_a_share_is_of_the_instance() -> None:
    """What a pinned server holds is divided by the instance's own total."""
    (state,) = devices_of([EMBEDDING], total=20_000 * MIB)
    assert state.share_sum_ratio == 11_154 / 20_000


def test_an_unknown_claim_is_named_with_its_reason() -> None:
    """Whose claim is missing can be said to a person."""
    (state,) = devices_of([CHAT, replace(EMBEDDING, held={0: [None]})])
    assert [(claim.server, claim.ratio, bool(claim.why)) for claim in state.claims] == [
        ("s0", 0.5722, False),
        ("s1", None, True),
    ]
    assert state.claims_complete


STATES = {
    "awake": (("1.0", "0.0", "0.0"), False, True),
    "paused: level 0": (("0.0", "0.0", "0.0"), True, True),
    "level 1: weights to host memory": (("0.0", "1.0", "0.0"), True, False),
    "level 2: all thrown away": (("0.0", "0.0", "1.0"), True, False),
}


@pytest.mark.parametrize("situation", STATES)
def test_vllm_says_whether_a_sleeper_has_kept_its_memory(situation: str) -> None:
    """Awake and the two ways of giving memory back are gauges of one family."""
    (awake, offloaded, discarded), sleeping, kept = STATES[situation]
    text = (CAPTURES / "vllm" / "0.32.0-asleep-level-0-three-running.metrics").read_text()
    for state, value in (("awake", awake), ("weights_offloaded", offloaded), ("discard_all", discarded)):
        text = re.sub(rf'(engine_sleep_state{{.*sleep_state="{state}"}}) \S+', rf"\1 {value}", text)
    found = ADAPTERS["vllm"].read({"/metrics": Page(path="/metrics", body=text, status=200)})
    assert (found.sleeping, found.memory_kept) == (sleeping, kept)


def test_a_vllm_without_the_gauge_says_neither() -> None:
    """Before 0.11.2 nobody can tell a sleeper by its page."""
    text = (CAPTURES / "vllm" / "0.32.0-idle.metrics").read_text()
    older = "".join(line for line in text.splitlines(keepends=True) if "engine_sleep_state" not in line)
    found = ADAPTERS["vllm"].read({"/metrics": Page(path="/metrics", body=older, status=200)})
    assert (found.sleeping, found.memory_kept) == (None, None)
