"""The cost model applied to one server: its model file with the settings that pages and user state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.vllm import MissingOptionError, OptionError, VllmOptions, plan_blocks
from kvwatch.readings import Reason, SourceError
from kvwatch.snapshot import KvGroup

if TYPE_CHECKING:
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm import BlockPlan
    from kvwatch.cost.weights import WeightBytes
    from kvwatch.readings import EngineReading
    from kvwatch.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A server's model file, as it was read; `hash` is 12 hex digits of its SHA-256."""

    spec: ModelSpec
    hash: str
    weights: WeightBytes | None = None
    """Of the checkpoint beside it, where its files settle them."""


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
