"""What holds of every allocation: bytes never fall as anything grows, and parts make up the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.cost.llamacpp import LlamaModel, LlamaOptions, LlamaOptionsError, LlamaPool, allocate
from kvwatch.cost.llamacpp_architectures import ARCHITECTURES
from kvwatch.cost.llamacpp_rules import Memory
from tests.cost_llamacpp.files import model_of

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

SERVED = sorted(
    name for name, rules in ARCHITECTURES.items() if not rules.draft_only and rules.memory is not Memory.NONE
)
KV_HEADS = st.sampled_from([2, [1, 2] * 4, [2, 0, 0, 1] * 2])


@st.composite
def models(draw: DrawFn) -> LlamaModel:
    """Draw a model of any architecture with eight layers."""
    name = draw(st.sampled_from(SERVED))
    heads: Any = draw(KV_HEADS)
    keys: dict[str, Any] = {
        "attention__head_count_kv": heads,
        "attention__sliding_window": draw(st.integers(1, 5_000)),
        "attention__sliding_window_pattern": draw(st.sampled_from([[1, 1, 1, 0] * 2, [0, 1] * 4])),
        "attention__key_length_swa": 32,
        "attention__value_length_swa": 32,
        "attention__key_length_mla": 64,
        "attention__value_length_mla": 64,
        "attention__kv_lora_rank": 64,
        "attention__indexer__key_length": 32,
        "attention__indexer__types": [1, 0] * 4,
        "attention__compress_ratios": [0, 4, 128, 4, 128, 4, 128, 0] if name == "deepseek4" else None,
        "ssm__conv_kernel": 4,
        "ssm__inner_size": 256,
        "ssm__state_size": 16,
        "ssm__group_count": 2,
        "kda__head_dim": 32,
        "shortconv__l_cache": 3,
        "wkv__head_size": 64,
        "feed_forward_length": 0 if name.startswith("nemotron") else 1024,
    }
    return model_of(name, **keys)


@st.composite
def option_sets(draw: DrawFn) -> LlamaOptions:
    """Draw options with which a server may start."""
    kind = draw(st.sampled_from(["f16", "q8_0", "q4_0", "f32"]))
    return LlamaOptions(
        ctx_size=draw(st.integers(1, 200_000)),
        parallel=draw(st.one_of(st.none(), st.integers(1, 32))),
        kv_unified=draw(st.booleans()),
        cache_type_k=kind,
        cache_type_v=kind,
        ubatch_size=draw(st.integers(1, 2048)),
        swa_full=draw(st.booleans()),
        n_gpu_layers=draw(st.integers(0, 12)),
    )


def pool_of(model: LlamaModel, options: LlamaOptions) -> LlamaPool | None:
    """Allocate, or return None where the server would not start."""
    try:
        return allocate(model, options)
    except LlamaOptionsError:
        return None


@settings(deadline=None)
@given(model=models(), options=option_sets())
def test_parts_make_up_the_whole(model: LlamaModel, options: LlamaOptions) -> None:
    """Caches and states add up, by kind and by layer, and the host holds at most all of it."""
    pool = pool_of(model, options)
    if pool is None:
        return
    parts = sum(cache.k_bytes + cache.v_bytes for cache in pool.caches) + pool.recurrent_bytes
    assert parts == sum(pool.layer_bytes) == pool.total_bytes
    assert pool.host_bytes is not None
    assert 0 <= pool.host_bytes <= pool.total_bytes
    assert 0 < pool.slot_limit_tokens <= pool.n_ctx_seq <= pool.n_ctx == pool.pool_tokens


@settings(deadline=None)
@given(model=models(), options=option_sets(), more=st.integers(1, 100_000))
def test_bytes_never_fall_with_the_context(model: LlamaModel, options: LlamaOptions, more: int) -> None:
    """A longer context takes at least as much, and what it adds is bytes a token times cells."""
    assert options.ctx_size is not None
    small = pool_of(model, options)
    large = pool_of(model, replace(options, ctx_size=options.ctx_size + more))
    if small is None or large is None:
        return
    assert small.total_bytes <= large.total_bytes
    assert small.recurrent_bytes == large.recurrent_bytes
    same = {cache.name: cache.follows_context for cache in small.caches}
    if (
        same == {cache.name: cache.follows_context for cache in large.caches}
        and small.n_ubatch == large.n_ubatch
    ):
        grown = large.total_bytes - small.total_bytes
        if not any(cache.name.endswith("compressed") for cache in small.caches):
            assert grown == small.bytes_per_token * (large.n_ctx - small.n_ctx)


@settings(deadline=None)
@given(model=models(), options=option_sets())
def test_bytes_never_fall_with_the_window(model: LlamaModel, options: LlamaOptions) -> None:
    """A wider window, a larger micro-batch and `--swa-full` never take less; full cells bound them all."""
    pool = pool_of(model, replace(options, swa_full=False))
    if pool is None:
        return
    wider = pool_of(replace(model, window=(model.window or 0) + 1_000), replace(options, swa_full=False))
    full = pool_of(model, replace(options, swa_full=True))
    assert wider is not None
    assert full is not None
    assert pool.total_bytes <= wider.total_bytes <= full.total_bytes
    assert all(cache.cells <= pool.n_ctx_seq or cache.name.endswith("compressed") for cache in pool.caches)


@settings(deadline=None)
@given(model=models(), options=option_sets())
def test_a_window_as_long_as_the_context_is_full_attention(model: LlamaModel, options: LlamaOptions) -> None:
    """Where the window covers the context, its cells are those of full attention."""
    pool = pool_of(replace(model, window=1 << 30), replace(options, swa_full=False))
    full = pool_of(model, replace(options, swa_full=True))
    if pool is None or full is None:
        return
    assert pool.caches == full.caches


@settings(deadline=None)
@given(model=models(), options=option_sets(), fewer=st.integers(0, 12))
def test_more_layers_on_the_device_leave_less_in_the_host(
    model: LlamaModel, options: LlamaOptions, fewer: int
) -> None:
    """The host's part falls as `-ngl` grows and never changes the whole."""
    some = pool_of(model, replace(options, n_gpu_layers=min(fewer, options.n_gpu_layers or 0)))
    more = pool_of(model, options)
    if some is None or more is None:
        return
    assert some.host_bytes is not None
    assert more.host_bytes is not None
    assert more.host_bytes <= some.host_bytes
    assert more.total_bytes == some.total_bytes


@settings(deadline=None)
@given(model=models(), options=option_sets())
def test_smaller_types_take_less(model: LlamaModel, options: LlamaOptions) -> None:
    """Bytes fall from f32 over f16, q8_0, q5_1, q5_0 to q4_0; states do not change."""
    totals = []
    for kind in ("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_0"):
        pool = pool_of(model, replace(options, cache_type_k=kind, cache_type_v=kind))
        if pool is not None:
            totals.append((pool.total_bytes - pool.recurrent_bytes, pool.recurrent_bytes))
    assert totals == sorted(totals, reverse=True)
    assert len({states for _, states in totals}) <= 1
