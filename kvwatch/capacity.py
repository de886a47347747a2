"""One rank's pool in requests: which cost function holds, and what it makes of the engine's numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.fit import Fit, Load, RequestCost, UniformCost, busy_tokens, fit_blocks, fit_slots
from kvwatch.snapshot import Basis, RankState, TypicalState

if TYPE_CHECKING:
    from kvwatch.cost.llamacpp import LlamaPool
    from kvwatch.cost.vllm import BlockPlan
    from kvwatch.readings import RankReading, SlotPool
    from kvwatch.target import Target
    from kvwatch.typical import TypicalLength

# An engine's A_start is N / max_concurrency, both printed exactly: anything farther from a whole number
# is not that quotient.
_WHOLE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a server's ranks share."""

    target: Target
    full_length_tokens: int | None
    asleep: bool
    plan: BlockPlan | None
    """The cost model's plan, where the model file is known."""
    bytes_known: bool
    """Whether the plan's bytes hold: the ranks that divide the model are known."""
    slot_plan: LlamaPool | None = None
    """What a llama-server allocated, where its model file and command line are known."""


def rank_state(reading: RankReading, facts: Facts, typical: TypicalLength | None) -> RankState:
    """Return the rank's pool in requests of full and of typical length."""
    waiting = sum(reading.waiting.values()) if reading.waiting else None
    # "deferred" at vLLM waits for remote KV, at llama-server for a slot; any other word may mean lack of
    # room and holds back the promise.
    for_capacity = {
        reason: count for reason, count in reading.waiting.items() if _is_capacity(reason, reading)
    }
    load = Load(
        running=reading.running,
        waiting=waiting,
        waiting_for_capacity=any(for_capacity.values()) if reading.waiting else None,
        request_limit=reading.slots.total_slots if reading.slots else facts.target.request_limit,
    )
    if reading.slots is not None:
        return _slot_state(reading, reading.slots, facts, load)
    return _block_state(reading, facts, load, typical)


def engine_start_blocks(reading: RankReading) -> int | None:
    """Return A_start as the engine's own figures have it: N / max_concurrency (vLLM 0.24 and newer)."""
    if reading.start_blocks is not None:
        return reading.start_blocks
    if reading.num_blocks is None or reading.max_concurrency is None:
        return None
    quotient = reading.num_blocks / reading.max_concurrency
    if not math.isfinite(quotient):
        return None
    whole = round(quotient)
    return whole if whole > 0 and abs(quotient - whole) <= _WHOLE_TOLERANCE * whole else None


def _is_capacity(reason: str, reading: RankReading) -> bool:
    return reason != "deferred" or reading.slots is not None


def _cost(reading: RankReading, facts: Facts) -> tuple[RequestCost | None, int | None]:
    """Return the cost function, None when only A_start is known or nothing is; and A_start."""
    full, start, plan = facts.full_length_tokens, engine_start_blocks(reading), facts.plan
    if full is None:
        return None, start
    if start is not None and reading.block_size is not None:
        uniform = UniformCost(reading.block_size)
        if uniform.admission_blocks(full) == start:
            return uniform, start
    # A model that contradicts the engine's own figure is not believed about the rest either.
    if plan is not None and start in (None, plan.start_blocks):
        return plan, plan.start_blocks
    return None, start


def _block_state(reading: RankReading, facts: Facts, load: Load, typical: TypicalLength | None) -> RankState:
    # A sleeping engine's gauges read as an empty pool, but it has given the pool back.
    usage = None if facts.asleep else reading.usage_ratio
    state = RankState(reading=reading, load=load, usage_ratio=usage)
    if reading.running is not None and reading.block_size is not None:
        state = replace(state, last_block_waste_tokens=reading.running * (reading.block_size - 1))
    if typical is not None:
        state = replace(state, typical=TypicalState(length=typical, fit=None, capacity=None))
    if reading.num_blocks is None or reading.num_blocks <= reading.null_blocks:
        return state
    usable = reading.num_blocks - reading.null_blocks
    free = None if usage is None else usable - round(usage * usable)
    cost, start = _cost(reading, facts)
    state = replace(state, usable_blocks=usable, free_blocks=free, start_blocks=start)
    full = facts.full_length_tokens
    if full is None or (cost is None and start is None):
        return state
    admission = cost.admission_blocks(full) if cost else start
    resident = cost.resident_blocks(full) if cost else start
    if not admission or not resident:
        return state
    state = replace(
        state,
        basis=Basis.RESIDENT if cost else Basis.ADMISSION,
        resident_blocks=resident,
        capacity_tokens=usable / resident * full,
        free_tokens=None if free is None else free / resident * full,
        full=Fit()
        if facts.asleep
        else fit_blocks(usable=usable, free=free, admission=admission, resident=resident, load=load),
        worst_case_ratio=None if load.request_limit is None else load.request_limit * resident / usable,
        ceiling=_ceiling(reading.num_blocks, cost, full),
        typical=_typical(cost, usable, free, load, typical, facts),
    )
    plan_holds = facts.plan is not None and start in (None, facts.plan.start_blocks)
    if facts.plan is not None and plan_holds and facts.bytes_known and cost is not None:
        block_bytes = facts.plan.bytes_per_block
        state = replace(
            state,
            capacity_bytes=usable * block_bytes,
            bytes_per_token=resident * block_bytes / full,
        )
    return state


def _ceiling(num_blocks: int, cost: RequestCost | None, full: int) -> int | None:
    """Divide tokens by tokens, as textbooks do; it needs a model whose every token costs the same."""
    return num_blocks * cost.block_size // full if isinstance(cost, UniformCost) else None


def _typical(
    cost: RequestCost | None,
    usable: int,
    free: int | None,
    load: Load,
    typical: TypicalLength | None,
    facts: Facts,
) -> TypicalState | None:
    if typical is None:
        return None
    length = math.ceil(typical.prompt_tokens + typical.generation_tokens)
    if cost is None or length < 1:
        return TypicalState(length=typical, fit=None, capacity=None)
    resident = cost.resident_blocks(length)
    admission = cost.admission_blocks(length)
    fit = fit_blocks(usable=usable, free=free, admission=admission, resident=resident, load=load)
    return TypicalState(length=typical, fit=Fit() if facts.asleep else fit, capacity=usable / resident)


def _slot_state(reading: RankReading, pool: SlotPool, facts: Facts, load: Load) -> RankState:
    target, limit = facts.target, pool.slot_limit_tokens
    fit = fit_slots(pool, length=limit, pool_tokens=target.pool_tokens, unified=target.kv_unified, load=load)
    state = RankState(reading=reading, load=load, full=Fit() if fit and facts.asleep else fit)
    if facts.slot_plan is not None and facts.bytes_known:
        state = replace(
            state,
            capacity_bytes=facts.slot_plan.total_bytes,
            bytes_per_token=float(facts.slot_plan.bytes_per_token),
        )
    if fit is None or target.pool_tokens is None:
        return state
    taken = busy_tokens(pool)
    free = None if taken is None else max(0, target.pool_tokens - taken)
    return replace(
        state,
        capacity_tokens=target.pool_tokens,
        free_tokens=free,
        usage_ratio=None if free is None else 1 - free / target.pool_tokens,
        worst_case_ratio=pool.total_slots * limit / target.pool_tokens,
    )
