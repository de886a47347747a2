"""What a llama-server's pool will be, as far as its files say before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.llamacpp import FitChange, LlamaOptions, LlamaOptionsError, allocate
from kvwatch.plan import GgufModel, undecided

if TYPE_CHECKING:
    from kvwatch.check.declaration import DeclaredServer
    from kvwatch.cost.llamacpp import LlamaModel, LlamaPool

_ALL = -2
"""`--n-gpu-layers all`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSizing:
    """The pool of a llama-server; `why` says what keeps it unknown, `refusal` why it does not start."""

    model: LlamaModel | None = None
    options: LlamaOptions | None = None
    pool: LlamaPool | None = None
    why: str | None = None
    refusal: str | None = None
    weights_bytes: int | None = None
    """On the device; None where layers may stay in host memory."""

    @property
    def device_bytes(self) -> int | None:
        """Return the least that its weights and its pool take of a device; None where it is not settled."""
        pool = self.pool
        if pool is None or pool.host_bytes is None or pool.fit_changes:
            return None
        return pool.total_bytes - pool.host_bytes + (self.weights_bytes or 0)


def size_slots(server: DeclaredServer) -> SlotSizing:
    """Compute a llama-server's pool."""
    launch, model = server.launch, server.model
    if not isinstance(model, GgufModel):
        return SlotSizing(why=server.model_detail or "its model file is not here")
    unknown = list(undecided(launch))
    if "ctx_size" in launch.stated and launch.ctx_size is None:
        unknown.append("ctx_size")
    if "parallel" in launch.stated and launch.parallel is None:
        unknown.append("parallel")
    if launch.parallel is None and launch.request_limit is None:
        unknown.append("parallel (its default changed: state the build, or -np)")
    if launch.draft_model is not None:
        unknown.append("the cache of the draft model")
    if unknown:
        return SlotSizing(model=model.llama, why=f"not settled: {', '.join(dict.fromkeys(unknown))}")
    options = LlamaOptions(
        ctx_size=launch.ctx_size,
        parallel=launch.parallel,
        kv_unified=launch.kv_unified is True,
        kv_unified_per_slot=launch.kv_unified_per_slot or 0,
        cache_type_k=launch.cache_type_k or "f16",
        cache_type_v=launch.cache_type_v or "f16",
        batch_size=launch.batch_size or 0,
        ubatch_size=launch.ubatch_size or 0,
        swa_full=launch.swa_full is True,
        kv_offload=not launch.no_kv_offload,
        n_gpu_layers=launch.n_gpu_layers,
        gpu=launch.device != "none",
        flash_attention={"on": True, "off": False}.get(launch.flash_attention or "auto"),
        split_mode=launch.split_mode or "layer",
        fit=launch.fit is not False,
    )
    weights, layers = None, launch.n_gpu_layers
    whole = layers is not None and (layers == _ALL or layers > model.llama.layers)
    if model.weights is not None and whole and launch.device != "none":
        weights = (model.weights.total_bytes - model.weights.input_bytes) or None
    try:
        pool = allocate(model.llama, options)
    except LlamaOptionsError as error:
        return SlotSizing(model=model.llama, options=options, refusal=str(error))
    return SlotSizing(model=model.llama, options=options, pool=pool, weights_bytes=weights)


def context_may_shrink(sizing: SlotSizing) -> bool:
    """Tell whether `--fit` may make the context smaller at start."""
    return sizing.pool is not None and FitChange.CONTEXT in sizing.pool.fit_changes
