"""The pool that a server needs for its requests, and the requests that memory holds; by the cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.cost.llamacpp import LlamaOptionsError, LlamaPool, allocate
from kvwatch.cost.llamacpp_options import MAX_SLOTS, padded
from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.vllm import BlockPlan, OptionError, plan_blocks
from kvwatch.fit import Load, fit_blocks
from kvwatch.planning.errors import PlanError
from kvwatch.planning.question import GgufFile, VllmModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvwatch.planning.question import Server

NOBODY = Load(running=0, waiting=0, waiting_for_capacity=False, request_limit=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How vLLM counts a pool, in blocks of one rank."""

    total: int
    """With the null block: what `--num-gpu-blocks-override` would say."""
    block_bytes: int
    """Of the rank whose layers take the most."""
    block_tokens: int
    resident: int
    """R(length): held by one request while it decodes at full length."""
    admission: int
    """A(length): free to admit a prompt of full length."""
    start: int
    """What the engine's own planner charges for one request before it starts."""
    least: int
    """With fewer it does not start."""
    entering: int
    """Prompts of full length that an empty pool admits one after the other: fit_empty."""
    held: int
    """resident_limit: more than was asked where the planner's charge decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """KV memory for the requests asked for."""

    rank_bytes: tuple[int, ...]
    """What each rank allocates; the tensor ranks of a pipeline stage stand beside each other."""
    pin_bytes: int
    """`--kv-cache-memory-bytes`, which all ranks share: that of the largest rank."""
    token_bytes: float
    """By which a request grows with each token, on one rank."""
    blocks: Blocks | None = None
    slots: LlamaPool | None = None


def needed_pool(server: Server) -> Pool:
    """Return the smallest pool with which a server starts and holds what is asked; raises PlanError."""
    length, concurrency = server.length_tokens or 0, server.concurrency or 0
    try:
        if isinstance(server.model, VllmModel):
            tensor = server.model.options.tensor_parallel
            return _vllm_pool(block_plan(server.model, length), length, concurrency, tensor)
        if isinstance(server.model, GgufFile):
            slots = _slots(server.model, length, concurrency)
            return Pool(
                rank_bytes=(device_bytes(slots),),
                pin_bytes=device_bytes(slots),
                token_bytes=slots.bytes_per_token,
                slots=slots,
            )
    except (OptionError, ModelSpecError, LlamaOptionsError) as error:
        raise PlanError(str(error)) from error
    raise PlanError(f"{server.name} names no model")


def held_by(server: Server, room_bytes: Sequence[int]) -> int:
    """Return the requests of a server's length that so many bytes of each rank hold; raises PlanError."""
    length = server.length_tokens or 0
    try:
        if isinstance(server.model, VllmModel):
            plan = block_plan(server.model, length)
            return _vllm_held(plan, length, room_bytes[:: server.model.options.tensor_parallel])
        if isinstance(server.model, GgufFile):
            file = server.model
            return greatest(
                MAX_SLOTS, lambda count: device_bytes(_slots(file, length, count)) <= min(room_bytes)
            )
    except (OptionError, ModelSpecError, LlamaOptionsError) as error:
        raise PlanError(str(error)) from error
    raise PlanError(f"{server.name} names no model")


def longest_length(server: Server, room_bytes: Sequence[int]) -> int | None:
    """Return the greatest length of which so many bytes hold all the requests asked for; 0 where none.

    None where the model's file sets no bound: states of constant size hold any length.
    """
    limit = model_length(server)
    if limit is None:
        return None

    def fits(length: int) -> bool:
        pool = needed_pool(replace(server, length_tokens=length))
        return all(needed <= room for needed, room in zip(pool.rank_bytes, room_bytes, strict=True))

    return greatest(limit, fits)


def model_length(server: Server) -> int | None:
    """Return the longest request that the model's file allows; None where it is silent."""
    if isinstance(server.model, VllmModel):
        return server.model.spec.max_positions
    return None if server.model is None else server.model.llama.context_train or None


def greatest(limit: int, holds: Callable[[int], bool]) -> int:
    """Return the greatest number from 0 to `limit` that passes; whatever passes does so at all below it."""
    good, bad = 0, limit + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def block_plan(model: VllmModel, length: int) -> BlockPlan:
    """Return vLLM's plan with the length as `--max-model-len`."""
    plan = plan_blocks(model.spec, replace(model.options, max_model_len=length))
    limit = model.spec.max_positions
    if limit is not None and length > limit:
        raise PlanError(f"{length:,} tokens are more than the model's {limit:,}")
    return plan


def _vllm_pool(plan: BlockPlan, length: int, concurrency: int, tensor: int) -> Pool:
    if not plan.groups:
        return Pool(rank_bytes=(0,) * len(plan.rank_bytes_per_block) * tensor, pin_bytes=0, token_bytes=0.0)
    resident, admission = plan.resident_blocks(length), plan.admission_blocks(length)
    least = plan.minimum_pool_bytes // plan.bytes_per_block
    # A prompt that never enters is never held: before 0.29 the planner's charge leaves out the null block.
    total = max(concurrency * resident + 1, least, admission + 1)
    fit = fit_blocks(usable=total - 1, free=total - 1, admission=admission, resident=resident, load=NOBODY)
    return Pool(
        rank_bytes=tuple(total * each for each in plan.rank_bytes_per_block for _ in range(tensor)),
        pin_bytes=total * plan.bytes_per_block,
        token_bytes=plan.bytes_per_token,
        blocks=Blocks(
            total=total,
            block_bytes=plan.bytes_per_block,
            block_tokens=min(group.block_size for group in plan.groups),
            resident=resident,
            admission=admission,
            start=plan.start_blocks,
            least=least,
            entering=fit.empty or 0,
            held=fit.resident_limit or 0,
        ),
    )


def _vllm_held(plan: BlockPlan, length: int, room_bytes: Sequence[int]) -> int:
    if not plan.groups:
        raise PlanError("a model without a KV cache holds any number of requests")
    total = min(room // each for room, each in zip(room_bytes, plan.rank_bytes_per_block, strict=True))
    usable = total - 1
    if total * plan.bytes_per_block < plan.minimum_pool_bytes or usable < plan.admission_blocks(length):
        return 0
    fit = fit_blocks(
        usable=usable,
        free=usable,
        admission=plan.admission_blocks(length),
        resident=plan.resident_blocks(length),
        load=NOBODY,
    )
    return fit.resident_limit or 0


def _slots(file: GgufFile, length: int, count: int) -> LlamaPool:
    """Return the pool of `count` slots, each of which holds a request of `length` tokens.

    `--ctx-size` is of all slots together; llama-server rounds a split one to 256 cells a slot.
    """
    options = file.options
    cells = length * count if options.kv_unified else padded(length) * count
    pool = allocate(file.llama, replace(options, ctx_size=cells, parallel=count, fit=False))
    if pool.slot_limit_tokens < length:
        raise PlanError(f"{length:,} tokens are more than the model's {pool.slot_limit_tokens:,}")
    return pool


def device_bytes(pool: LlamaPool) -> int:
    """Return what of a llama-server's pool is on the card; all layers are, as planned here."""
    return pool.total_bytes - (pool.host_bytes or 0)
