"""The pool that is suggested holds what was asked, and one block less does not; by the cost model itself."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.vllm import BlockPlan, OptionError, VllmOptions, plan_blocks
from kvwatch.cost_report import vllm_report
from kvwatch.planning.errors import PlanError
from kvwatch.planning.pool import held_by, longest_length, needed_pool
from kvwatch.planning.question import Server, VllmModel
from tests.cost.agreement import load, plan_of, spec_of
from tests.planning.models import GIB, server
from tests.replay import CAPTURES

MODELS = sorted(load("configs"))
KEEPS_NOTHING = {"bge-base-en", "embeddinggemma-300m"}


def asked(model: str, length: int, concurrency: int, **options: object) -> Server:
    """Return a server of an oracle's model."""
    given = VllmOptions(max_num_batched_tokens=2048, **options)  # type: ignore[arg-type]
    return Server(
        name=model,
        cards=("card",) * given.tensor_parallel * given.pipeline_parallel,
        model=VllmModel(spec=spec_of(model), options=given),
        length_tokens=length,
        concurrency=concurrency,
    )


def held_together(model: str, plan: BlockPlan, pool_bytes: int, length: int) -> int:
    """Return what `kvwatch cost` says that a pool holds; 0 where the engine does not start with it."""
    if pool_bytes < plan.minimum_pool_bytes:
        return 0
    report = vllm_report(spec_of(model), plan, pool_bytes=pool_bytes, lengths=[length])
    (row,) = [row for row in report["lengths"] if row["length"] == length]
    return int(row["resident_limit"])


@pytest.mark.parametrize("model", [model for model in MODELS if model not in KEEPS_NOTHING])
@settings(deadline=None, max_examples=4)
@given(length=st.integers(1, 40_000), concurrency=st.integers(1, 300))
def test_the_pool_holds_what_was_asked_and_not_one_block_less(
    model: str, length: int, concurrency: int
) -> None:
    """For every model of the oracle: its resident_limit reaches the concurrency, a smaller one's not."""
    length = min(length, spec_of(model).max_positions or length)
    pool = needed_pool(asked(model, length, concurrency))
    plan = plan_blocks(spec_of(model), VllmOptions(max_num_batched_tokens=2048, max_model_len=length))
    assert pool.blocks is not None
    assert held_together(model, plan, pool.pin_bytes, length) >= concurrency
    assert held_together(model, plan, pool.pin_bytes - 1, length) < concurrency
    assert held_together(model, plan, pool.pin_bytes - pool.blocks.block_bytes, length) < concurrency


@pytest.mark.parametrize("model", MODELS)
def test_what_the_planner_starts_with(model: str) -> None:
    """Pools with which vLLM's own planner starts, or does not, agree with the pool of one request."""
    for row in load("oracle"):
        if row["model"] != model or row["options"] or not row["groups"]:
            continue
        options = {"cache_dtype": row["cache_dtype"], "tensor_parallel": row["tp"]}
        one = asked(model, row["max_model_len"], 1, **options)
        model_options = VllmOptions(max_num_batched_tokens=row["max_num_batched_tokens"], **options)
        pool = needed_pool(
            Server(
                name="one",
                cards=one.cards,
                model=VllmModel(spec=spec_of(model), options=model_options),
                length_tokens=one.length_tokens,
                concurrency=1,
            )
        )
        least = plan_of(row).minimum_pool_bytes
        for size, _, _, _, starts, _ in row["pools"]:
            if starts is not None:
                assert starts is (size >= least)
                assert starts or size < pool.pin_bytes


def test_the_hybrid_measured_on_a_real_server() -> None:
    """With 900 blocks ten requests of 2,048 ran together and the eleventh preempted: 891 and 980."""
    config = json.loads((CAPTURES / "vllm" / "tiny-gemma3-config.json").read_text())
    model = VllmModel(
        spec=read_hf_config(config), options=VllmOptions(block_size=32, max_num_batched_tokens=2048)
    )
    for concurrency, blocks in ((10, 891), (11, 980)):
        one = Server(name="hybrid", cards=("card",), model=model, length_tokens=2048, concurrency=concurrency)
        pool = needed_pool(one)
        assert pool.blocks is not None
        assert (pool.blocks.resident, pool.blocks.start, pool.blocks.total) == (89, 389, blocks)
    assert held_by(one, [900 * pool.blocks.block_bytes]) == 10


def test_prompts_that_must_wait_are_told() -> None:
    """A hybrid's prompt of full length needs 384 free blocks: six enter the pool of ten, one by one."""
    config = json.loads((CAPTURES / "vllm" / "tiny-gemma3-config.json").read_text())
    model = VllmModel(
        spec=read_hf_config(config), options=VllmOptions(block_size=32, max_num_batched_tokens=2048)
    )
    pool = needed_pool(
        Server(name="hybrid", cards=("card",), model=model, length_tokens=2048, concurrency=10)
    )
    assert pool.blocks is not None
    assert pool.blocks.admission == 384
    assert pool.blocks.entering == 1 + (890 - 384) // 89 == 6


def test_the_planners_charge_may_decide() -> None:
    """One request of a windowed model: R + 1 are 90 blocks, but vLLM does not start with less than 390."""
    config = json.loads((CAPTURES / "vllm" / "tiny-gemma3-config.json").read_text())
    model = VllmModel(
        spec=read_hf_config(config), options=VllmOptions(block_size=32, max_num_batched_tokens=2048)
    )
    pool = needed_pool(Server(name="one", cards=("card",), model=model, length_tokens=2048, concurrency=1))
    assert pool.blocks is not None
    assert (pool.blocks.total, pool.blocks.least, pool.blocks.held) == (390, 390, 389 // 89)


def test_a_prompt_that_never_enters_is_not_held() -> None:
    """Before 0.29 the planner starts with 249 blocks, of which 248 are usable: too few for A of 249."""
    config = json.loads((CAPTURES / "vllm" / "tiny-gemma3-config.json").read_text())
    options = VllmOptions(block_size=32, max_num_batched_tokens=512, engine_version=(0, 28, 0))
    model = VllmModel(spec=read_hf_config(config), options=options)
    one = Server(name="one", cards=("card",), model=model, length_tokens=2048, concurrency=1)
    blocks = needed_pool(one).blocks
    assert blocks is not None
    assert (blocks.start, blocks.least, blocks.total, blocks.entering) == (249, 249, 250, 1)
    assert held_by(one, [249 * blocks.block_bytes]) == 0
    assert held_by(one, [250 * blocks.block_bytes]) >= 1


@settings(deadline=None, max_examples=20)
@given(room=st.integers(0, 40 * GIB), length=st.integers(1, 40_960), concurrency=st.integers(1, 64))
def test_most_and_longest_are_exactly_what_fits(room: int, length: int, concurrency: int) -> None:
    """What is said to fit fits, and one more, or one token longer, does not."""
    one = server(length=length, concurrency=concurrency)
    most = held_by(one, [room])
    for count, fits in ((most, True), (most + 1, False)):
        if count:
            assert (needed_pool(server(length=length, concurrency=count)).pin_bytes <= room) is fits
    longest = longest_length(one, [room])
    if longest:
        assert needed_pool(server(length=longest, concurrency=concurrency)).pin_bytes <= room
    if longest < 40_960:
        assert needed_pool(server(length=longest + 1, concurrency=concurrency)).pin_bytes > room


@pytest.mark.parametrize("ranks, heads", [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_heads_are_divided_until_each_rank_has_one(ranks: int, heads: int) -> None:
    """Eight KV heads over more ranks than that are kept several times: a card saves no more."""
    pool = needed_pool(
        server(concurrency=3, tensor_parallel=ranks, cards=tuple(f"card-{n}" for n in range(ranks)))
    )
    assert len(pool.rank_bytes) == ranks
    assert set(pool.rank_bytes) == {(3 * 512 + 1) * 2 * 36 * heads * 128 * 2 * 16}


def test_pipeline_ranks_have_pools_of_their_own_size() -> None:
    """36 layers on five stages: the pin is that of the largest stage, the others allocate less."""
    pool = needed_pool(server(concurrency=1, pipeline_parallel=5, cards=("a", "b", "c", "d", "e")))
    layers = [7, 7, 7, 8, 7]
    assert pool.rank_bytes == tuple(513 * 2 * count * 8 * 128 * 2 * 16 for count in layers)
    assert pool.pin_bytes == max(pool.rank_bytes)


def test_a_model_without_a_cache_needs_no_pool() -> None:
    """An encoder holds nothing of a request: its pool is empty."""
    assert needed_pool(asked("bge-base-en", 512, 100)).pin_bytes == 0


@pytest.mark.parametrize(
    "question, text",
    [
        (server(length=40_961), "40,961 tokens are more than the model's 40,960"),
        (server(tensor_parallel=3), "32 heads cannot be divided by 3"),
        (server(cache_dtype="fp7"), "fp7"),
    ],
    ids=["longer than the model", "ranks that do not divide the heads", "a dtype that nobody has"],
)
def test_refusals(question: Server, text: str) -> None:
    """What the engine refuses has no pool; the reason says which option it is."""
    with pytest.raises((PlanError, OptionError), match=text):
        needed_pool(question)
