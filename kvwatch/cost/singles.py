"""Families whose rule reads one architecture each and shares nothing with the others'."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.cost.attention import (
    Heads,
    Reading,
    attention_layer,
    decoder,
    derived_width,
    make_heads,
    query_heads,
    stated_width,
)
from kvwatch.cost.windows import listed_windows, read_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.cost.fields import Fields


def read_hrm(fields: Fields) -> Reading:
    """Read HRM: every pass through its two stacks keeps a cache of its own (vLLM 0.32.0, hrm_text.py)."""
    query = query_heads(fields)
    passes = fields.integer("H_cycles") * (fields.integer("L_cycles") + 1)
    count = passes * fields.integer("num_layers_per_stack")
    heads = make_heads(query, query, stated_width(fields))
    return Reading(
        layers=tuple(attention_layer(index, heads) for index in range(count)),
        hidden_layers=count,
        attention_heads=query,
    )


def _group_heads(fields: Fields) -> Heads:
    """Return the heads of Step 1: one KV head where no groups are stated (0.32.0, step1.py)."""
    kv = fields.integer("num_attention_groups", "num_key_value_heads", default=1)
    return make_heads(query_heads(fields), kv, derived_width(fields))


def _chunked_types(fields: Fields, count: int) -> Sequence[int | None]:
    """Return a window for the layers whose type is chunked: they look back as well (0.32.0, rnj1.py)."""
    window = read_window(fields)
    types = fields.listed(count, "layer_types")
    return [window if kind == "chunked_attention" else None for kind in types]


def _stated_windows(fields: Fields, count: int) -> Sequence[int | None]:
    """Return the list of windows that the file states (0.32.0, plamo3.py)."""
    return [window or None for window in fields.listed(count, "interleaved_sliding_window")]


def _rotary_windows(fields: Fields, count: int) -> Sequence[int | None]:
    """Return a window for the layers with rotary positions (0.32.0, muse_glimmer.py)."""
    if fields.items("no_rope_layers") is None:
        return listed_windows(fields, count)
    window = read_window(fields)
    return [window if rotary == 1 else None for rotary in fields.listed(count, "no_rope_layers")]


read_step1 = decoder(_group_heads)
read_rnj1 = decoder(windows=_chunked_types)
read_plamo3 = decoder(windows=_stated_windows)
read_muse_glimmer = decoder(windows=_rotary_windows)
