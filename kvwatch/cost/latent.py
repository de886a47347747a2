"""Families with latent attention (MLA): one compressed vector for each token, and sparse indexers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.cost.attention import Reading, decoder, hidden_layers, query_heads
from kvwatch.cost.spec import Layer, LayerKind

if TYPE_CHECKING:
    from kvwatch.cost.fields import Fields

INDEX_SCALE_ELEMENTS = 128
"""The indexer stores FP8 keys and one 4-byte scale for each 128 of their elements (0.32.0, deepseek_v32)."""
INDEX_SCALE_BYTES = 4


def latent_width(fields: Fields) -> int:
    """Return the width of the stored vector: the compressed part and the rotary part."""
    return fields.integer("kv_lora_rank") + (fields.optional("qk_rope_head_dim") or 0)


def latent_layer(index: int, width: int) -> Layer:
    """Return a latent layer."""
    return Layer(kind=LayerKind.LATENT, index=index, kv_heads=1, k_width=width)


def indexer_layer(index: int, fields: Fields) -> Layer:
    """Return the cache of a sparse attention's indexer: one head's keys with their scales, in bytes."""
    keys = fields.integer("index_head_dim")
    width = keys + keys // INDEX_SCALE_ELEMENTS * INDEX_SCALE_BYTES
    return Layer(kind=LayerKind.INDEXER, index=index, kv_heads=1, k_width=width, element_bytes=1)


def read_latent(fields: Fields) -> Reading:
    """Read DeepSeek V2/V3 and their relatives; a file with `index_topk` has an indexer in its layers too.

    Files without `kv_lora_rank` store plain keys and values (0.32.0, deepseek_v2.py).
    """
    if fields.get("kv_lora_rank") is None:
        return read_plain(fields)
    width = latent_width(fields)
    count = hidden_layers(fields)
    layers: list[Layer] = []
    for index in range(count):
        if fields.get("index_topk") is not None and has_indexer(fields, index):
            layers.append(indexer_layer(index, fields))
        layers.append(latent_layer(index, width))
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query_heads(fields))


def has_indexer(fields: Fields, index: int) -> bool:
    """Say whether a layer selects tokens itself, not by an earlier layer's choice (0.32.0, deepseek_v32)."""
    pattern = fields.get("index_topk_pattern")
    if isinstance(pattern, (str, list)):
        return index >= len(pattern) or pattern[index] != "S"
    frequency = fields.integer("index_topk_freq", default=1)
    offset = fields.optional("index_skip_topk_offset")
    return max(index - (2 if offset is None else offset) + 1, 0) % frequency == 0


def read_doubled(fields: Fields) -> Reading:
    """Read LongCat Flash: two latent layers in each of `num_layers` (0.32.0, longcat_flash.py)."""
    width = latent_width(fields)
    count = fields.integer("num_layers", "num_hidden_layers")
    layers = [latent_layer(index, width) for index in range(count) for _ in range(2)]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query_heads(fields))


read_plain = decoder()
