"""What `kvwatch cost` says, as plain values: bytes per token, blocks per request, requests per pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.cost.spec import LayerKind
from kvwatch.fit import Load, fit_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.cost.llamacpp import LlamaPool
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm import BlockPlan, KvGroup


def vllm_report(
    spec: ModelSpec,
    plan: BlockPlan,
    *,
    pool_bytes: int | None,
    lengths: Sequence[int],
    request_limit: int | None = None,
) -> dict[str, Any]:
    """Return a plan's figures of one rank; those of a pool are None where no pool is given.

    Raises OptionError when a figure needs an option that is not known.
    """
    num_blocks = None if pool_bytes is None else plan.num_blocks(pool_bytes)
    full = plan.full_length
    wanted = sorted({*lengths, *([] if full is None else [full])})
    load = Load(running=0, waiting=0, waiting_for_capacity=False, request_limit=request_limit)
    return {
        "engine": "vllm",
        "architecture": spec.architecture,
        "full_length_tokens": full,
        "bytes_per_token": plan.bytes_per_token,
        "bytes_per_block": plan.bytes_per_block,
        "block_size": min((group.block_size for group in plan.groups), default=None),
        "groups": [
            {
                "kind": str(group.kind),
                "layers": group.layers,
                "block_size": group.block_size,
                "page_size_bytes": group.page_bytes,
                "window": group.window,
            }
            for group in plan.groups
        ],
        "start_blocks": plan.start_blocks,
        "minimum_pool_bytes": plan.minimum_pool_bytes,
        "pool_bytes": pool_bytes,
        "num_blocks": num_blocks,
        "usable_blocks": None if num_blocks is None else max(0, num_blocks - 1),
        "max_concurrency": None if num_blocks is None else plan.max_concurrency(num_blocks),
        "kv_cache_size_tokens": None if num_blocks is None else plan.kv_cache_size_tokens(num_blocks),
        "lengths": [_vllm_length(plan, length, num_blocks, pool_bytes, load) for length in wanted],
    }


def logical_bytes(plan: BlockPlan, length: int) -> int:
    """Return what a request of `length` tokens would take if there were no blocks."""
    return sum(_logical_bytes(group, length) for group in plan.groups)


def llamacpp_report(architecture: str, pool: LlamaPool, *, lengths: Sequence[int]) -> dict[str, Any]:
    """Return the figures of a llama-server's pool."""
    wanted = sorted({*lengths, pool.slot_limit_tokens})
    return {
        "engine": "llamacpp",
        "architecture": architecture,
        "full_length_tokens": pool.slot_limit_tokens,
        "bytes_per_token": pool.bytes_per_token,
        "slots": pool.slots,
        "kv_unified": pool.unified,
        "pool_tokens": pool.pool_tokens,
        "total_bytes": pool.total_bytes,
        "recurrent_bytes": pool.recurrent_bytes,
        "host_bytes": pool.host_bytes,
        "fit_may_change": sorted(str(change) for change in pool.fit_changes),
        "caches": [
            {
                "name": cache.name,
                "kind": str(cache.kind),
                "cells": cache.cells,
                "streams": cache.streams,
                "layers": cache.layers,
                "k_bytes": cache.k_bytes,
                "v_bytes": cache.v_bytes,
            }
            for cache in pool.caches
        ],
        "lengths": [
            {
                "length": length,
                "fit_empty": _llamacpp_fit(pool, length),
                "resident_limit": _llamacpp_fit(pool, length),
            }
            for length in wanted
        ],
    }


def _vllm_length(
    plan: BlockPlan, length: int, num_blocks: int | None, pool_bytes: int | None, load: Load
) -> dict[str, Any]:
    admission, resident = plan.admission_blocks(length), plan.resident_blocks(length)
    logical = logical_bytes(plan, length)
    report: dict[str, Any] = {
        "length": length,
        "admission_blocks": admission,
        "resident_blocks": resident,
        "bytes": resident * plan.bytes_per_block,
        "logical_bytes": logical,
        "fit_empty": None,
        "resident_limit": None,
        "ceiling": None,
    }
    if num_blocks is not None and pool_bytes is not None and resident:
        usable = max(0, num_blocks - 1)
        fit = fit_blocks(usable=usable, free=usable, admission=admission, resident=resident, load=load)
        report["fit_empty"] = fit.empty
        report["resident_limit"] = fit.resident_limit
        report["ceiling"] = pool_bytes // logical if logical else None
    return report


def _logical_bytes(group: KvGroup, length: int) -> int:
    if group.kind is LayerKind.RECURRENT:
        return group.bytes_per_block
    tokens = length
    if group.kind is LayerKind.CROSS:
        tokens = group.encoder_tokens or 0
    elif group.window is not None:
        tokens = min(length, group.window)
    return group.bytes_per_block * tokens // group.block_size


def _llamacpp_fit(pool: LlamaPool, length: int) -> int:
    """Return how many requests of a length an empty pool holds; none that a slot refuses."""
    if length > pool.slot_limit_tokens:
        return 0
    return min(pool.slots, pool.pool_tokens // length) if pool.unified and pool.pool_tokens else pool.slots
