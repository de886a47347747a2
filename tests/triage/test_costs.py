"""The cost function that was kept of a moment is the planner's own, at every length."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.cost.vllm import VllmOptions, plan_blocks
from kvwatch.observation import Setup
from kvwatch.plan import groups_of
from kvwatch.snapshot import KvGroup
from kvwatch.triage.costs import block_bytes, cost_of
from tests.cost.agreement import load, plan_of, spec_of

if TYPE_CHECKING:
    from kvwatch.cost.vllm import BlockPlan

GIB = 1 << 30


def kept(plan: BlockPlan, tensor_parallel: int = 1) -> Setup:
    """Return what is kept and exported of a plan: groups without their states, and R at full length."""
    assert plan.full_length is not None
    return Setup(
        groups=groups_of(plan),
        full_length_tokens=plan.full_length,
        resident_blocks=plan.resident_blocks(plan.full_length),
        tensor_parallel=tensor_parallel,
    )


def lengths(full: int) -> tuple[int, ...]:
    """Return lengths around blocks, windows and the longest request."""
    return (1, 7, 16, 17, 100, 511, 2000, max(1, full // 3), max(1, full - 1), full)


@pytest.mark.parametrize("model", sorted({row["model"] for row in load("oracle")}))
def test_what_was_kept_gives_the_planners_blocks(model: str) -> None:
    """Windows, chunks, states, encoders and all: R is the plan's at every length, nothing is guessed."""
    rows = [row for row in load("oracle") if row["model"] == model]
    plans = [(plan, row["tp"]) for row in rows if (plan := plan_of(row)).groups and plan.full_length]
    for plan, tensor_parallel in plans:
        cost = cost_of(kept(plan, tensor_parallel))
        assert cost is not None
        for length in lengths(plan.full_length or 1):
            assert cost.blocks(length) == plan.resident_blocks(length)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_context_parallel_ranks_are_found_by_the_charge(ranks: int) -> None:
    """They share a request's tokens, and no series says how many there are."""
    options = VllmOptions(
        tensor_parallel=8, decode_context_parallel=ranks, max_model_len=32_768, max_num_batched_tokens=8192
    )
    plan = plan_blocks(spec_of("llama-3.1-8b"), options)
    cost = cost_of(kept(plan, 8))
    assert cost is not None
    assert [cost.blocks(length) for length in lengths(32_768)] == [
        plan.resident_blocks(length) for length in lengths(32_768)
    ]


UNIFORM = Setup(block_size=16, full_length_tokens=8192, resident_blocks=512)


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param(Setup(), id="nothing is known"),
        pytest.param(replace(UNIFORM, resident_blocks=384), id="R is not that of one full group"),
        pytest.param(replace(UNIFORM, full_length_tokens=None), id="no longest request to check R by"),
        pytest.param(
            Setup(groups=(KvGroup(kind="recurrent", layers=8, block_size=544, page_bytes=1, window=None),)),
            id="states, and no R to settle them by",
        ),
        pytest.param(
            Setup(groups=(KvGroup(kind="novel", layers=8, block_size=16, page_bytes=1, window=None),)),
            id="a kind that is not known",
        ),
        pytest.param(
            Setup(
                groups=(KvGroup(kind="full", layers=8, block_size=16, page_bytes=1, window=None),),
                full_length_tokens=8192,
                resident_blocks=400,
            ),
            id="groups that contradict R",
        ),
    ],
)
def test_what_is_not_settled_is_unknown(setup: Setup) -> None:
    """No cost function rather than a likely one."""
    assert cost_of(setup) is None


def test_one_group_needs_no_model_file() -> None:
    """R = ceil(full / block) proves full attention; a mean a hair above a whole number is that number."""
    cost = cost_of(UNIFORM)
    assert cost is not None
    assert [cost.blocks(tokens) for tokens in (1, 16, 16.000_000_01, 16.5, 32)] == [1, 1, 1, 2, 2]


def test_a_pool_is_floored_by_rank_and_by_slots() -> None:
    """So many typical requests as an empty rank takes, at most its request limit."""
    cost = cost_of(UNIFORM)
    assert cost is not None
    assert cost.fit_empty(999, 1600, None) == 9
    assert cost.fit_empty(999, 1600, 4) == 4


PIN = Setup(pin_bytes=6 * GIB)


@pytest.mark.parametrize(
    "setup, blocks, pool, expected",
    [
        pytest.param(Setup(bytes_per_block=2048), 10, None, 2048, id="as kept"),
        pytest.param(Setup(), 10, 20_480, 2048, id="by the pool's bytes"),
        pytest.param(PIN, 1023, None, 6 * GIB / 1024, id="by the pin, null block included"),
        pytest.param(
            replace(PIN, settings=(("num_gpu_blocks_override", "512"),)),
            511,
            None,
            None,
            id="a pin beside overridden blocks says nothing",
        ),
        pytest.param(Setup(), 10, None, None, id="not known"),
        pytest.param(
            Setup(
                groups=(KvGroup(kind="full", layers=8, block_size=16, page_bytes=4, window=None),),
                pipeline_parallel=2,
            ),
            10,
            None,
            None,
            id="groups of a pipeline's ranks differ",
        ),
    ],
)
def test_bytes_of_a_block(setup: Setup, blocks: int, pool: int | None, expected: float | None) -> None:
    """The best that was kept; never a guess."""
    assert block_bytes(setup, blocks, pool) == expected
