"""Snapshots and minutes for the history's tests: a server whose counters and clocks the test chooses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.fit import Load
from kvwatch.history.minute import Minute
from kvwatch.observation import Observation, Setup
from kvwatch.readings import DeviceReading, EngineReading, RankReading, SumCount
from kvwatch.snapshot import DeviceState, KvGroup, RankState, ServerState, Snapshot, TypicalState
from kvwatch.target import Target
from kvwatch.typical import TypicalLength

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.observation import StartWindow

AT = 1_780_000_020 // 60 * 60
"""A whole minute, and no whole hour."""
SETUP = Setup(
    engine="vllm",
    model="tiny",
    version="0.32.0",
    model_hash="abc",
    fingerprint="0123456789ab",
    settings=(("block_size", "32"), ("model", 'a "quoted" \u00fc')),
    cache_dtype="bfloat16",
    tensor_parallel=1,
    block_size=32,
    share_ratio=0.92,
    full_length_tokens=1024,
    request_limit=16,
    bytes_per_block=32768,
    resident_blocks=32,
    groups=(
        KvGroup(kind="full", layers=2, block_size=32, page_bytes=4096, window=None),
        KvGroup(kind="window", layers=2, block_size=32, page_bytes=4096, window=128),
    ),
    devices=("GPU-0", "GPU-1"),
    driver="580.1",
)


def observation(at: float = AT, *, server: str = "chat", rank: str = "0", **other: object) -> Observation:
    """Return a minute in which everything is known."""
    values: dict[str, object] = {
        "started_at": 1_779_999_000.25,
        "sleeping": False,
        "usable_blocks": 99,
        "usable_bytes": 99 * 32768,
        "typical_prompt_tokens": 200.5,
        "typical_generation_tokens": 700.0,
        "typical_capacity": 99 / 29,
        "finished": 20.0,
        "finished_prompt_tokens": 4000.0,
        "finished_generation_tokens": 14000.0,
        "usage_mean": 0.5,
        "usage_max": 0.75,
        "running_mean": 2.5,
        "running_max": 4.0,
        "waiting_mean": {"capacity": 0.5, "deferred": 0.0},
        "waiting_max": 3.0,
        "preemptions": 1.0,
        "suspected": 0.0,
        "queue_seconds": SumCount(sum=1.25, count=20.0),
        "prefix_queries": 4000.0,
        "prefix_hits": 0.0,
        "generation_tokens": 14100.0,
        "device_bytes": {"GPU-0": 700 << 20, "GPU-1": 0},
    } | other
    setup = values.pop("setup", SETUP)
    seconds = values.pop("seconds", 60.0)
    return Observation(server=server, rank=rank, at=at, seconds=seconds, setup=setup, **values)  # type: ignore[arg-type]


def minute(
    at: float = AT, *, first: float = 2.5, last: float = 57.5, polls: int = 12, **other: object
) -> Minute:
    """Return a whole minute; `first` and `last` are seconds after its start."""
    return Minute(observation=observation(at, **other), polls=polls, first_at=at + first, last_at=at + last)  # type: ignore[arg-type]


def rank(
    name: str = "0",
    *,
    finished: float | None = 0.0,
    running: int | None = 2,
    waiting: dict[str, int] | None = None,
    usage: float | None = 0.5,
    capacity: float | None = 3.4,
) -> RankState:
    """Return a rank; each finished request had 200 + 700 tokens and queued half a second."""
    count = 0.0 if finished is None else finished
    reading = RankReading(
        rank=name,
        num_blocks=100,
        block_size=32,
        usage_ratio=usage,
        running=running,
        waiting={"capacity": 1, "deferred": 0} if waiting is None else waiting,
        preemptions_total=None if finished is None else 0.0,
        finished_total={} if finished is None else {"stop": count - 1, "length": 1.0},
        finished_prompt_tokens=None if finished is None else SumCount(sum=200 * count, count=count),
        finished_generation_tokens=None if finished is None else SumCount(sum=700 * count, count=count),
        queue_seconds=None if finished is None else SumCount(sum=0.5 * count, count=count),
        generation_tokens_total=None if finished is None else 710 * count,
    )
    typical = None
    if capacity is not None:
        length = TypicalLength(prompt_tokens=200.0, generation_tokens=700.0, requests=5)
        typical = TypicalState(length=length, fit=None, capacity=capacity)
    return RankState(
        reading=reading,
        load=Load(running=running, waiting=1, waiting_for_capacity=None, request_limit=16),
        usage_ratio=usage,
        usable_blocks=99,
        resident_blocks=32,
        capacity_bytes=99 * 32768,
        typical=typical,
    )


def server(
    *ranks: RankState, name: str = "chat", started_at: float | None = 1000.0, **other: object
) -> ServerState:
    """Return a server that answers."""
    state = ServerState(
        target=Target(name=name, url="http://h:1", host="h", port=1, tensor_parallel=1),
        reading=EngineReading(
            engine="vllm",
            ranks=tuple(one.reading for one in ranks),
            model="tiny",
            version="0.32.0",
            sleeping=False,
            settings=(("model_len", "1024"), ("block_size", "32")),
        ),
        full_length_tokens=1024,
        fingerprint="0123456789ab",
        ranks=ranks,
        share_ratio=0.92,
        device_bytes={"GPU-0": 700},
        started_at=started_at,
    )
    return replace(state, **other)  # type: ignore[arg-type]


def silent(name: str = "chat") -> ServerState:
    """Return a server that does not answer."""
    return ServerState(target=Target(name=name, url="http://h:1", host="h", port=1), reading=None)


def snapshot(
    at: float,
    *servers: ServerState,
    monotonic: float | None = None,
    suspected: dict[tuple[str, str], int] | None = None,
    interval: float = 5.0,
    starts: tuple[StartWindow, ...] = (),
) -> Snapshot:
    """Return one poll, `at` Unix seconds; the monotonic clock runs along unless it is given."""
    return Snapshot(
        sequence=1,
        taken_at=at,
        monotonic_at=at - AT + 1000 if monotonic is None else monotonic,
        poll_seconds=0.01,
        interval_seconds=interval,
        typical_window_seconds=900.0,
        share_limit_ratio=0.95,
        devices=(DeviceState(reading=DeviceReading(uuid="GPU-0", index=0, name="Card", driver="580.1")),),
        processes=(),
        servers=servers,
        sources=(),
        recompute_suspected=suspected or {},
        start_windows=starts,
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError
