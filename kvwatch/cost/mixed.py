"""Families whose attention layers differ from each other: in heads, widths, sharing or chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.cost.attention import (
    Heads,
    Reading,
    attention_layer,
    decoder,
    derived_width,
    hidden_layers,
    make_heads,
    own_heads,
    query_heads,
    read_heads,
    stated_width,
)
from kvwatch.cost.encoders import read_encoder
from kvwatch.cost.spec import Layer, LayerKind
from kvwatch.cost.windows import periodic, read_window, typed_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.cost.fields import Fields

LOOP_WINDOW = 64
gemma3n_windows = periodic(5)
read_gemma3 = decoder(windows=periodic(6, name="sliding_window_pattern"))


def read_falcon(fields: Fields) -> Reading:
    """Read Falcon: one KV head with `multi_query`, and no cache dtype unless positions are learned.

    vLLM 0.32.0, falcon.py: the rotary and ALiBi branches build their attention without the cache config.
    """
    query = query_heads(fields)
    if fields.flag("new_decoder_architecture"):
        kv = fields.integer("num_kv_heads", "n_head_kv", default=query)
    else:
        kv = 1 if fields.flag("multi_query", default=True) else query
    heads = make_heads(query, kv, derived_width(fields))
    count = hidden_layers(fields)
    layers = [replace(attention_layer(index, heads), ignores_cache_dtype=True) for index in range(count)]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query)


def read_chatglm(fields: Fields) -> Reading:
    """Read ChatGLM 2 and 3: grouped heads only with `multi_query_attention` (0.32.0, chatglm.py)."""
    query = query_heads(fields)
    grouped = fields.flag("multi_query_attention")
    kv = fields.integer("multi_query_group_num") if grouped else query
    heads = make_heads(query, kv, derived_width(fields))
    count = fields.integer("num_layers", "num_hidden_layers")
    return Reading(
        layers=tuple(attention_layer(index, heads) for index in range(count)),
        hidden_layers=count,
        attention_heads=query,
    )


def read_bigcode(fields: Fields) -> Reading:
    """Read GPTBigCode: one KV head with `multi_query` (transformers, gpt_bigcode)."""
    heads = own_heads(fields)
    if fields.flag("multi_query", default=True):
        heads = replace(heads, kv=1)
    count = hidden_layers(fields)
    return Reading(
        layers=tuple(attention_layer(index, heads) for index in range(count)),
        hidden_layers=count,
        attention_heads=heads.query,
    )


def read_nested_heads(fields: Fields) -> Reading:
    """Read DBRX and MPT, whose KV heads stand in `attn_config` (0.32.0, dbrx.py; 0.28.0, mpt.py)."""
    query = query_heads(fields)
    inner = fields.get("attn_config")
    kv = inner.get("kv_n_heads", query) if isinstance(inner, dict) else query
    heads = make_heads(query, int(kv), derived_width(fields))
    count = hidden_layers(fields)
    return Reading(
        layers=tuple(attention_layer(index, heads) for index in range(count)),
        hidden_layers=count,
        attention_heads=query,
    )


def read_latent_keys(fields: Fields) -> Reading:
    """Read MiniCPM3: latent projections, but each head's keys and values are stored (0.32.0, minicpm3.py)."""
    query = query_heads(fields)
    width = fields.integer("qk_nope_head_dim") + fields.integer("qk_rope_head_dim")
    count = hidden_layers(fields)
    heads = make_heads(query, query, width)
    return Reading(
        layers=tuple(attention_layer(index, heads) for index in range(count)),
        hidden_layers=count,
        attention_heads=query,
    )


def read_gemma3_text(fields: Fields) -> Reading:
    """Read Gemma 3's text model, which is an encoder where the file says so (0.32.0, models/config.py)."""
    return read_encoder(fields) if fields.flag("use_bidirectional_attention") else read_gemma3(fields)


def read_gemma3n(fields: Fields) -> Reading:
    """Read Gemma 3n: the last layers use the cache of earlier ones and own none (0.32.0, gemma3n.py)."""
    heads = read_heads(fields)
    count = hidden_layers(fields)
    shared = fields.optional("num_kv_shared_layers") or 0
    windows = gemma3n_windows(fields, count)
    own = count - shared
    layers = [
        attention_layer(index, heads, window)
        for index, window in enumerate(windows)
        if index < own or own - (1 if window is None else 2) < 0
    ]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=heads.query)


def read_gemma4(fields: Fields) -> Reading:
    """Read Gemma 4: wider heads in full layers, shared caches in the last ones, the last one full.

    0.32.0, gemma4.py and the config class: full layers have `global_head_dim` and, where keys are values,
    `num_global_key_value_heads`.
    """
    query = query_heads(fields)
    count = hidden_layers(fields)
    kv = fields.integer("num_key_value_heads", default=query)
    local = make_heads(query, kv, fields.integer("head_dim", default=256))
    wide = fields.integer("global_head_dim", default=512)
    one_kind = "attention_k_eq_v" in fields.values or "attention_k_eq_v" in fields.defaults
    fewer = (
        fields.optional("num_global_key_value_heads")
        if fields.flag("attention_k_eq_v", default=not one_kind)
        else None
    )
    full = make_heads(query, fewer or kv, wide)
    windows = list(periodic(6)(fields, count))
    windows[-1] = None
    own = count - (fields.optional("num_kv_shared_layers") or 0)
    layers = []
    for index, window in enumerate(windows):
        target = any((window is None) == (earlier is None) for earlier in windows[:own])
        if index < own or not target:
            layers.append(attention_layer(index, full if window is None else local, window))
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query)


def read_llama4(fields: Fields) -> Reading:
    """Read Llama 4: chunked attention where the layer has rotary positions (0.32.0, llama4.py)."""
    heads = read_heads(fields)
    count = hidden_layers(fields)
    chunk = fields.optional("attention_chunk_size")
    ropes = fields.items("no_rope_layers")
    if not ropes:
        interval = fields.integer("no_rope_layer_interval", default=4)
        ropes = [int((index + 1) % interval != 0) for index in range(count)]
    layers = tuple(
        _llama4_layer(index, heads, chunk if rope else None) for index, rope in enumerate(ropes[:count])
    )
    return Reading(layers=layers, hidden_layers=count, attention_heads=heads.query)


def _llama4_layer(index: int, heads: Heads, chunk: int | None) -> Layer:
    layer = attention_layer(index, heads)
    return replace(layer, kind=LayerKind.CHUNKED, window=chunk) if chunk else layer


def read_mimo_v2(fields: Fields) -> Reading:
    """Read MiMo V2: window layers have their own heads, values narrower than keys (0.32.0, mimo_v2.py)."""
    query = query_heads(fields)
    count = hidden_layers(fields)
    width = stated_width(fields)
    full = Heads(
        query=query,
        kv=fields.integer("num_key_value_heads", default=query),
        k_width=width,
        v_width=fields.integer("v_head_dim", default=width),
    )
    local_width = fields.integer("swa_head_dim")
    local = Heads(
        query=fields.integer("swa_num_attention_heads"),
        kv=fields.integer("swa_num_key_value_heads"),
        k_width=local_width,
        v_width=fields.integer("swa_v_head_dim", default=local_width),
    )
    window = fields.integer("sliding_window_size", "sliding_window")
    pattern = fields.listed(count, "hybrid_layer_pattern")
    layers = [
        attention_layer(index, local, window) if is_local == 1 else attention_layer(index, full)
        for index, is_local in enumerate(pattern)
    ]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query)


def read_step3(fields: Fields) -> Reading:
    """Read Step 3: one KV head of the stated width (0.32.0, step3_text.py)."""
    query = query_heads(fields)
    heads = make_heads(query, 1, fields.integer("head_dim"))
    count = hidden_layers(fields)
    return Reading(
        layers=tuple(attention_layer(index, heads) for index in range(count)),
        hidden_layers=count,
        attention_heads=query,
    )


def read_step3p5(fields: Fields) -> Reading:
    """Read Step 3.5: layers of one type may have other heads (0.32.0, step3p5.py)."""
    query = query_heads(fields)
    count = hidden_layers(fields)
    heads = make_heads(query, fields.integer("num_attention_groups", default=query), stated_width(fields))
    window = fields.optional("sliding_window")
    listed = fields.items("layer_types")
    types: Sequence[object] = listed[:count] if listed else []
    windows = typed_windows(types, window) if types else [None if i % 2 else window for i in range(count)]
    other = fields.get("attention_other_setting")
    layers = []
    for index, own in enumerate(windows):
        special = isinstance(other, dict) and bool(types) and types[index] == other.get("attention_type")
        layers.append(attention_layer(index, _other_heads(fields, heads) if special else heads, own))
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query)


def _other_heads(fields: Fields, heads: Heads) -> Heads:
    inner = fields.nested("attention_other_setting")
    width = inner.integer("head_dim", default=heads.k_width)
    return make_heads(
        inner.integer("num_attention_heads", default=heads.query),
        inner.integer("num_attention_groups", default=heads.kv),
        width,
    )


def read_variable_heads(fields: Fields) -> Reading:
    """Read DeciLM / Nemotron-NAS: `block_configs` gives each layer its head groups or no attention.

    0.32.0, nemotron_nas.py.
    """
    query = query_heads(fields)
    count = hidden_layers(fields)
    width = stated_width(fields)
    layers = []
    for index, block in enumerate(fields.listed(count, "block_configs")):
        attention = block.get("attention", {}) if isinstance(block, dict) else {}
        if attention.get("no_op") or attention.get("replace_with_linear"):
            continue
        group = attention.get("n_heads_in_group")
        if not isinstance(group, int):
            raise fields.missing("block_configs.attention.n_heads_in_group")
        layers.append(attention_layer(index, make_heads(query, query // group, width)))
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query)


def read_looped(fields: Fields) -> Reading:
    """Read IQuest LoopCoder: each layer runs `loop_num` times, after the first over a window.

    0.32.0, iquest_loopcoder.py.
    """
    query = query_heads(fields)
    count = hidden_layers(fields)
    heads = make_heads(query, fields.integer("num_key_value_heads", default=query), derived_width(fields))
    loops = fields.integer("loop_num", default=2)
    window = read_window(fields, "loop_window_size") or LOOP_WINDOW
    layers = []
    for index in range(count):
        layers += [attention_layer(index, heads, window if loop else None) for loop in range(loops)]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query)
