"""Records made by hand: one server, a window then and a window now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvwatch.observation import Neighbour, Observation, Setup, StartWindow
from kvwatch.snapshot import KvGroup
from kvwatch.triage.question import Record, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

HOUR = 3600.0
DAY = 86_400.0
NOW = 1_780_000_000.0
MIB, GIB = 1 << 20, 1 << 30
CARD = "GPU-0"

SETUP = Setup(
    engine="vllm",
    model="chat",
    version="0.32.0",
    model_hash="aaaa",
    fingerprint="f0",
    cache_dtype="bfloat16",
    tensor_parallel=1,
    pipeline_parallel=1,
    block_size=16,
    share_ratio=0.9,
    full_length_tokens=8192,
    request_limit=256,
    bytes_per_block=16 * 131_072,
    resident_blocks=512,
    groups=(KvGroup(kind="full", layers=32, block_size=16, page_bytes=65_536, window=None),),
    devices=(CARD,),
    driver="580",
)


def hour(
    end: float, setup: Setup = SETUP, *, step: float = 60.0, ranks: Sequence[str] = ("0",), **values: Any
) -> tuple[Observation, ...]:
    """Return one hour: 10 requests of 1,600 + 400 tokens a minute, unless told otherwise."""
    usual: dict[str, Any] = {
        "started_at": NOW - 30 * DAY,
        "sleeping": False,
        "usable_blocks": 4000,
        "finished": 10.0,
        "prompt": 1600.0,
        "answer": 400.0,
        "usage_mean": 0.4,
        "usage_max": 0.6,
        "running_mean": 8.0,
        "running_max": 12.0,
        "waiting_mean": {"capacity": 0.0},
        "waiting_max": 0.0,
        "generation_tokens": 4000.0,
    }
    told = usual | values
    prompt, answer = told.pop("prompt"), told.pop("answer")
    finished = told["finished"]
    known = None not in (finished, prompt, answer)
    return tuple(
        Observation(
            server="chat",
            rank=rank,
            at=end - HOUR + step * index,
            seconds=step,
            setup=setup,
            finished_prompt_tokens=finished * prompt if known else None,
            finished_generation_tokens=finished * answer if known else None,
            **told,
        )
        for index in range(int(HOUR / step))
        for rank in ranks
    )


def record(
    then: tuple[Observation, ...],
    now: tuple[Observation, ...],
    *,
    starts: tuple[StartWindow, ...] = (),
    between: tuple[Observation, ...] = (),
) -> Record:
    """Return what triage is asked: now against this hour yesterday."""
    return Record(
        server="chat",
        baseline=Window(start_at=NOW - DAY - HOUR, end_at=NOW - DAY, name="1d"),
        now=Window(start_at=NOW - HOUR, end_at=NOW, name="now"),
        baseline_observations=then,
        now_observations=now,
        timeline=(*then, *between, *now),
        start_windows=starts,
    )


def restart(at: float, *neighbours: tuple[str, int, int], seen: bool = True) -> StartWindow:
    """Return the window of a start, with neighbours as (name, bytes at first, most bytes)."""
    return StartWindow(
        server="chat",
        device=CARD,
        started_at=at,
        ready_at=at + 120,
        seen_from=at + 2 if seen else at + 110,
        free_first_bytes=None,
        free_last_bytes=None,
        neighbours=tuple(
            Neighbour(server=name, name="vllm", pid=7, first_bytes=first, last_bytes=most, most_bytes=most)
            for name, first, most in neighbours
        ),
    )


def other(**values: Any) -> Setup:
    """Return the usual setup with something else in it."""
    return replace(SETUP, **values)
