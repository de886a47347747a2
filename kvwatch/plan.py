"""The cost model applied to one server: its model file with the settings that pages and user state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.cost.llamacpp import LlamaOptions, LlamaOptionsError, allocate
from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.vllm import MissingOptionError, OptionError, VllmOptions, plan_blocks
from kvwatch.flags.launch import Origin
from kvwatch.readings import Reason, SourceError
from kvwatch.snapshot import KvGroup

if TYPE_CHECKING:
    from kvwatch.cost.llamacpp import LlamaModel, LlamaPool
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm import BlockPlan
    from kvwatch.cost.weights import GgufWeights, WeightBytes
    from kvwatch.flags.launch import Launch
    from kvwatch.readings import EngineReading
    from kvwatch.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A server's model file, as it was read; `hash` is 12 hex digits of its SHA-256."""

    spec: ModelSpec
    hash: str
    weights: WeightBytes | None = None
    """Of the checkpoint beside it, where its files settle them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """A llama-server's model file; `hash` is of the first part of its header."""

    llama: LlamaModel
    hash: str
    weights: GgufWeights | None = None
    """None where the model has further files."""
    bits_per_weight: float | None = None
    """Of all its tensors on average."""


_BATCH = "max_num_batched_tokens"
# vLLM's defaults by card and use (engine/arg_utils.py, 0.8.5 to 0.32), and what people set.
_USUAL_BATCHES = (2048, 8192, 16384, 512, 1024, 4096, 32768, 65536)

# What decides the bytes of a llama-server's pool beside its slots; unknown, one of them makes all unknown.
_DECIDING = (
    "cache_type_k",
    "cache_type_v",
    "batch_size",
    "ubatch_size",
    "swa_full",
    "no_kv_offload",
    "kv_unified",
    "kv_unified_per_slot",
    "draft_model",
)
_TAKEN_OVER = ("cache_type_k", "cache_type_v", "batch_size", "ubatch_size")


def plan_slots(model: GgufModel, launch: Launch | None, reading: EngineReading) -> LlamaPool | SourceError:
    """Return what a llama-server allocated, from its model file and its command line.

    The context is that of its slots, whatever `--fit` made of it.
    """
    pool = reading.ranks[0].slots
    if launch is None or pool is None:
        return SourceError(Reason.NOT_SUPPORTED, "the server's command line is not seen")
    unknown = undecided(launch)
    if unknown:
        return SourceError(Reason.MISSING_FIELD, f"the command line does not settle {', '.join(unknown)}")
    if launch.draft_model is not None or launch.kv_unified_per_slot:
        return SourceError(Reason.NOT_SUPPORTED, "draft models and per-slot caps are not reckoned here")
    try:
        return allocate(
            model.llama,
            LlamaOptions(
                ctx_size=pool.slot_limit_tokens * (1 if launch.kv_unified else pool.total_slots),
                parallel=pool.total_slots,
                kv_unified=launch.kv_unified is True,
                **{name: getattr(launch, name) for name in _TAKEN_OVER},
                swa_full=launch.swa_full is True,
                kv_offload=not launch.no_kv_offload,
                n_gpu_layers=launch.n_gpu_layers,
                gpu=launch.device != "none",
            ),
        )
    except LlamaOptionsError as error:
        return SourceError(Reason.NOT_SUPPORTED, str(error))


def undecided(launch: Launch) -> tuple[str, ...]:
    """Return the settings that decide a llama-server's KV bytes, its slots apart, and are not known."""
    return tuple(name for name in _DECIDING if not _settled(launch, name))


def _settled(launch: Launch, name: str) -> bool:
    """Tell whether a setting is known: a value, or off by default. Given but unreadable is not."""
    return getattr(launch, name) is not None or launch.origin(name) is Origin.DEFAULT


def plan_server(
    model: Model | SourceError | None,
    target: Target,
    reading: EngineReading,
    full_length: int | None,
    cache_dtype: str | None,
    start_blocks: int | None,
) -> BlockPlan | SourceError | None:
    """Plan the server's pool from its model file; return the reason where that cannot be done.

    `start_blocks` is A_start as the engine states it, None where it does not.
    """
    if model is None or isinstance(model, SourceError):
        return model
    rank = reading.ranks[0]
    if reading.cost_rules != "vllm":
        detail = f"no rules are known by which {reading.engine} allocates a config.json's model"
        return SourceError(Reason.NOT_SUPPORTED, detail)
    options = VllmOptions(
        engine_version=reading.release,
        cache_dtype=cache_dtype or "auto",
        tensor_parallel=target.tensor_parallel or 1,
        pipeline_parallel=target.pipeline_parallel or 1,
        block_size=rank.block_size,
        max_model_len=full_length,
        max_num_batched_tokens=target.max_num_batched_tokens,
        max_num_seqs=target.request_limit,
        decode_context_parallel=target.decode_context_parallel or 1,
        hybrid_manager=target.hybrid_manager is not False,
        async_scheduling=target.async_scheduling is not False,
        prefix_caching=False not in (reading.prefix_caching, target.prefix_caching),
        mamba_cache_mode=reading.recurrent_cache_mode,
    )
    try:
        return _plan(model.spec, options)
    except ModelSpecError as error:
        return SourceError(error.reason, str(error))
    except MissingOptionError as error:
        proved = _plan_by_start(model.spec, options, start_blocks) if error.option == _BATCH else None
        return proved or SourceError(Reason.MISSING_FIELD, str(error))
    except OptionError as error:
        return SourceError(Reason.NOT_SUPPORTED, str(error))


def _plan(spec: ModelSpec, options: VllmOptions) -> BlockPlan:
    plan = plan_blocks(spec, options)
    # Costs that need an option which nobody stated say so only when they are asked for.
    _ = plan.start_blocks, plan.admission_blocks(1)
    return plan


def _plan_by_start(spec: ModelSpec, options: VllmOptions, start_blocks: int | None) -> BlockPlan | None:
    """Return the plan whose batch gives the engine's own A_start; None where none of the usual does.

    No group's charge falls when the batch grows, so two batches of equal A_start charge each group alike:
    whichever is found, A and R are the engine's.
    """
    for batch in _USUAL_BATCHES:
        plan = _plan(spec, replace(options, max_num_batched_tokens=batch))
        if plan.start_blocks == start_blocks:
            return plan
    return None


def groups_of(plan: BlockPlan) -> tuple[KvGroup, ...]:
    """Return the plan's KV groups."""
    return tuple(
        KvGroup(
            kind=str(group.kind),
            layers=group.layers,
            block_size=group.block_size,
            page_bytes=group.page_bytes,
            window=group.window,
        )
        for group in plan.groups
    )
