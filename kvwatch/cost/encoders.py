"""Families with encoders: those that keep no cache at all, and decoders that read an encoder's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.cost.attention import Heads, Reading, attention_layer, hidden_layers, make_heads, query_heads
from kvwatch.cost.spec import Layer, LayerKind

if TYPE_CHECKING:
    from kvwatch.cost.fields import Fields


def read_encoder(fields: Fields) -> Reading:
    """Read an encoder: bidirectional layers own no cache (vLLM 0.32.0, encoder_only_attention.py)."""
    return Reading(
        layers=(),
        hidden_layers=hidden_layers(fields),
        attention_heads=query_heads(fields),
        encoder_only=True,
        prefix_caching=False,
    )


def read_crossing(fields: Fields) -> Reading:
    """Read Whisper and BART: self and cross attention in each decoder layer (0.32.0, whisper.py).

    `max_source_positions` is the length that the encoder hands over; BART's positions serve both sides.
    """
    count = fields.integer("decoder_layers")
    query = fields.integer("decoder_attention_heads")
    heads = make_heads(query, query, fields.integer("d_model") // query)
    tokens = fields.integer("max_source_positions", "max_position_embeddings")
    layers: list[Layer] = []
    for index in range(count):
        layers += [attention_layer(index, heads), _cross_layer(index, heads, tokens)]
    return Reading(layers=tuple(layers), hidden_layers=count, attention_heads=query, prefix_caching=False)


def _cross_layer(index: int, heads: Heads, tokens: int) -> Layer:
    return Layer(
        kind=LayerKind.CROSS,
        index=index,
        kv_heads=heads.kv,
        k_width=heads.k_width,
        v_width=heads.v_width,
        encoder_tokens=tokens,
    )
