"""Families with state space layers: Mamba 1 and 2, alone or beside attention."""

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
from kvwatch.cost.recurrent import ATTENTION_TYPES, RECURRENT_TYPES, alternate, state_layer, typed_layers
from kvwatch.cost.states import State, mamba1_state, mamba2_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.cost.fields import Fields
    from kvwatch.cost.spec import Layer

DEFAULT_CHUNK = 2048
"""Tokens that the engine takes for a chunk where a file states none (0.27.0, config/model.py)."""


def read_chunk(fields: Fields) -> int:
    """Return the tokens that the layers' kernels read at once."""
    return fields.integer("mamba_chunk_size", "chunk_size", default=DEFAULT_CHUNK)


def mamba_state(fields: Fields) -> State:
    """Return the state of a Mamba file (0.32.0, mamba.py)."""
    inner = fields.optional("intermediate_size")
    if inner is None:
        inner = fields.integer("expand", default=2) * model_width(fields)
    return mamba1_state(
        read_chunk(fields), inner, fields.integer("state_size"), fields.integer("conv_kernel")
    )


def mamba2_file_state(fields: Fields) -> State:
    """Return the state of a Mamba 2 file (0.32.0, mamba2.py)."""
    return mamba2_state(
        chunk=read_chunk(fields),
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
        read_chunk(fields),
        inner,
        fields.integer("mamba_d_state", default=16),
        fields.integer("mamba_d_conv", default=4),
    )
    return alternate(fields, read_heads(fields), state, attention, count)


def bamba_state(fields: Fields) -> State:
    """Return the Mamba 2 state of Bamba, Granite 4 and Falcon-H1 files."""
    inner = fields.optional("mamba_d_ssm") or fields.integer("mamba_expand", default=2) * model_width(fields)
    heads = fields.integer("mamba_n_heads", default=128)
    width = fields.get("mamba_d_head")
    return mamba2_state(
        chunk=read_chunk(fields),
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
    return Reading(
        layers=tuple(layers), hidden_layers=count, attention_heads=heads.query, state_chunk=state.chunk
    )


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
        chunk=read_chunk(fields),
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
        state_chunk=state.chunk,
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
        chunk=read_chunk(fields),
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
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query, state_chunk=state.chunk)


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
        chunk=read_chunk(fields),
        inner=mamba_heads * width,
        groups=0,
        heads=mamba_heads,
        width=width,
        state=fields.integer("mamba_d_state", default=64),
        conv=fields.integer("mamba_d_conv", default=4),
    )
    return alternate(fields, heads, state, attention, count)
