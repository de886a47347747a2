"""The join: devices, processes, engines and model files as one picture."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.cost.hf import read_hf_config
from kvwatch.join import Inputs, Joined, join
from kvwatch.plan import Model
from kvwatch.readings import (
    DeviceReading,
    EngineReading,
    GpuProcess,
    Outcome,
    ProcessIdentity,
    ProcessTable,
    RankReading,
    Reason,
    SlotPool,
    Source,
    SourceError,
)
from kvwatch.snapshot import Component, Match
from kvwatch.target import Target
from tests.replay import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GIB = 1 << 30
CHAT = Target(name="chat", url="http://127.0.0.1:8000", host="127.0.0.1", port=8000)
EMBED = replace(CHAT, name="embed", url="http://127.0.0.1:8001", port=8001)
# 4 layers x 2 heads x (32 + 32) x 2 bytes x 32 tokens
BLOCK_BYTES = 32 * 1024
MODEL = Model(
    spec=read_hf_config(json.loads((CAPTURES / "vllm" / "tiny-llama-config.json").read_text())), hash="abc"
)
RANK = RankReading(
    rank="0", num_blocks=100, block_size=32, max_concurrency=3.125, usage_ratio=0.0, running=0,
    waiting={"capacity": 0, "deferred": 0},
)  # fmt: skip
READING = EngineReading(
    engine="vllm", ranks=(RANK,), version="0.32.0", full_length_tokens=1024, cost_rules="vllm",
    release=(0, 32, 0), cache_dtype="auto", settings=(("block_size", "32"),),
)  # fmt: skip


def device(*processes: tuple[int, int | None], uuid: str = "GPU-0", **more: Any) -> DeviceReading:
    """Return a device of 10 GiB of which 6 are used, with (PID, bytes)."""
    return DeviceReading(
        uuid=uuid, index=0, name="card", driver="1", total_bytes=10 * GIB, used_bytes=6 * GIB,
        free_bytes=4 * GIB, processes=tuple(GpuProcess(pid=pid, used_bytes=used) for pid, used in processes),
        **more,
    )  # fmt: skip


def processes(
    listeners: Mapping[str, tuple[int, ...]], *, parents: Mapping[int, int] | None = None, down: bool = False
) -> ProcessTable:
    """Return a table; processes 10 to 14, and a reason for each server that has no listener."""
    return ProcessTable(
        processes={
            pid: ProcessIdentity(
                pid=pid, start_ticks=pid, parent_pid=(parents or {}).get(pid, 1), name=f"p{pid}",
                started_at=1000.0 + pid,
            )
            for pid in range(10, 15)
        },
        listeners=listeners,
        outcomes=tuple(
            Outcome(source=Source.PROCFS, target=name, reason=Reason.PERMISSION if down else None)
            for name in ("chat", "embed")
        ),
    )  # fmt: skip


def picture(
    *devices: DeviceReading,
    targets: Sequence[Target] = (replace(CHAT, tensor_parallel=1),),
    engines: Mapping[str, EngineReading] | None = None,
    model: Model | SourceError | None = None,
    table: ProcessTable | None = None,
) -> Joined:
    """Join; by default one answering server and no model file."""
    return join(
        Inputs(
            targets=targets,
            engines={"chat": READING} if engines is None else engines,
            models={} if model is None else {"chat": model},
            devices=devices,
            processes=table or processes({"chat": (10,)}),
        )
    )


def parts(joined: Joined, index: int = 0) -> dict[tuple[str, str], int]:
    """Return a device's ledger."""
    return {(part.component, part.server): part.bytes for part in joined.devices[index].ledger}


def test_a_servers_memory_is_its_processes_on_each_device() -> None:
    """Listener and worker are summed; a stranger's process is other, the rest unattributed."""
    joined = picture(
        device((10, GIB), (11, 2 * GIB), (14, GIB)),
        device((12, 3 * GIB), uuid="GPU-1"),
        model=MODEL,
        table=processes({"chat": (10,)}, parents={11: 10, 12: 11}),
    )
    (server,) = joined.servers
    assert server.device_bytes == {"GPU-0": 3 * GIB, "GPU-1": 3 * GIB}
    kv = 100 * BLOCK_BYTES
    assert parts(joined) == {
        (Component.KV_CACHE, "chat"): kv,
        (Component.WEIGHTS_AND_WORKING, "chat"): 3 * GIB - kv,
        (Component.OTHER, ""): GIB,
        (Component.UNATTRIBUTED, ""): 2 * GIB,
        (Component.FREE, ""): 4 * GIB,
    }
    assert sum(parts(joined).values()) == 10 * GIB
    assert [(process.pid, process.server, process.match, process.name) for process in joined.processes] == [
        (10, "chat", Match.PORT, "p10"),
        (11, "chat", Match.TREE, "p11"),
        (14, None, Match.NONE, "p14"),
        (12, "chat", Match.TREE, "p12"),
    ]


@pytest.mark.parametrize(
    "joined, missing",
    [
        (picture(device((10, None), (14, GIB))), {Component.UNDIVIDED, Component.UNATTRIBUTED}),
        (picture(device((10, GIB), (14, None))), {Component.OTHER, Component.UNATTRIBUTED}),
        (
            picture(device((10, GIB), processes_reason=Reason.NOT_SUPPORTED)),
            {Component.UNDIVIDED, Component.OTHER, Component.UNATTRIBUTED},
        ),
        (
            picture(device((14, GIB)), table=processes({}, down=True)),
            {Component.UNDIVIDED, Component.OTHER, Component.UNATTRIBUTED},
        ),
    ],
    ids=["a server's is N/A", "a stranger's is N/A", "the list is incomplete", "nobody's owner is known"],
)
def test_what_cannot_be_known_is_left_out_with_what_depends_on_it(
    joined: Joined, missing: set[Component]
) -> None:
    """An N/A is no zero, and a process whose owner may be a watched server is not other."""
    present = {part.component for part in joined.devices[0].ledger}
    expected = {Component.UNDIVIDED, Component.OTHER, Component.UNATTRIBUTED, Component.FREE}
    assert present == expected - missing


BYTES: dict[str, tuple[Joined, bool]] = {
    "tensor_parallel is configured": (picture(model=MODEL), True),
    "one device, one rank": (picture(device((10, GIB)), targets=(CHAT,), model=MODEL), True),
    "two devices, one rank: divided or not?": (
        picture(device((10, GIB)), device((10, GIB), uuid="GPU-1"), targets=(CHAT,), model=MODEL), False),
    "no device is seen": (picture(targets=(CHAT,), model=MODEL), False),
    "a pipeline": (
        picture(targets=(replace(CHAT, tensor_parallel=1, pipeline_parallel=2),), model=MODEL), False),
    "no model file": (picture(), False),
}  # fmt: skip


@pytest.mark.parametrize("situation", BYTES)
def test_bytes_are_known_where_the_ranks_that_divide_the_model_are(situation: str) -> None:
    """Configured, or one device for each rank; never assumed."""
    joined, known = BYTES[situation]
    (server,) = joined.servers
    assert server.bytes_per_block == (BLOCK_BYTES if known else None)
    assert server.ranks[0].capacity_bytes == (99 * BLOCK_BYTES if known else None)
    assert bool(server.groups) == known
    assert (server.minimum_kv_bytes is not None) == known
    assert server.ranks[0].full is not None
    assert server.ranks[0].full.empty == 3


def test_the_cost_model_is_checked_against_the_engine() -> None:
    """The error is there wherever both are, and only there."""
    assert picture(model=MODEL).servers[0].model_error_ratio == 0
    assert picture().servers[0].model_error_ratio is None
    old = replace(READING, ranks=(replace(RANK, max_concurrency=None),))
    assert picture(model=MODEL, engines={"chat": old}).servers[0].model_error_ratio is None
    halved = replace(READING, ranks=(replace(RANK, max_concurrency=100 / 64),))
    assert picture(model=MODEL, engines={"chat": halved}).servers[0].model_error_ratio == -0.5


def outcome(joined: Joined) -> Reason | None:
    """Return why the only server's static facts are not known."""
    (found,) = joined.outcomes
    assert (found.source, found.target) == (Source.MODEL, "chat")
    assert (found.reason is None) or found.detail
    return found.reason


LLAMA = EngineReading(
    engine="llamacpp",
    full_length_tokens=2048,
    ranks=(
        RankReading(
            rank="0", running=0, waiting={"deferred": 0},
            slots=SlotPool(total_slots=4, slot_limit_tokens=2048, busy_slots=0),
        ),
    ),
)  # fmt: skip
NO_POOL = replace(READING, ranks=(replace(RANK, num_blocks=None),))
OUTCOMES = {
    "all known": (picture(model=MODEL), None),
    "no model file is configured": (picture(), Reason.NOT_ENABLED),
    "the model file is unknown": (
        picture(model=SourceError(Reason.UNKNOWN_ARCHITECTURE, "Foo")), Reason.UNKNOWN_ARCHITECTURE),
    "the model file is gone, and so is the server": (
        picture(model=SourceError(Reason.NOT_FOUND, "gone"), engines={}), Reason.NOT_FOUND),
    "the server is gone, its file is there": (picture(model=MODEL, engines={}), None),
    "the pool is not stated": (picture(engines={"chat": NO_POOL}), Reason.UNKNOWN_POOL),
    "a llama-server whose pool nobody states": (picture(engines={"chat": LLAMA}), Reason.UNKNOWN_POOL),
    "a config.json for a llama-server": (
        picture(model=MODEL, engines={"chat": LLAMA}), Reason.NOT_SUPPORTED),
}  # fmt: skip


@pytest.mark.parametrize("situation", OUTCOMES)
def test_why_a_servers_static_facts_are_not_known(situation: str) -> None:
    """Each has its own reason, and words for a person."""
    joined, reason = OUTCOMES[situation]
    assert outcome(joined) is reason


def test_a_server_that_does_not_answer_keeps_its_place_and_its_memory() -> None:
    """What NVML and /proc know of it stays known."""
    (server,) = picture(device((10, GIB)), engines={}).servers
    assert (server.reading, server.ranks, server.fingerprint) == (None, (), None)
    assert (server.device_bytes, server.started_at) == ({"GPU-0": GIB}, 1010.0)


def test_the_pages_word_goes_before_the_configurations() -> None:
    """Configuration fills what the page leaves out; "auto" is no dtype."""
    target = replace(CHAT, full_length_tokens=512, cache_dtype="fp8")
    (server,) = picture(targets=(target,)).servers
    assert (server.full_length_tokens, server.cache_dtype) == (1024, "fp8")
    silent = replace(READING, full_length_tokens=None, cache_dtype="bfloat16")
    (server,) = picture(targets=(target,), engines={"chat": silent}).servers
    assert (server.full_length_tokens, server.cache_dtype) == (512, "bfloat16")


def test_two_servers_share_a_device_and_one_with_neither_stays_apart() -> None:
    """Each process is charged once."""
    joined = picture(
        device((10, GIB), (11, 2 * GIB)),
        targets=(CHAT, EMBED),
        engines={"chat": READING},
        table=processes({"chat": (10,), "embed": (11,)}),
    )
    assert [server.device_bytes for server in joined.servers] == [{"GPU-0": GIB}, {"GPU-0": 2 * GIB}]
    assert parts(joined)[Component.OTHER, ""] == 0
    assert parts(joined)[Component.UNATTRIBUTED, ""] == 3 * GIB


def test_each_ranks_pool_is_on_its_own_devices() -> None:
    """Two ranks on two cards hold a pool each; on one card together nothing says who holds what."""
    ranks = replace(READING, ranks=(RANK, replace(RANK, rank="1")))
    table = processes({"chat": (10,)}, parents={11: 10})
    apart = picture(
        device((10, GIB)), device((11, GIB), uuid="GPU-1"), engines={"chat": ranks}, model=MODEL, table=table
    )
    for index in (0, 1):
        assert parts(apart, index)[Component.KV_CACHE, "chat"] == 100 * BLOCK_BYTES
    together = picture(device((10, GIB), (11, GIB)), engines={"chat": ranks}, model=MODEL, table=table)
    assert parts(together)[Component.UNDIVIDED, "chat"] == 2 * GIB


@pytest.mark.parametrize(
    "reading, target, reason",
    [
        (replace(READING, cache_dtype="fp7"), replace(CHAT, tensor_parallel=1), Reason.NOT_SUPPORTED),
        (READING, replace(CHAT, tensor_parallel=3), Reason.NOT_SUPPORTED),
    ],
    ids=["a cache dtype that no rule covers", "more ranks than divide the heads"],
)
def test_options_that_no_rule_covers_cost_only_what_needs_the_model(
    reading: EngineReading, target: Target, reason: Reason
) -> None:
    """The engine's own figures stay, and so does every other server."""
    joined = picture(model=MODEL, engines={"chat": reading}, targets=(target,))
    assert outcome(joined) is reason
    (server,) = joined.servers
    assert server.bytes_per_block is None
    assert server.ranks[0].full is not None


def test_a_process_that_may_be_either_servers_is_not_other() -> None:
    """Two servers claim it equally: neither other nor what is left is known."""
    joined = picture(
        device((10, GIB)), targets=(CHAT, EMBED), table=processes({"chat": (10,), "embed": (10,)})
    )
    assert parts(joined) == {(Component.FREE, ""): 4 * GIB}


def test_a_model_file_that_contradicts_the_engine_gives_no_bytes() -> None:
    """It is another model's: its bytes would be as wrong as its blocks."""
    halved = replace(READING, ranks=(replace(RANK, max_concurrency=100 / 64),))
    (server,) = picture(model=MODEL, engines={"chat": halved}).servers
    assert (server.bytes_per_block, server.groups, server.minimum_kv_bytes) == (None, (), None)
