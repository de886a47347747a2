"""What llama-server allocates for a model's KV cache and recurrent states.

Follows llama.cpp b11434 (`src/llama-kv-cache*.cpp`, `src/llama-memory-recurrent.cpp`); the layout of plain
and window caches is the same since b9093. All of it is allocated in full when the model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.cost.llamacpp_memories import Cells
from kvwatch.cost.llamacpp_model import LlamaModel
from kvwatch.cost.llamacpp_options import (
    DraftKind,
    FitChange,
    LlamaDraft,
    LlamaOptions,
    LlamaOptionsError,
    Shape,
    padded,
    shape,
)

if TYPE_CHECKING:
    from kvwatch.cost.gguf_types import TensorType
    from kvwatch.cost.llamacpp_memories import LlamaCache, LlamaContext
    from kvwatch.cost.spec import LayerKind

__all__ = [
    "CacheEntry",
    "DraftKind",
    "FitChange",
    "LlamaDraft",
    "LlamaModel",
    "LlamaOptions",
    "LlamaOptionsError",
    "LlamaPool",
    "StateEntry",
    "allocate",
]

STATE_BYTES = 4
"""States are 32-bit floats whatever the cache types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One KV cache of a context, as the engine's `llama_kv_cache: size =` line describes it."""

    name: str
    kind: LayerKind
    cells: int
    """Of each stream."""
    streams: int
    layers: int
    k_bytes: int
    v_bytes: int
    follows_context: bool
    """One more token of context makes it larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntry:
    """A state of constant size of every slot."""

    name: str
    layers: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaPool:
    """The KV memory of a llama-server.

    Where `fit_changes` names CONTEXT, its numbers are those of a start with enough free memory: an upper
    bound. Where it names LAYERS, which of them lie on the device is not known.
    """

    n_ctx: int
    """Cells of the context over all streams, after rounding."""
    n_ctx_seq: int
    """Cells that one slot can claim: all of a shared pool."""
    slots: int
    streams: int
    unified: bool
    n_ubatch: int
    caches: tuple[CacheEntry, ...]
    states: tuple[StateEntry, ...]
    layer_bytes: tuple[int, ...]
    """Cache and state of each layer, without the draft context's: what moves with it to another device."""
    recurrent_bytes: int
    """States, without the draft context's."""
    total_bytes: int
    """Caches and states, those of the draft context included."""
    host_bytes: int | None
    """The part in host memory; None where `--fit` may have moved layers there."""
    bytes_per_token: float
    """What one more token of context costs, the draft context included; windows and states cost nothing."""
    slot_limit_tokens: int
    """`n_ctx` of a slot as the server reports it: prompt and answer together stay below it."""
    pool_tokens: int
    """Tokens of all slots together; 0 where the model keeps none."""
    fit_changes: frozenset[FitChange]
    draft: LlamaPool | None


def allocate(model: LlamaModel, options: LlamaOptions) -> LlamaPool:
    """Compute what a server with these options allocates.

    Raises `LlamaOptionsError` for options with which it does not start.
    """
    if model.draft_only:
        raise LlamaOptionsError(f"{model.architecture} is a draft model: it has no server of its own")
    built = shape(model, options)
    pool = _context(model, model.main, options, built, snapshots=_snapshots(model, options.draft))
    if options.draft is None:
        return pool
    draft = _draft(model, options, options.draft, pool)
    unknown = pool.host_bytes is None or draft.host_bytes is None
    return replace(
        pool,
        draft=draft,
        total_bytes=pool.total_bytes + draft.total_bytes,
        host_bytes=None if unknown else (pool.host_bytes or 0) + (draft.host_bytes or 0),
        bytes_per_token=_rate(pool.bytes_per_token + draft.bytes_per_token),
        fit_changes=pool.fit_changes | draft.fit_changes,
    )


def _snapshots(model: LlamaModel, draft: LlamaDraft | None) -> int:
    """Return the earlier states kept for taking back draft tokens."""
    if draft is None or draft.kind is DraftKind.MODEL or not model.rollback:
        return 0
    return draft.max_tokens


def _draft(model: LlamaModel, options: LlamaOptions, draft: LlamaDraft, target: LlamaPool) -> LlamaPool:
    """Compute the draft context, which is as long as its target (`common_speculative_init_result`)."""
    drafting = draft.model or model
    context = drafting.main
    if draft.kind is DraftKind.HEAD or draft.model is None:
        if drafting.draft_head is None:
            raise LlamaOptionsError(f"{drafting.architecture} has no draft layers")
        context = drafting.draft_head
    own = replace(
        options,
        ctx_size=target.n_ctx,
        cache_type_k=draft.cache_type_k,
        cache_type_v=draft.cache_type_v,
        n_gpu_layers=options.n_gpu_layers if draft.model is None else draft.n_gpu_layers,
        fit=options.fit and draft.model is None,
        draft=None,
    )
    return _context(drafting, context, own, shape(drafting, own), snapshots=0)


def _context(
    model: LlamaModel, context: LlamaContext, options: LlamaOptions, built: Shape, *, snapshots: int
) -> LlamaPool:
    """Compute one context's memories."""
    layer_bytes = [0] * model.layers
    caches: list[CacheEntry] = []
    per_token = 0.0
    for cache in context.caches:
        if not cache.layers:
            continue
        entry, rows = _cache(model, cache, options, built)
        caches.append(entry)
        for index, row in rows.items():
            layer_bytes[index] += row * entry.cells * entry.streams
        if entry.follows_context:
            per_token += sum(rows.values()) / cache.tokens_per_cell
    states: list[StateEntry] = []
    for state in context.states:
        size = state.elements * STATE_BYTES * built.slots * (1 + snapshots)
        states.append(
            StateEntry(name=state.name, layers=len(state.layers), size_bytes=size * len(state.layers))
        )
        for index in state.layers:
            layer_bytes[index] += size
    return LlamaPool(
        n_ctx=built.n_ctx,
        n_ctx_seq=built.n_ctx_seq,
        slots=built.slots,
        streams=1 if built.unified else built.slots,
        unified=built.unified,
        n_ubatch=built.n_ubatch,
        caches=tuple(caches),
        states=tuple(states),
        layer_bytes=tuple(layer_bytes),
        recurrent_bytes=sum(state.size_bytes for state in states),
        total_bytes=sum(layer_bytes),
        host_bytes=_host_bytes(options, built, layer_bytes),
        bytes_per_token=_rate(per_token),
        slot_limit_tokens=built.slot_limit,
        pool_tokens=built.n_ctx if model.has_memory else 0,
        fit_changes=built.fit_changes if model.has_memory else frozenset(),
        draft=None,
    )


def _cache(
    model: LlamaModel, cache: LlamaCache, options: LlamaOptions, built: Shape
) -> tuple[CacheEntry, dict[int, int]]:
    """Return a cache's entry and the bytes of one cell by layer."""
    unified = built.unified and not cache.per_slot
    follows = True
    match cache.cells:
        case Cells.CONTEXT:
            cells = built.n_ctx_seq
        case Cells.COMPRESSED:
            cells = padded(-(-built.n_ctx_seq // cache.tokens_per_cell))
        case Cells.WINDOW:
            wanted = (model.window or 0) * (built.slots if unified else 1) + built.n_ubatch
            follows = options.swa_full or wanted >= built.n_ctx_seq
            cells = built.n_ctx_seq if follows else padded(min(built.n_ctx_seq, wanted))
    keys = {row.index: _row(model, built.type_k, row.key_width) for row in cache.layers}
    # Without flash attention values are transposed, and all layers take the width of the widest.
    values = {
        row.index: _row(model, built.type_v, row.value_width if built.flash_attention else cache.widest_value)
        for row in cache.layers
        if row.value_width is not None
    }
    streams = 1 if unified else built.slots
    entry = CacheEntry(
        name=cache.name,
        kind=cache.kind,
        cells=cells,
        streams=streams,
        layers=len(cache.layers),
        k_bytes=sum(keys.values()) * cells * streams,
        v_bytes=sum(values.values()) * cells * streams,
        follows_context=follows,
    )
    return entry, {index: keys[index] + values.get(index, 0) for index in keys}


def _row(model: LlamaModel, kind: TensorType, width: int) -> int:
    """Return the bytes of one cell of one layer."""
    size = kind.row_bytes(width)
    if size is None:
        raise LlamaOptionsError(f"blocks of {kind.name} do not fill a row of {width} in {model.architecture}")
    return size


def _host_bytes(options: LlamaOptions, built: Shape, layer_bytes: list[int]) -> int | None:
    """Return the bytes in host memory: a layer's cache lies beside its weights (`llama_model::dev_layer`)."""
    if not options.gpu or not options.kv_offload:
        return sum(layer_bytes)
    if not any(layer_bytes):
        return 0
    if FitChange.LAYERS in built.fit_changes:
        return None
    given = options.n_gpu_layers
    on_device = len(layer_bytes) + 1 if given is None or given < 0 else given
    # The output counts as one more layer behind the last, and the last ones go first.
    return sum(layer_bytes[: max(0, len(layer_bytes) + 1 - on_device)])


def _rate(value: float) -> float:
    """Return a whole number where it is one."""
    return int(value) if value == int(value) else value
