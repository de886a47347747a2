"""Families whose every layer keeps keys and values of every token: MHA, GQA, MQA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.spec import Layer, LayerKind

if TYPE_CHECKING:
    from kvwatch.cost.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a family's rule read of a config: the part of a ModelSpec that differs between families."""

    layers: tuple[Layer, ...]
    hidden_layers: int
    attention_heads: int
    block_layer: Layer | None = None
    ssm_dtype: str | None = None
    encoder_only: bool = False
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The attention of one layer: query heads, KV heads and the width of a head."""

    query: int
    kv: int
    width: int


def hidden_layers(fields: Fields) -> int:
    """Return the number of decoder layers."""
    return fields.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def query_heads(fields: Fields) -> int:
    """Return the number of query heads."""
    return fields.integer("num_attention_heads", "n_head", "n_heads", "num_heads")


def model_width(fields: Fields) -> int:
    """Return the width of a token's hidden state."""
    return fields.integer("hidden_size", "n_embd", "d_model")


def read_heads(fields: Fields) -> Heads:
    """Return the heads of a Llama-like layer.

    KV heads default to the query heads (multi-head attention); the head width to hidden size / query heads
    (vLLM 0.32.0, transformers_utils/model_arch_config_convertor.py).
    """
    query = query_heads(fields)
    kv = fields.integer(
        "num_key_value_heads", "n_head_kv", "num_kv_heads", "num_attention_groups", default=query
    )
    return Heads(query=query, kv=kv, width=head_width(fields, query))


def head_width(fields: Fields, query: int) -> int:
    """Return the stated head width, else hidden size / query heads."""
    stated = fields.optional("head_dim", "hidden_size_per_head")
    return stated or model_width(fields) // query


def full_layers(count: int, heads: Heads) -> tuple[Layer, ...]:
    """Return `count` full-attention layers."""
    return tuple(full_layer(index, heads) for index in range(count))


def full_layer(index: int, heads: Heads) -> Layer:
    """Return a full-attention layer."""
    return Layer(
        kind=LayerKind.FULL, index=index, kv_heads=heads.kv, k_width=heads.width, v_width=heads.width
    )


def read_uniform(fields: Fields) -> Reading:
    """Read a model whose layers all have full attention."""
    heads = read_heads(fields)
    count = hidden_layers(fields)
    return Reading(layers=full_layers(count, heads), hidden_layers=count, attention_heads=heads.query)
