"""Rules that changed between vLLM releases, each at the release that changed it."""

from __future__ import annotations

import pytest

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.vllm import BlockPlan, OptionError, VllmOptions, plan_blocks
from tests.cost.agreement import load


def plan(model: str, version: tuple[int, ...], **options: object) -> BlockPlan:
    """Return a public model's plan by a release."""
    spec = read_hf_config(load("configs")[model])
    options.setdefault("max_num_batched_tokens", 8192)
    return plan_blocks(spec, VllmOptions(engine_version=version, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "version, blocks", [((0, 25, 1), 512 + 513), ((0, 26, 0), 512 + 513), ((0, 11, 0), 512 + 513)]
)
def test_windows_never_reserve_more_than_the_full_length(version: tuple[int, ...], blocks: int) -> None:
    """Gemma 2 at 8,192: a window of 4,096 and a batch of 8,192 reach the full length in every release."""
    assert plan("gemma-2-9b", version, max_model_len=8192).start_blocks == blocks


@pytest.mark.parametrize(
    "version, options, batches",
    [
        ((0, 25, 1), {}, 1),
        ((0, 26, 0), {}, 2),
        ((0, 32, 0), {}, 2),
        ((0, 32, 0), {"async_scheduling": False}, 1),
        ((0, 32, 0), {"runner": "pooling"}, 1),
        ((0, 32, 0), {"pipeline_parallel": 2}, 3),
        ((0, 28, 0), {"pipeline_parallel": 2}, 2),
        ((0, 25, 1), {"pipeline_parallel": 2}, 1),
    ],
)
def test_tokens_in_flight(version: tuple[int, ...], options: dict[str, object], batches: int) -> None:
    """One batch before 0.26; then one for each pipeline rank, and one more with asynchronous scheduling."""
    assert plan("gpt-oss-20b", version, **options).in_flight_tokens == 8192 * batches


@pytest.mark.parametrize(
    "version, options, states",
    [
        ((0, 11, 0), {}, 1),
        ((0, 25, 1), {}, 1),
        ((0, 26, 0), {}, 2),
        ((0, 32, 0), {}, 2),
        ((0, 32, 0), {"prefix_caching": False}, 1),
        ((0, 20, 0), {"mamba_cache_mode": "align"}, 2),
        ((0, 32, 0), {"speculative_tokens": 3}, 5),
    ],
)
def test_state_blocks_of_a_delta_net(
    version: tuple[int, ...], options: dict[str, object], states: int
) -> None:
    """One state for each group until prefix caching became the default of hybrids at 0.26, then two."""
    recurrent = [group for group in plan("qwen3-next-80b", version, **options).groups if not group.grows]
    assert [group.state_blocks for group in recurrent] == [states] * 3


def test_mamba_2_states_with_prefix_caching() -> None:
    """A state for each block by default before 0.28, two from 0.28, and a checkpoint more at 0.32."""
    every = plan("nemotron-h-8b", (0, 27, 0), max_model_len=8192)
    assert all(group.grows for group in every.groups)
    assert every.start_blocks == sum(-(-8192 // group.block_size) for group in every.groups)
    for version, states in (((0, 28, 0), 2), ((0, 31, 0), 2), ((0, 32, 0), 3)):
        recurrent = [group for group in plan("nemotron-h-8b", version).groups if not group.grows]
        assert {group.state_blocks for group in recurrent} == {states}


@pytest.mark.parametrize("version, reserved", [((0, 28, 0), 0), ((0, 29, 0), 1), ((0, 32, 0), 1)])
def test_the_null_block_counts_at_start(version: tuple[int, ...], reserved: int) -> None:
    """From 0.29 the startup check keeps one block apart; before, a pool of exactly one request starts."""
    cost = plan("llama-3.1-8b", version, max_model_len=131072)
    assert cost.minimum_pool_bytes == cost.bytes_per_block * (8192 + reserved)


def test_the_printed_tokens() -> None:
    """One group's share of the pool before 0.20.2, concurrency x full length from then on."""
    old, new = plan("gemma-3-27b-text", (0, 20, 1)), plan("gemma-3-27b-text", (0, 20, 2))
    assert old.kv_cache_size_tokens(49152) == 49152 // 7 * 16
    assert new.kv_cache_size_tokens(49152) == int(49152 / new.start_blocks * 131072)


@pytest.mark.parametrize("version, size", [((0, 11, 2), 12), ((0, 12, 0), 13), ((0, 17, 0), 13)])
def test_group_size(version: tuple[int, ...], size: int) -> None:
    """The smallest bucket always before 0.12; then the largest where it is little larger."""
    spec = read_hf_config({**load("configs")["gpt-oss-20b"], "num_hidden_layers": 25})
    cost = plan_blocks(spec, VllmOptions(engine_version=version, max_num_batched_tokens=8192))
    assert max(group.layers for group in cost.groups) == size


def test_layers_of_several_widths_need_newer_releases() -> None:
    """Pages of several sizes: refused before 0.12, larger blocks from then on."""
    with pytest.raises(OptionError, match="engine_version"):
        plan("mimo-v2-flash", (0, 11, 2))
    assert plan("mimo-v2-flash", (0, 32, 0)).groups[0].block_size == 32


def test_values_narrower_than_keys() -> None:
    """Window layers store values at the keys' width before 0.28, full layers before 0.14."""
    old, new = plan("mimo-v2-flash", (0, 27, 0)), plan("mimo-v2-flash", (0, 28, 0))
    assert old.groups[1].page_bytes == 16 * 8 * (192 + 192) * 2
    assert new.groups[1].page_bytes == 16 * 8 * (192 + 128) * 2


def test_chunked_layers_are_allocated_like_full_ones_by_default_before_0_14() -> None:
    """Llama 4 without the hybrid manager's default is one group of 48 layers."""
    assert [group.layers for group in plan("llama-4-scout-text", (0, 11, 2)).groups] == [48]
    assert len(plan("llama-4-scout-text", (0, 14, 0)).groups) == 4


def test_the_oldest_releases_print_tokens_over_length() -> None:
    """Before 0.9.1 the concurrency is not rounded to blocks: 1,478 blocks of 16 over 29,000."""
    cost = plan("llama-3.1-8b", (0, 6, 0), max_model_len=29000)
    assert cost.kv_cache_size_tokens(1478) == 23648
    assert cost.max_concurrency(1478) == 23648 / 29000
