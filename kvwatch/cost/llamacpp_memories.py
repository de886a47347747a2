"""The memories that llama.cpp creates for a context: which caches and states, with which layers and widths.

Follows `llama_model::create_memory` (`src/llama-model.cpp`) and the constructors in `src/llama-kv-cache*.cpp`
and `src/llama-memory-*.cpp` of b11434. Nothing here depends on the server's options.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvwatch.cost.llamacpp_fields import COMPRESSED_RATIOS, Fields
from kvwatch.cost.llamacpp_rules import Architecture, Memory, Recurrence
from kvwatch.cost.spec import LayerKind

if TYPE_CHECKING:
    from collections.abc import Callable


class Cells(StrEnum):
    """What decides the cells of a cache."""

    CONTEXT = "context"
    """The context of a stream."""
    WINDOW = "window"
    """The window, the slots of the stream and one micro-batch."""
    COMPRESSED = "compressed"
    """One cell for `tokens_per_cell` tokens of the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayer:
    """One layer's row of a cache, in elements; `value_width` is None where no values are kept."""

    index: int
    key_width: int
    value_width: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCache:
    """One KV cache of a context."""

    name: str
    kind: LayerKind
    layers: tuple[CacheLayer, ...]
    cells: Cells = Cells.CONTEXT
    tokens_per_cell: int = 1
    widest_value: int = 0
    """Width of every layer's values without flash attention."""
    per_slot: bool = False
    """Every slot has a stream of its own, whatever `--kv-unified` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaState:
    """A state of constant size for each slot, always 32-bit floats."""

    name: str
    layers: tuple[int, ...]
    elements: int
    """In one layer for one slot, before snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaContext:
    """The memories of one context."""

    caches: tuple[LlamaCache, ...] = ()
    states: tuple[LlamaState, ...] = ()


def is_windowed(fields: Fields, index: int) -> bool:
    """Return whether a layer has the window."""
    return fields.window is not None and fields.window.flags[index]


def main_context(fields: Fields, rules: Architecture) -> LlamaContext:
    """Return the memories of the model's own context."""
    trunk = fields.trunk if rules.trunk_only and fields.trunk else fields.layers

    def owns(index: int) -> bool:
        return index < trunk

    match rules.memory:
        case Memory.NONE | Memory.SHARED:
            return LlamaContext()
        case Memory.RECURRENT:
            return LlamaContext(states=_states(fields, fields.recurrent))
        case Memory.ATTENTION:
            return LlamaContext(caches=_attention(fields, owns))
        case Memory.HYBRID | Memory.HYBRID_INDEXER:
            return _hybrid(fields, rules, owns)
        case Memory.SPARSE_LATENT | Memory.SPARSE_LATENT_WINDOW | Memory.SPARSE_BLOCKS:
            indexer = _indexer(fields, lambda index: owns(index) and fields.indexer[index])
            return LlamaContext(caches=(*_attention(fields, owns), *indexer))
        case Memory.COMPRESSED:
            return _compressed(fields)


def draft_head_context(fields: Fields, rules: Architecture) -> LlamaContext:
    """Return the memories of an MTP context: the layers behind the trunk, where the engine knows how."""

    def owns(index: int) -> bool:
        return index >= fields.trunk

    plain = rules.memory in {Memory.ATTENTION, Memory.COMPRESSED}
    if plain or rules.plain_draft_heads:
        return LlamaContext(caches=_attention(fields, owns, split_window=plain))
    if rules.memory is Memory.HYBRID_INDEXER:
        return LlamaContext(caches=(*_attention(fields, owns), *_indexer(fields, owns, values=False)))
    return main_context(fields, rules)


def _attention(
    fields: Fields, owns: Callable[[int], bool], *, split_window: bool = True
) -> tuple[LlamaCache, ...]:
    """Return the KV cache over the owned layers, and the window layers' own one where there is a window."""
    owned = [index for index in range(fields.cached) if owns(index)]
    full_kind = LayerKind.LATENT if fields.latent else LayerKind.FULL
    if fields.window is None or not split_window:
        return (_cache(fields, "full", full_kind, owned),)
    kind = LayerKind.LATENT_WINDOW if fields.latent else LayerKind.WINDOW
    kind = LayerKind.CHUNKED if fields.window.chunked else kind
    full = [index for index in owned if not is_windowed(fields, index)]
    windowed = [index for index in owned if is_windowed(fields, index)]
    return (
        _cache(fields, "full", full_kind, full),
        _cache(fields, "window", kind, windowed, cells=Cells.WINDOW),
    )


def _cache(
    fields: Fields, name: str, kind: LayerKind, owned: list[int], cells: Cells = Cells.CONTEXT
) -> LlamaCache:
    """Return a cache of the model's own keys and values."""
    rows = [_row(fields, index) for index in range(fields.layers)]
    return LlamaCache(
        name=name,
        kind=kind,
        layers=tuple(rows[index] for index in owned),
        cells=cells,
        widest_value=max(row.value_width or 0 for row in rows),
    )


def _row(fields: Fields, index: int) -> CacheLayer:
    """Return a layer's row (`n_embd_k_gqa`, `n_embd_v_gqa`)."""
    heads, windowed = fields.heads, is_windowed(fields, index)
    count = fields.kv_heads[index]
    return CacheLayer(
        index=index,
        key_width=count * (heads.window_key if windowed else heads.key),
        value_width=None if fields.latent else count * (heads.window_value if windowed else heads.value),
    )


def _indexer(
    fields: Fields, owns: Callable[[int], bool], *, values: bool | None = None
) -> tuple[LlamaCache, ...]:
    """Return the indexer's cache: one key head a layer, with values where the engine does not drop them."""
    owned = [index for index in range(fields.layers) if owns(index)]
    if not any(fields.indexer):
        return ()
    heads = fields.heads
    has_values = not fields.latent if values is None else values
    rows = [
        CacheLayer(
            index=index,
            key_width=heads.window_key if is_windowed(fields, index) else fields.indexer_width,
            value_width=(heads.window_value if is_windowed(fields, index) else heads.value)
            if has_values
            else None,
        )
        for index in range(fields.layers)
    ]
    return (
        LlamaCache(
            name="indexer",
            kind=LayerKind.INDEXER,
            layers=tuple(rows[index] for index in owned),
            widest_value=max(row.value_width or 0 for row in rows),
        ),
    )


def _hybrid(fields: Fields, rules: Architecture, owns: Callable[[int], bool]) -> LlamaContext:
    """Return attention over the layers without a state, and the states of the others."""

    def attends(index: int) -> bool:
        if rules.recurrence is Recurrence.ALL:
            return owns(index)
        idle = rules.recurrence is Recurrence.NO_KV_HEADS_NO_FFN and fields.feed_forward[index] > 0
        return owns(index) and not fields.recurrent[index] and not idle

    caches = _attention(fields, attends)
    if rules.memory is Memory.HYBRID_INDEXER:
        indexer = _indexer(fields, lambda index: attends(index) and fields.indexer[index], values=False)
        caches = (*caches, *indexer)
    return LlamaContext(caches=caches, states=_states(fields, fields.recurrent))


def _states(fields: Fields, recurrent: tuple[bool, ...]) -> tuple[LlamaState, ...]:
    """Return the recurrent states of the trunk's layers."""
    layers = tuple(index for index in range(fields.trunk) if recurrent[index])
    state = fields.state
    history = tuple(index for index in layers if index in state.history_layers)
    states = (
        LlamaState(name="conv", layers=layers, elements=state.conv),
        LlamaState(name="state", layers=layers, elements=state.state),
        LlamaState(name="history", layers=history, elements=state.history),
    )
    return tuple(one for one in states if one.elements and one.layers)


def _compressed(fields: Fields) -> LlamaContext:
    """Return a window cache of latent keys, two compressed caches, an indexer, and their running states.

    The widths follow layer 0, as in `llama_kv_cache_dsv4`; every slot has streams of its own.
    """
    few, many = COMPRESSED_RATIOS
    width, key = fields.heads.window_key, fields.indexer_key_width

    def cache(name: str, kind: LayerKind, ratio: int | None, head: int, heads: int | None) -> LlamaCache:
        owned = [index for index in range(fields.layers) if ratio in {None, fields.ratios[index]}]
        return LlamaCache(
            name=name,
            kind=kind,
            layers=tuple(
                CacheLayer(index=index, key_width=head * (heads or fields.kv_heads[index]), value_width=None)
                for index in owned
            ),
            cells=Cells.WINDOW if ratio is None else Cells.COMPRESSED,
            tokens_per_cell=ratio or 1,
            per_slot=True,
        )

    def state(name: str, ratio: int, elements: int) -> LlamaState:
        owned = tuple(index for index in range(fields.trunk) if fields.ratios[index] == ratio)
        return LlamaState(name=name, layers=owned, elements=2 * elements)

    return LlamaContext(
        caches=(
            cache("window", LayerKind.LATENT_WINDOW, None, width, None),
            cache("compressed", LayerKind.LATENT, few, width, None),
            cache("heavily_compressed", LayerKind.LATENT, many, width, None),
            cache("indexer", LayerKind.INDEXER, few, key, 1),
        ),
        states=(
            state("compressed", few, 2 * few * 2 * width),
            state("heavily_compressed", many, many * width),
            state("indexer", few, 2 * few * 2 * key),
        ),
    )
