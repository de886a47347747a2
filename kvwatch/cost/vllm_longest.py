"""The greatest `max_model_len` with which vLLM starts in a given pool."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.cost.vllm import plan_blocks

if TYPE_CHECKING:
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm import VllmOptions


def longest_length(spec: ModelSpec, options: VllmOptions, pool_bytes: int, limit: int) -> int | None:
    """Return the greatest length up to `limit` whose smallest pool fits; None where not one token's does.

    The planner's charge never falls with the length.
    """
    fits, fails = 0, limit + 1
    while fails - fits > 1:
        length = (fits + fails) // 2
        if plan_blocks(spec, replace(options, max_model_len=length)).minimum_pool_bytes <= pool_bytes:
            fits = length
        else:
            fails = length
    return fits or None
