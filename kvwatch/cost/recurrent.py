"""Families with recurrent layers: state space models, linear attention, short convolutions, hybrids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.cost.attention import (
    Reading,
    attention_layer,
    hidden_layers,
    make_heads,
    model_width,
    query_heads,
    read_heads,
)
from kvwatch.cost.latent import latent_layer, latent_width
from kvwatch.cost.spec import Layer, LayerKind
from kvwatch.cost.states import (
    State,
    delta_state,
    kimi_state,
    linear_state,
    mamba1_state,
    mamba2_state,
    short_conv_state,
)
from kvwatch.cost.windows import model_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from kvwatch.cost.attention import Heads
    from kvwatch.cost.fields import Fields

RECURRENT_TYPES = frozenset({"mamba", "linear_attention", "conv", "short_conv", "mamba2"})
ATTENTION_TYPES = frozenset({"attention", "full_attention"})


def state_layer(index: int, state: State) -> Layer:
    """Return a recurrent layer."""
    return Layer(
        kind=LayerKind.RECURRENT, index=index, state=state.parts, checkpoint_blocks=state.checkpoint_blocks
    )


def alternate(fields: Fields, heads: Heads, state: State, attention: Collection[int], count: int) -> Reading:
    """Return a hybrid whose layers are either attention (those listed) or recurrent."""
    windows = model_windows(fields, count)
    layers = [
        attention_layer(index, heads, windows[index]) if index in attention else state_layer(index, state)
        for index in range(count)
    ]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=heads.query)


def typed_layers(fields: Fields, count: int, *names: str) -> list[int]:
    """Return the layers that a list of types calls attention; an unknown type is refused."""
    types = fields.listed(count, *names)
    for kind in types:
        if kind not in RECURRENT_TYPES and kind not in ATTENTION_TYPES:
            raise fields.missing(names[0], f"layer type {kind} is not known")
    return [index for index, kind in enumerate(types) if kind in ATTENTION_TYPES]


def pure(state_of: Callable[[Fields], State]) -> Callable[[Fields], Reading]:
    """Return the rule of a model with recurrent layers only; the engine caches no prefixes for it."""

    def read(fields: Fields) -> Reading:
        count = hidden_layers(fields)
        state = state_of(fields)
        return Reading(
            layers=tuple(state_layer(index, state) for index in range(count)),
            hidden_layers=count,
            attention_heads=0,
            prefix_caching=False,
        )

    return read


def mamba_state(fields: Fields) -> State:
    """Return the state of a Mamba file (0.32.0, mamba.py)."""
    inner = fields.optional("intermediate_size")
    if inner is None:
        inner = fields.integer("expand", default=2) * model_width(fields)
    return mamba1_state(inner, fields.integer("state_size"), fields.integer("conv_kernel"))


def mamba2_file_state(fields: Fields) -> State:
    """Return the state of a Mamba 2 file (0.32.0, mamba2.py)."""
    return mamba2_state(
        inner=fields.integer("expand", default=2) * model_width(fields),
        groups=fields.integer("n_groups"),
        heads=fields.integer("num_heads"),
        width=fields.integer("head_dim"),
        state=fields.integer("state_size"),
        conv=fields.integer("conv_kernel"),
    )


def read_jamba(fields: Fields) -> Reading:
    """Read Jamba: attention every `attn_layer_period` layers (0.32.0, jamba.py)."""
    count = hidden_layers(fields)
    period = fields.integer("attn_layer_period", default=8)
    offset = fields.optional("attn_layer_offset")
    first = 4 if offset is None else offset
    attention = [index for index in range(count) if index % period == first % period]
    inner = fields.integer("mamba_expand", default=2) * model_width(fields)
    state = mamba1_state(
        inner, fields.integer("mamba_d_state", default=16), fields.integer("mamba_d_conv", default=4)
    )
    return alternate(fields, read_heads(fields), state, attention, count)


def bamba_state(fields: Fields) -> State:
    """Return the Mamba 2 state of Bamba, Granite 4 and Falcon-H1 files."""
    inner = fields.optional("mamba_d_ssm") or fields.integer("mamba_expand", default=2) * model_width(fields)
    heads = fields.integer("mamba_n_heads", default=128)
    width = fields.get("mamba_d_head")
    return mamba2_state(
        inner=inner,
        groups=fields.integer("mamba_n_groups", default=1),
        heads=heads,
        width=inner // heads if width in (None, "auto") else fields.integer("mamba_d_head"),
        state=fields.integer("mamba_d_state", default=256),
        conv=fields.integer("mamba_d_conv", default=4),
    )


def read_bamba(fields: Fields) -> Reading:
    """Read Bamba: `attn_layer_indices` lists the attention layers."""
    count = hidden_layers(fields)
    attention = set(fields.items("attn_layer_indices") or ())
    return alternate(fields, read_heads(fields), bamba_state(fields), attention, count)


def read_granite_hybrid(fields: Fields) -> Reading:
    """Read Granite 4 hybrids: the file gives each layer a type (0.32.0, granitemoehybrid.py)."""
    count = hidden_layers(fields)
    attention = typed_layers(fields, count, "layer_types", "layers_block_type")
    return alternate(fields, read_heads(fields), bamba_state(fields), attention, count)


def read_falcon_h1(fields: Fields) -> Reading:
    """Read Falcon-H1: every layer has attention and a state side by side (0.32.0, falcon_h1.py)."""
    heads = read_heads(fields)
    count = hidden_layers(fields)
    state = bamba_state(fields)
    layers: list[Layer] = []
    for index in range(count):
        layers += [attention_layer(index, heads), state_layer(index, state)]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=heads.query)


def read_nemotron_h(fields: Fields) -> Reading:
    """Read Nemotron-H: a letter for each layer, M state, * attention, others none (0.32.0, nemotron_h.py)."""
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        types: Sequence[object] = [
            {"M": "mamba", "*": "attention"}.get(letter, "other") for letter in pattern
        ]
    else:
        types = fields.items("layers_block_type", "layer_types") or ()
    if not types:
        raise fields.missing("hybrid_override_pattern")
    query = query_heads(fields)
    kv = fields.integer("num_key_value_heads", default=query)
    heads = make_heads(
        query, kv, fields.integer("head_dim", "attention_head_dim", default=model_width(fields) // query)
    )
    mamba_heads = fields.integer("mamba_num_heads")
    mamba_width = fields.integer("mamba_head_dim")
    state = mamba2_state(
        inner=mamba_heads * mamba_width,
        groups=fields.integer("n_groups", "mamba_n_groups"),
        heads=mamba_heads,
        width=mamba_width,
        state=fields.integer("ssm_state_size"),
        conv=fields.integer("conv_kernel", "mamba_d_conv"),
    )
    layers = []
    for index, kind in enumerate(types):
        if kind in ATTENTION_TYPES:
            layers.append(attention_layer(index, heads))
        elif kind in RECURRENT_TYPES:
            layers.append(state_layer(index, state))
    return Reading(
        layers=tuple(layers),
        hidden_layers=len(types),
        attention_heads=query,
        ssm_dtype=fields.text("mamba_ssm_cache_dtype") or "float32",
    )


def read_zamba2(fields: Fields) -> Reading:
    """Read Zamba 2: a state in every layer, wide attention in the hybrid ones (0.32.0, zamba2.py)."""
    query = query_heads(fields)
    width = model_width(fields)
    count = hidden_layers(fields)
    heads = make_heads(query, fields.integer("num_key_value_heads", default=query), 2 * width // query)
    hybrid = fields.items("hybrid_layer_ids")
    if hybrid is None:
        types = fields.listed(count, "layers_block_type")
        hybrid = [index for index, kind in enumerate(types) if kind == "hybrid"]
    inner = fields.integer("mamba_expand", default=2) * width
    mamba_heads = fields.integer("n_mamba_heads", default=8)
    state = mamba2_state(
        inner=inner,
        groups=fields.integer("mamba_ngroups", default=1),
        heads=mamba_heads,
        width=inner // mamba_heads,
        state=fields.integer("mamba_d_state", default=64),
        conv=fields.integer("mamba_d_conv", default=4),
    )
    attention = [attention_layer(index, heads) for index in sorted(int(index) for index in hybrid)]
    states = [state_layer(index, state) for index in range(count)]
    layers = sorted(attention + states, key=lambda layer: layer.index)
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query)


def read_plamo2(fields: Fields) -> Reading:
    """Read PLaMo 2: attention in the middle of every `mamba_step` layers (0.26.0, plamo2.py)."""
    count = hidden_layers(fields)
    query = query_heads(fields)
    width = fields.integer("hidden_size_per_head")
    heads = make_heads(query, fields.integer("num_key_value_heads", default=query), width)
    step = fields.integer("mamba_step", default=2)
    if count <= step // 2:
        attention = [count - 1]
    else:
        attention = [index for index in range(count) if index % step == step // 2]
    if not fields.flag("mamba_enabled", default=True):
        attention = list(range(count))
    mamba_heads = fields.integer("mamba_num_heads")
    state = mamba2_state(
        inner=mamba_heads * width,
        groups=0,
        heads=mamba_heads,
        width=width,
        state=fields.integer("mamba_d_state", default=64),
        conv=fields.integer("mamba_d_conv", default=4),
    )
    return alternate(fields, heads, state, attention, count)


def read_lfm2(fields: Fields) -> Reading:
    """Read LFM2: short convolutions beside attention layers (0.32.0, lfm2.py)."""
    count = hidden_layers(fields)
    if fields.items("layer_types") is not None:
        attention = typed_layers(fields, count, "layer_types")
    else:
        listed = fields.items("full_attn_idxs")
        if listed is None:
            raise fields.missing("layer_types")
        attention = [int(index) for index in listed]
    width = fields.integer("conv_dim", "hidden_size")
    state = short_conv_state(width, fields.integer("conv_L_cache", default=3))
    return alternate(fields, read_heads(fields), state, attention, count)


def read_delta(fields: Fields) -> Reading:
    """Read Qwen3-Next, Qwen3.5 and OLMo hybrids: gated delta nets with attention every few layers.

    0.32.0, qwen3_next.py, qwen3_5.py (`mamba_ssm_dtype` sets the state's dtype), olmo_hybrid.py.
    """
    count = hidden_layers(fields)
    if fields.items("layer_types") is not None:
        attention = typed_layers(fields, count, "layer_types")
    else:
        interval = fields.integer("full_attention_interval", default=4)
        attention = [index for index in range(count) if (index + 1) % interval == 0]
    state = delta_state(
        key_heads=fields.integer("linear_num_key_heads", default=16),
        value_heads=fields.integer("linear_num_value_heads", default=32),
        key_width=fields.integer("linear_key_head_dim", default=128),
        value_width=fields.integer("linear_value_head_dim", default=128),
        conv=fields.integer("linear_conv_kernel_dim", default=4),
    )
    reading = alternate(fields, read_heads(fields), state, attention, count)
    return Reading(
        layers=reading.layers,
        hidden_layers=count,
        attention_heads=reading.attention_heads,
        ssm_dtype=fields.text("mamba_ssm_dtype"),
    )


def read_kimi_linear(fields: Fields) -> Reading:
    """Read Kimi Linear: delta attention with a 32-bit state beside latent layers (0.32.0, models/kimi_k3)."""
    count = hidden_layers(fields)
    inner = fields.nested("linear_attn_config")
    recurrent = {int(layer) - 1 for layer in inner.items("kda_layers") or ()}
    state = kimi_state(
        inner.integer("num_heads"), inner.integer("head_dim"), inner.integer("short_conv_kernel_size")
    )
    width = latent_width(fields)
    layers = [
        state_layer(index, state) if index in recurrent else latent_layer(index, width)
        for index in range(count)
    ]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query_heads(fields))


def read_bailing_linear(fields: Fields) -> Reading:
    """Read Ling 2.5: linear attention, a latent layer in every group (0.32.0, bailing_moe_linear.py)."""
    count = hidden_layers(fields)
    group = fields.integer("layer_group_size", default=1)
    heads = query_heads(fields)
    state = linear_state(heads, read_heads(fields).k_width)
    width = latent_width(fields)
    layers = [
        latent_layer(index, width) if (index + 1) % group == 0 else state_layer(index, state)
        for index in range(count)
    ]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=heads)


def read_bailing_kimi(fields: Fields) -> Reading:
    """Read Ling 3: Kimi delta attention, a latent layer in every group (0.32.0, bailing_moe_v3.py)."""
    count = hidden_layers(fields)
    group = fields.integer("layer_group_size")
    heads = query_heads(fields)
    state = kimi_state(heads, fields.integer("head_dim"), fields.integer("short_conv_kernel_size"))
    width = latent_width(fields)
    whole = count // group * group
    layers = [
        latent_layer(index, width)
        if (index + 1) % group == 0 or index >= whole
        else state_layer(index, state)
        for index in range(count)
    ]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=heads)


def read_minimax(fields: Fields) -> Reading:
    """Read MiniMax-Text-01 and M1: lightning attention where the list says 0 (0.23.0, minimax_text_01.py)."""
    count = hidden_layers(fields)
    heads = read_heads(fields)
    if fields.items("attn_type_list") is not None:
        kinds = fields.listed(count, "attn_type_list")
        attention = [index for index, kind in enumerate(kinds) if kind == 1]
    else:
        attention = typed_layers(fields, count, "layer_types")
    return alternate(fields, heads, linear_state(heads.query, heads.k_width), attention, count)
