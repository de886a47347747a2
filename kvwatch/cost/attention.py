"""Families whose layers keep keys and values of single tokens: full attention and windows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.spec import Layer, LayerKind
from kvwatch.cost.windows import model_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvwatch.cost.fields import Fields

    Windows = Callable[[Fields, int], Sequence[int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a family's rule read of a config: the part of a ModelSpec that differs between families."""

    layers: tuple[Layer, ...]
    hidden_layers: int
    attention_heads: int
    block_layer: Layer | None = None
    ssm_dtype: str | None = None
    state_chunk: int | None = None
    encoder_only: bool = False
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The attention of one layer: query heads, KV heads and the widths of a key and of a value."""

    query: int
    kv: int
    k_width: int
    v_width: int


KV_HEADS = (
    "num_key_value_heads",
    "n_head_kv",
    "num_kv_heads",
    "multi_query_group_num",
    "num_attention_groups",
)


def hidden_layers(fields: Fields) -> int:
    """Return the number of decoder layers."""
    return fields.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def query_heads(fields: Fields) -> int:
    """Return the number of query heads."""
    return fields.integer("num_attention_heads", "n_head", "n_heads", "num_heads")


def model_width(fields: Fields) -> int:
    """Return the width of a token's hidden state."""
    return fields.integer("hidden_size", "n_embd", "d_model", "n_embed")


def derived_width(fields: Fields) -> int:
    """Return hidden size / query heads, which some model code takes whatever `head_dim` says."""
    return model_width(fields) // query_heads(fields)


def stated_width(fields: Fields) -> int:
    """Return the stated head width, else hidden size / query heads."""
    return fields.optional("head_dim", "hidden_size_per_head") or derived_width(fields)


def read_heads(fields: Fields) -> Heads:
    """Return the heads of a Llama-like layer; KV heads default to the query heads (multi-head attention).

    vLLM 0.32.0, transformers_utils/model_arch_config_convertor.py.
    """
    query = query_heads(fields)
    return make_heads(query, fields.integer(*KV_HEADS, default=query), stated_width(fields))


def derived_heads(fields: Fields) -> Heads:
    """Return the heads of model code that ignores `head_dim` (0.32.0: qwen2.py, minicpm.py, orion.py)."""
    query = query_heads(fields)
    return make_heads(query, fields.integer(*KV_HEADS, default=query), derived_width(fields))


def own_heads(fields: Fields) -> Heads:
    """Return the heads of multi-head attention: every head has its own keys (0.32.0: gpt2.py, opt.py)."""
    query = query_heads(fields)
    return make_heads(query, query, derived_width(fields))


def make_heads(query: int, kv: int, width: int) -> Heads:
    """Return heads whose keys and values are equally wide."""
    return Heads(query=query, kv=kv, k_width=width, v_width=width)


def attention_layer(index: int, heads: Heads, window: int | None = None) -> Layer:
    """Return a layer with full attention, or with a window of it."""
    return Layer(
        kind=LayerKind.FULL if window is None else LayerKind.WINDOW,
        index=index,
        kv_heads=heads.kv,
        k_width=heads.k_width,
        v_width=heads.v_width,
        window=window,
    )


def decoder(
    heads: Callable[[Fields], Heads] = read_heads, windows: Windows = model_windows
) -> Callable[[Fields], Reading]:
    """Return the rule of a decoder whose layers have the same heads, and each a window or none."""

    def read(fields: Fields) -> Reading:
        own = heads(fields)
        count = hidden_layers(fields)
        layers = enumerate(windows(fields, count))
        return Reading(
            layers=tuple(attention_layer(index, own, window) for index, window in layers),
            hidden_layers=count,
            attention_heads=own.query,
        )

    return read
