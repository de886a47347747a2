"""What the cost model says beside what vLLM's planner computed: the rows, the cases, and their comparison."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.spec import ModelSpec, ModelSpecError
from kvwatch.cost.vllm import BlockPlan, VllmOptions, plan_blocks

DATA = Path(__file__).parent / "data"
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row compared: exact, off, or refused by the model, and what both sides said."""

    family: str
    result: str
    detail: str = ""


@cache
def load(name: str) -> Any:
    """Return a data file's content."""
    return json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))


@cache
def spec_of(model: str) -> ModelSpec:
    """Return an oracle model as the reader sees its config.json."""
    return read_hf_config(load("configs")[model])


def plan_of(row: dict[str, Any]) -> BlockPlan:
    """Return the plan of an oracle row's configuration."""
    given = row["options"]
    return plan_blocks(
        spec_of(row["model"]),
        VllmOptions(
            cache_dtype=row["cache_dtype"],
            tensor_parallel=row["tp"],
            max_model_len=row["max_model_len"],
            max_num_batched_tokens=row["max_num_batched_tokens"],
            block_size=given.get("block_size"),
            dtype=given.get("dtype", "auto"),
            runner=given.get("runner", "auto"),
            async_scheduling=given.get("async_scheduling", True),
            hybrid_manager=not given.get("disable_hybrid_kv_cache_manager", False),
            prefix_caching=given.get("enable_prefix_caching", True),
            mamba_ssm_dtype=given.get("mamba_ssm_cache_dtype", "auto"),
        ),
    )


def said(plan: BlockPlan, pool_bytes: int) -> tuple[Any, ...]:
    """Return blocks, A_start, concurrency, tokens, and the full-length requests that fit, of one pool."""
    blocks = plan.num_blocks(pool_bytes)
    start = plan.start_blocks
    fit = (blocks - 1) // start if start else None
    return blocks, start, plan.max_concurrency(blocks), plan.kv_cache_size_tokens(blocks), fit


def compare_oracle() -> list[Outcome]:
    """Compare every oracle row; a row is one configuration with one pool."""
    return [outcome for row in load("oracle") for outcome in compare_row(row)]


def compare_row(row: dict[str, Any]) -> list[Outcome]:
    """Compare one configuration's rows."""
    name = f"{row['model']} {row['set']} {row['cache_dtype']} TP{row['tp']} {row['max_model_len']}"
    try:
        plan = plan_of(row)
    except (ModelSpecError, ValueError) as error:
        return [Outcome(family=row["model"], result="refused", detail=f"{name}: {error}")] * len(row["pools"])
    outcomes = []
    for pool, blocks, concurrency, tokens, starts, fit in row["pools"]:
        right = (blocks, row["blocks_per_request"], concurrency, tokens, fit)
        ours = said(plan, pool)
        exact = ours == right and plan.bytes_per_block == row["bytes_per_block"]
        if starts is not None:
            exact = exact and starts == (pool >= plan.minimum_pool_bytes)
        detail = "" if exact else f"{name}, {pool} bytes: {ours} instead of {right}"
        outcomes.append(Outcome(family=row["model"], result="exact" if exact else "off", detail=detail))
    return outcomes


def compare_planner_rows() -> list[Outcome]:
    """Compare the rows of further models, which vLLM 0.32.0's own model classes and planner gave."""
    return [compare_planner_row(row) for row in load("planner_rows")]


def compare_planner_row(row: dict[str, Any]) -> Outcome:
    """Compare one further model's row: bytes per block, blocks of 60 GiB, A_start and longest request."""
    given = row["options"]
    name = f"{row['name']} {given}"
    family = row["config"]["architectures"][0]
    try:
        spec = read_hf_config(row["config"])
        plan = plan_blocks(
            spec,
            VllmOptions(
                cache_dtype=given.get("kv_cache_dtype", "auto"),
                tensor_parallel=given.get("tp", 1),
                pipeline_parallel=given.get("pp", 1),
                max_model_len=row["max_model_len"],
                max_num_batched_tokens=row["max_num_batched_tokens"],
                block_size=given.get("block_size"),
                dtype=given.get("dtype", "auto"),
                hybrid_manager=not given.get("disable_hybrid_kv_cache_manager", False),
                prefix_caching=given.get("enable_prefix_caching", True),
            ),
        )
    except (ModelSpecError, ValueError) as error:
        return Outcome(family=family, result="refused", detail=f"{name}: {error}")
    ours = (plan.bytes_per_block, plan.num_blocks(60 * GIB), plan.start_blocks, spec.max_positions)
    right = (row["bytes_per_block"], row["num_blocks"], row["start_blocks"], row["max_model_len"])
    exact = ours == right
    detail = "" if exact else f"{name}: {ours} instead of {right}"
    return Outcome(family=family, result="exact" if exact else "off", detail=detail)
