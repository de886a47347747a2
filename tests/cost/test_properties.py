"""Properties that every model's cost has, whatever its layers are."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.cost.spec import Layer, LayerKind, ModelSpec, StatePart, StateRole
from kvwatch.cost.vllm import BlockPlan, VllmOptions, plan_blocks

LENGTHS = st.integers(min_value=1, max_value=20_000)
WIDTHS = st.sampled_from([16, 64, 128])


UNTIMED = settings(deadline=None)


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Draw a model of full layers, and of windows, chunks or recurrent states beside them."""
    width, heads = draw(WIDTHS), draw(st.sampled_from([1, 2, 8]))
    count = draw(st.integers(min_value=1, max_value=4))
    other = draw(st.sampled_from([None, LayerKind.WINDOW, LayerKind.CHUNKED, LayerKind.RECURRENT]))
    repeat = draw(st.integers(min_value=1, max_value=5))
    layers = [attention(LayerKind.FULL, index, heads, width) for index in range(count)]
    for index in range(count, count + (count * repeat if other else 0)):
        if other is LayerKind.RECURRENT:
            state = StatePart(role=StateRole.SSM, split=8 * draw(st.just(heads)), rest=width * 16)
            layers.append(Layer(kind=LayerKind.RECURRENT, index=index, state=(state,)))
        elif other:
            layers.append(attention(other, index, heads, width, window=draw(st.just(256))))
    return ModelSpec(
        architecture="Drawn",
        model_type=None,
        dtype="bfloat16",
        layers=tuple(layers),
        hidden_layers=len(layers),
        attention_heads=8,
        max_positions=None,
    )


def attention(kind: LayerKind, index: int, heads: int, width: int, window: int | None = None) -> Layer:
    """Return an attention layer."""
    return Layer(kind=kind, index=index, kv_heads=heads, k_width=width, v_width=width, window=window)


def plan(spec: ModelSpec, length: int = 32_768, **options: object) -> BlockPlan:
    """Return a model's plan at a full length."""
    options.setdefault("max_num_batched_tokens", 2048)
    return plan_blocks(spec, VllmOptions(max_model_len=length, **options))  # type: ignore[arg-type]


@given(spec=models(), shorter=LENGTHS, longer=LENGTHS)
@UNTIMED
def test_cost_never_falls_with_length(spec: ModelSpec, shorter: int, longer: int) -> None:
    """A longer request never needs fewer blocks, to be admitted or to stay."""
    shorter, longer = sorted((shorter, longer))
    cost = plan(spec)
    assert cost.admission_blocks(shorter) <= cost.admission_blocks(longer)
    assert cost.resident_blocks(shorter) <= cost.resident_blocks(longer)
    assert plan(spec, shorter).start_blocks <= plan(spec, longer).start_blocks


@given(spec=models(), length=LENGTHS)
@UNTIMED
def test_the_charge_at_start_covers_admission(spec: ModelSpec, length: int) -> None:
    """A_start at a full length is never below A of that length."""
    cost = plan(spec, length)
    assert cost.start_blocks >= cost.admission_blocks(length)


@given(spec=models(), length=LENGTHS, ranks=st.sampled_from([2, 4, 8]))
@UNTIMED
def test_more_ranks_never_cost_a_rank_more(spec: ModelSpec, length: int, ranks: int) -> None:
    """Per-rank bytes of a request never grow by more than its blocks' rounding when ranks are added."""
    one, many = plan(spec), plan(spec, tensor_parallel=ranks)
    if {group.block_size for group in one.groups} == {group.block_size for group in many.groups}:
        assert many.bytes_per_block <= one.bytes_per_block
        assert many.resident_blocks(length) * many.bytes_per_block <= (
            one.resident_blocks(length) * one.bytes_per_block
        )
    assert many.bytes_per_token <= one.bytes_per_token


@given(
    spec=models(), length=LENGTHS, factor=st.integers(min_value=2, max_value=4), pool=st.integers(0, 1 << 36)
)
@UNTIMED
def test_fit_falls_when_anything_grows(spec: ModelSpec, length: int, factor: int, pool: int) -> None:
    """More layers of each kind, wider heads or a wider dtype never let more requests fit."""
    cost = plan(spec)
    fit = cost.num_blocks(pool) // cost.resident_blocks(length)
    wider = replace(
        spec,
        layers=tuple(
            layer if layer.kind is LayerKind.RECURRENT else replace(layer, kv_heads=layer.kv_heads * factor)
            for layer in spec.layers
        ),
    )
    if not any(layer.kind is LayerKind.RECURRENT for layer in spec.layers):
        grown = plan(wider)
        assert grown.num_blocks(pool) // grown.resident_blocks(length) <= fit
        full = plan(spec, dtype="float32")
        assert full.num_blocks(pool) // full.resident_blocks(length) <= fit
    longer = cost.num_blocks(pool) // cost.resident_blocks(length * factor)
    assert longer <= fit
    deeper = plan(replace(spec, layers=spec.layers * factor, hidden_layers=spec.hidden_layers))
    assert deeper.num_blocks(pool) // deeper.resident_blocks(length) <= fit


@given(
    length=LENGTHS, heads=st.sampled_from([1, 8]), kind=st.sampled_from([LayerKind.WINDOW, LayerKind.CHUNKED])
)
@settings(deadline=None, max_examples=60)
def test_a_window_longer_than_the_request_is_full_attention(length: int, heads: int, kind: LayerKind) -> None:
    """R and A(L) equal full attention's; the planner's A_start is one block dearer with a window."""
    windowed = [attention(kind, index, heads, 64, window=length + 1) for index in range(4)]
    model = ModelSpec(
        architecture="Drawn",
        model_type=None,
        dtype="bfloat16",
        layers=tuple(windowed),
        hidden_layers=4,
        attention_heads=8,
        max_positions=None,
    )
    full = replace(
        model, layers=tuple(replace(layer, kind=LayerKind.FULL, window=None) for layer in windowed)
    )
    local, whole = plan(model, length), plan(full, length)
    assert local.resident_blocks(length) == whole.resident_blocks(length)
    assert local.admission_blocks(length) == whole.admission_blocks(length)
    assert local.start_blocks == whole.start_blocks + (kind is LayerKind.WINDOW)


@given(spec=models(), length=LENGTHS, pool=st.integers(min_value=0, max_value=1 << 36))
@UNTIMED
def test_a_pool_of_the_stated_minimum_starts(spec: ModelSpec, length: int, pool: int) -> None:
    """The smallest pool holds one full-length request and the null block, one byte less does not."""
    cost = plan(spec, length)
    need = cost.minimum_pool_bytes
    assert cost.num_blocks(need) == cost.start_blocks + 1
    assert cost.num_blocks(need - 1) == cost.start_blocks
    assert cost.num_blocks(pool) * cost.bytes_per_block <= pool


@given(spec=models(), ranks=st.integers(min_value=1, max_value=4))
@UNTIMED
def test_pipeline_ranks_hold_every_layer_once(spec: ModelSpec, ranks: int) -> None:
    """The ranks' layers are all the layers; the pool is as large as the poorest rank's."""
    ranks = min(ranks, spec.hidden_layers)
    cost = plan(spec, pipeline_parallel=ranks)
    assert len(cost.rank_bytes_per_block) == ranks
    assert sum(cost.rank_bytes_per_block) >= plan(spec).bytes_per_block
    pool = 1 << 30
    assert cost.num_blocks(pool) == pool // cost.bytes_per_block
