"""Families with linear attention, delta nets or short convolutions beside attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.cost.attention import Reading, hidden_layers, query_heads, read_heads
from kvwatch.cost.latent import latent_layer, latent_width
from kvwatch.cost.recurrent import alternate, state_layer, typed_layers
from kvwatch.cost.states import delta_state, kimi_state, linear_state, short_conv_state

if TYPE_CHECKING:
    from kvwatch.cost.fields import Fields


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
    """Read MiniMax-Text-01 and M1: lightning attention where the list says 0 (0.22.0, minimax_text_01.py)."""
    count = hidden_layers(fields)
    heads = read_heads(fields)
    if fields.items("attn_type_list") is not None:
        kinds = fields.listed(count, "attn_type_list")
        attention = [index for index, kind in enumerate(kinds) if kind == 1]
    else:
        attention = typed_layers(fields, count, "layer_types")
    return alternate(fields, heads, linear_state(heads.query, heads.k_width), attention, count)
