"""What a llama-server was told, and the context that it makes of it.

Follows `llama_server` (`tools/server/server.cpp`), the `llama_context` constructor (`src/llama-context.cpp`)
and `common/fit.cpp` of b11434; the rounding is the same since b9093.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvwatch.cost.gguf_types import CACHE_TYPES, TensorType

if TYPE_CHECKING:
    from kvwatch.cost.llamacpp_model import LlamaModel

AUTO_SLOTS = 4
MAX_SLOTS = 256
CELL_STEP = 256
"""Contexts and window caches are rounded up to multiples of this many cells."""


class LlamaOptionsError(ValueError):
    """Options with which llama-server does not start, in its own terms."""


class FitChange(StrEnum):
    """What `--fit`, on by default, may have changed at start to suit the free memory of the day."""

    CONTEXT = "context"
    """`--ctx-size` was not given: the context may be smaller."""
    LAYERS = "layers"
    """`--n-gpu-layers` was not given: layers may be in host memory."""


class DraftKind(StrEnum):
    """How draft tokens are made, as far as memory is concerned."""

    MODEL = "draft-simple"
    HEAD = "draft-mtp"
    """The model's own or a separate draft head; as the two below it needs snapshots of recurrent states."""
    EAGLE3 = "draft-eagle3"
    BLOCK = "draft-dflash"
    """Also draft-dspark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaDraft:
    """A second context in the same process, of the same length, with cache types of its own."""

    model: LlamaModel | None = None
    """None: the draft layers of the target's own file."""
    kind: DraftKind = DraftKind.MODEL
    max_tokens: int = 3
    """`--spec-draft-n-max`."""
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    n_gpu_layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """Options of llama-server that change its KV memory, with b11434's defaults."""

    ctx_size: int | None = None
    """`-c`: tokens of the whole pool. None: not given; 0: the training context, which `--fit` leaves alone.

    Where it was not given, the `n_ctx` of a slot tells what became of it: that number in a shared pool, times
    the slots in a split one.
    """
    parallel: int | None = None
    """`-np`: None or negative is automatic, which means 4 slots that share one pool."""
    kv_unified: bool = False
    kv_unified_per_slot: int = 0
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    batch_size: int = 2048
    ubatch_size: int = 512
    swa_full: bool = False
    kv_offload: bool = True
    n_gpu_layers: int | None = None
    """`-ngl`: None or -1 is automatic, other negative numbers mean all layers."""
    gpu: bool = True
    """False where no device is used: a CPU build, or `--device none`."""
    flash_attention: bool | None = None
    """`-fa`: None is automatic, which counts as on where memory is concerned."""
    split_mode: str = "layer"
    """`-sm`. With `tensor`, what every device mirrors (indexers, some states) is counted once."""
    fit: bool = True
    context_train: int | None = None
    """The training context where `--yarn-orig-ctx` or `--rope-scale` changed it."""
    draft: LlamaDraft | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The context as the engine builds it."""

    n_ctx: int
    """Cells of all streams together."""
    n_ctx_seq: int
    """Cells of one stream: the context of one slot in a split pool, of all of them in a shared one."""
    slots: int
    unified: bool
    n_ubatch: int
    slot_limit: int
    type_k: TensorType
    type_v: TensorType
    flash_attention: bool
    fit_changes: frozenset[FitChange]


def shape(model: LlamaModel, options: LlamaOptions) -> Shape:
    """Resolve the options; raises `LlamaOptionsError` for those the server refuses."""
    automatic = options.parallel is None or options.parallel < 0
    slots = AUTO_SLOTS if automatic else options.parallel or 0
    if not 0 < slots <= MAX_SLOTS:
        raise LlamaOptionsError(f"{slots} slots: 1 to {MAX_SLOTS} are possible")
    unified = automatic or options.kv_unified
    context_train = model.context_train if options.context_train is None else options.context_train
    n_ctx, changes = _context(options, slots, 1 if unified else slots, model.context_train)
    # Taken before the context is rounded up, as the engine does.
    n_batch = min(options.batch_size, n_ctx) if model.causal else options.batch_size
    n_ubatch = min(n_batch, options.ubatch_size or options.batch_size)
    if n_ubatch <= 0:
        raise LlamaOptionsError("the batch is empty")
    n_ctx = padded(n_ctx)
    n_ctx_seq = n_ctx if unified else padded(n_ctx // slots)
    if not n_ctx_seq:
        raise LlamaOptionsError(f"a context of {n_ctx} leaves nothing for each of {slots} slots")
    n_ctx = n_ctx if unified else n_ctx_seq * slots
    limit = min(n_ctx_seq, options.kv_unified_per_slot or n_ctx_seq, context_train)
    type_k, type_v, flash_attention = cache_types(model, options)
    return Shape(
        n_ctx=n_ctx,
        n_ctx_seq=n_ctx_seq,
        slots=slots,
        unified=unified,
        n_ubatch=n_ubatch,
        slot_limit=limit,
        type_k=type_k,
        type_v=type_v,
        flash_attention=flash_attention,
        fit_changes=changes,
    )


def padded(cells: int) -> int:
    """Round up to whole steps of 256 cells."""
    return -(-cells // CELL_STEP) * CELL_STEP


def _context(
    options: LlamaOptions, slots: int, streams: int, context_train: int
) -> tuple[int, frozenset[FitChange]]:
    """Return the tokens of the pool before rounding, and what `--fit` may have changed."""
    fits = options.fit and options.split_mode != "tensor"
    changes = set[FitChange]()
    layers_given = options.n_gpu_layers is not None and options.n_gpu_layers != -1
    if fits and options.gpu and options.kv_offload and not layers_given:
        changes.add(FitChange.LAYERS)
    if options.ctx_size:
        return options.ctx_size, frozenset(changes)
    if options.ctx_size is None and options.kv_unified_per_slot:
        return slots * options.kv_unified_per_slot, frozenset(changes)
    if not context_train:
        raise LlamaOptionsError("neither the options nor the model name a context size")
    if options.ctx_size is None and fits:
        changes.add(FitChange.CONTEXT)
    # `--fit` resolves an open context to one for every stream; without it, one is divided among them.
    return context_train * (streams if fits else 1), frozenset(changes)


def cache_types(model: LlamaModel, options: LlamaOptions) -> tuple[TensorType, TensorType, bool]:
    """Return the cache's element types and whether flash attention is on; raises `LlamaOptionsError`.

    The rules are those of `llama_init_from_model`: quantised values need flash attention, and with it the
    blocks of a quantised type must divide the head.
    """
    types = []
    for side, name in (("K", options.cache_type_k), ("V", options.cache_type_v)):
        kind = CACHE_TYPES.get(name)
        if kind is None:
            raise LlamaOptionsError(f"{side} cache type {name!r}: known are {', '.join(sorted(CACHE_TYPES))}")
        types.append(kind)
    type_k, type_v = types
    if model.same_cache_types and type_k is not type_v:
        raise LlamaOptionsError(
            f"{model.architecture} keeps K and V in one type: {type_k.name}, {type_v.name}"
        )
    flash_attention = model.flash_attention and options.flash_attention is not False
    if options.split_mode == "tensor" and not flash_attention:
        raise LlamaOptionsError("split mode tensor needs flash attention")
    if type_v.block_elements > 1 and not flash_attention:
        raise LlamaOptionsError(f"V cache type {type_v.name} needs flash attention")
    for key, value in model.head_widths if flash_attention else ():
        for kind, width in ((type_k, key), (type_v, value)):
            if width % kind.block_elements:
                raise LlamaOptionsError(f"blocks of {kind.name} do not divide a head of {width}")
    return type_k, type_v, flash_attention
