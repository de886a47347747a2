"""Rules about a vLLM pool against the requests that its server admits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.check.rule import Hit
from kvwatch.check.verdict import Severity
from kvwatch.check.vllm_sizing import LEAST_BATCH, length_is_certain
from kvwatch.cost.spec import LayerKind
from kvwatch.cost.vllm import OptionError, plan_blocks
from kvwatch.cost.vllm_longest import longest_length
from kvwatch.findings.words import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.check.declaration import DeclaredServer
    from kvwatch.check.evidence import Evidence
    from kvwatch.check.vllm_sizing import BlockSizing, Pool
    from kvwatch.cost.vllm import BlockPlan

_ROUNDING = 1e-9
_UNLESS = " where --max-num-batched-tokens is {:,} by default (an A100 has 2,048 and may start it)"
_SIZES = ("pin_bytes", "num_gpu_blocks_override", "share_ratio")


def pool_below_one_request(evidence: Evidence) -> Iterator[Hit]:
    """Find servers that refuse to start: their pool does not hold one request of full length."""
    for server, sizing in evidence.vllm():
        plan, pool, least = sizing.plan, sizing.pool, sizing.least_pool_bytes
        if plan is None or pool is None or not least or pool.size_bytes >= least or not plan.full_length:
            continue
        if sizing.spec is None or not length_is_certain(server, sizing.spec):
            continue
        longest = _longest(sizing, pool.size_bytes)
        numbers: dict[str, int | float] = {
            "pool_bytes": pool.size_bytes,
            "minimum_pool_bytes": least,
            "short_bytes": least - pool.size_bytes,
            "full_length_tokens": plan.full_length,
        }
        if longest is not None:
            numbers["longest_max_model_len"] = longest
        origin = "" if "full_length_tokens" in server.launch.stated else " (the model's own: none is set)"
        certain = pool.size_bytes < _mildest(server, sizing, least)
        where = (
            "" if certain else _UNLESS.format(sizing.options.max_num_batched_tokens if sizing.options else 0)
        )
        yield Hit(
            message=(
                f"{server.name} does not start{where}: one request of {plan.full_length:,} tokens{origin}"
                f" needs {size(least)} of KV cache a rank ({least // plan.bytes_per_block:,} blocks of"
                f" {size(plan.bytes_per_block)}), its pool has {_amount(pool)}:"
                f" {'' if pool.exact else 'at least '}{size(least - pool.size_bytes)} short."
                f" {_mend(evidence, server, sizing, pool, longest)}"
            ),
            place=server.where(*_SIZES, "full_length_tokens"),
            severity=None if certain else Severity.WARNING,
            servers=(server.name,),
            numbers=numbers,
        )


def _mildest(server: DeclaredServer, sizing: BlockSizing, least: int) -> int:
    """Return the smallest pool that starts by the smallest default of --max-num-batched-tokens.

    The default differs among cards of one size (vLLM 0.32.0, engine/arg_utils.py); windows are charged by it.
    """
    if server.launch.max_num_batched_tokens is not None or sizing.spec is None or sizing.options is None:
        return least
    options = replace(sizing.options, max_num_batched_tokens=LEAST_BATCH)
    try:
        milder = replace(sizing, options=options, plan=plan_blocks(sizing.spec, options))
    except OptionError:
        return least
    return min(least, milder.least_pool_bytes or least)


def _longest(sizing: BlockSizing, pool_bytes: int) -> int | None:
    plan, spec, options = sizing.plan, sizing.spec, sizing.options
    if plan is None or spec is None or options is None or not plan.full_length:
        return None
    try:
        return longest_length(spec, options, pool_bytes, plan.full_length)
    except OptionError:
        return None


def _mend(
    evidence: Evidence, server: DeclaredServer, sizing: BlockSizing, pool: Pool, longest: int | None
) -> str:
    least = sizing.least_pool_bytes or 0
    bound = "" if pool.exact else "at most "
    edits = [f"Lower --max-model-len to {bound}{longest:,}"] if longest else []
    totals = [card.total_bytes for card in evidence.cards_of(server)]
    match pool.basis:
        case "pin":
            edits.append(f"raise the pin to {least}")
        case "blocks" if sizing.plan is not None:
            edits.append(f"raise --num-gpu-blocks-override to {-(-least // sizing.plan.bytes_per_block):,}")
        case _ if totals and all(totals):
            total = min(one for one in totals if one is not None)
            held = math.ceil(total * (server.launch.share_ratio or 0)) - pool.size_bytes
            share = math.ceil((least + held) / total * 100 - _ROUNDING) / 100
            if server.launch.share_ratio is not None and share <= 1:
                edits.append(f"raise gpu_memory_utilization to {share:.2f}{'' if pool.exact else ' or more'}")
            else:
                edits.append("use a larger card, more ranks, or a smaller cache dtype (--kv-cache-dtype fp8)")
    text = ", or ".join(edits)
    return f"{text[:1].upper()}{text[1:]}."


def length_just_in_case(evidence: Evidence) -> Iterator[Hit]:
    """Find servers of which one request of full length takes over half of the pool, though more may run."""
    for server, sizing, plan, usable in _sized(evidence):
        limit, full = server.launch.request_limit, plan.full_length or 0
        resident = plan.resident_blocks(full)
        most = None if sizing.spec is None else sizing.spec.allowed_positions
        if resident * 2 <= usable or limit == 1 or not sizing.pool or (most is not None and full > most):
            continue
        share = resident / usable
        half = _half_length(plan, usable)
        stated = "full_length_tokens" in server.launch.stated
        origin = "max_model_len" if stated else "max_model_len, which is not set: the model's own,"
        more = "" if sizing.pool.exact else " or more"
        yield Hit(
            message=(
                f"{server.name}: one request of {origin} {full:,} tokens takes {share:.0%}{more} of the pool"
                f" ({resident:,} of {usable:,} blocks, {_amount(sizing.pool)}), so two of them are never held"
                f" together and the second is preempted. If requests are not that long, set"
                f" --max-model-len to what they need; of {half:,} tokens two fit."
            ),
            place=server.where("full_length_tokens", *_SIZES),
            servers=(server.name,),
            numbers={
                "full_length_tokens": full,
                "resident_blocks": resident,
                "usable_blocks": usable,
                "resident_limit": usable // resident,
                "length_of_two_tokens": half,
            },
        )


def _half_length(plan: BlockPlan, usable: int) -> int:
    """Return the greatest length of which two are held together; R never falls with the length."""
    fits, fails = 0, (plan.full_length or 0) + 1
    while fails - fits > 1:
        length = (fits + fails) // 2
        if plan.resident_blocks(length) * 2 <= usable:
            fits = length
        else:
            fails = length
    return fits


def request_limit_beyond_pool(evidence: Evidence) -> Iterator[Hit]:
    """Find request limits that not even the shortest requests can reach."""
    for server, sizing, plan, usable in _sized(evidence):
        limit = server.launch.request_limit
        if limit is None or sizing.pool is None or limit <= usable // plan.resident_blocks(1):
            continue
        most, each = usable // plan.resident_blocks(1), plan.resident_blocks(1)
        states = any(group.kind is LayerKind.RECURRENT for group in plan.groups)
        refusal = (
            " With recurrent layers vLLM may refuse to start (max_num_seqs exceeds available Mamba cache"
            " blocks)."
            if states
            else ""
        )
        yield Hit(
            message=(
                f"{server.name}: max_num_seqs {limit:,} is more than the pool can ever hold: even a request"
                f" of one token takes {count(each, 'block')}, {usable:,} usable blocks"
                f" ({_amount(sizing.pool)}) hold {most:,}.{refusal} Set --max-num-seqs to at most {most:,}."
            ),
            place=server.where("request_limit"),
            servers=(server.name,),
            numbers={"request_limit": limit, "usable_blocks": usable, "shortest_blocks": each, "most": most},
        )


def worst_case_over_pool(evidence: Evidence) -> Iterator[Hit]:
    """Find servers whose admitted requests, all grown to full length, exceed the pool."""
    for server, sizing, plan, usable in _sized(evidence):
        limit, full = server.launch.request_limit, plan.full_length or 0
        resident = plan.resident_blocks(full)
        if limit is None or sizing.pool is None or limit * resident <= usable:
            continue
        if limit > usable // plan.resident_blocks(1) or resident * 2 > usable:
            continue  # a sharper rule says so
        fits = usable // resident
        yield Hit(
            message=(
                f"{server.name} admits {limit:,} requests at once; at full length they need {limit:,} x"
                f" {resident:,} = {limit * resident:,} blocks of {usable:,} usable ones"
                f" ({_amount(sizing.pool)}), {limit * resident / usable:.1f} times the pool. It holds"
                f" {fits:,} at {full:,} tokens, so preemption is possible, not certain. Where it must not be,"
                f" set --max-num-seqs to {fits:,}."
            ),
            place=server.where("request_limit"),
            servers=(server.name,),
            numbers={
                "request_limit": limit,
                "resident_blocks": resident,
                "usable_blocks": usable,
                "worst_case_ratio": round(limit * resident / usable, 6),
                "resident_limit": fits,
            },
        )


def _sized(evidence: Evidence) -> Iterator[tuple[DeclaredServer, BlockSizing, BlockPlan, int]]:
    """Yield the servers whose pool is known and starts."""
    for server, sizing in evidence.vllm():
        plan, usable, least = sizing.plan, sizing.usable_blocks, sizing.least_pool_bytes
        if plan is None or not usable or not least or sizing.pool is None or not plan.full_length:
            continue
        if sizing.spec is None or not length_is_certain(server, sizing.spec):
            continue
        if sizing.pool.size_bytes >= least:
            yield server, sizing, plan, usable


def _amount(pool: Pool) -> str:
    if pool.basis == "pin":
        return pool.words
    return f"{'' if pool.exact else 'at most '}{size(pool.size_bytes)} = {pool.words}"
