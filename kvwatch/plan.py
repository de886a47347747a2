"""The cost model applied to one server: its model file with the settings that pages and user state."""

from __future__ import annotations

from dataclasses import dataclass
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
    from kvwatch.cost.weights import WeightBytes
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


# What decides the bytes of a llama-server's pool beside its slots; unknown, one of them makes all unknown.
_DECIDING = ("cache_type_k", "cache_type_v", "swa_full", "no_kv_offload", "draft_model", "kv_unified")


def plan_slots(model: GgufModel, launch: Launch | None, reading: EngineReading) -> LlamaPool | SourceError:
    """Return what a llama-server allocated, from its model file and its command line.

    The context is that of its slots, whatever `--fit` made of it.
    """
    pool = reading.ranks[0].slots
    if launch is None or pool is None:
        return SourceError(Reason.NOT_SUPPORTED, "the server's command line is not seen")
    unknown = [name for name in _DECIDING if launch.origin(name) is Origin.UNKNOWN]
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
                cache_type_k=launch.cache_type_k or "f16",
                cache_type_v=launch.cache_type_v or "f16",
                batch_size=launch.batch_size or 2048,
                ubatch_size=launch.ubatch_size or 512,
                swa_full=launch.swa_full is True,
                kv_offload=not launch.no_kv_offload,
                n_gpu_layers=launch.n_gpu_layers,
                gpu=launch.device != "none",
            ),
        )
    except LlamaOptionsError as error:
        return SourceError(Reason.NOT_SUPPORTED, str(error))


def plan_server(
    model: Model | SourceError | None,
    target: Target,
    reading: EngineReading,
    full_length: int | None,
    cache_dtype: str | None,
) -> BlockPlan | SourceError | None:
    """Plan the server's pool from its model file; return the reason where that cannot be done."""
    if model is None or isinstance(model, SourceError):
        return model
    rank = reading.ranks[0]
    if reading.cost_rules != "vllm":
        detail = f"no rules are known by which {reading.engine} allocates a config.json's model"
        return SourceError(Reason.NOT_SUPPORTED, detail)
    try:
        plan = plan_blocks(
            model.spec,
            VllmOptions(
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
            ),
        )
        # Costs that need an option which nobody stated say so only when they are asked for.
        _ = plan.start_blocks, plan.admission_blocks(1)
    except ModelSpecError as error:
        return SourceError(error.reason, str(error))
    except OptionError as error:
        missing = isinstance(error, MissingOptionError)
        return SourceError(Reason.MISSING_FIELD if missing else Reason.NOT_SUPPORTED, str(error))
    return plan


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
