"""What a server's command line adds to its configuration: never more than what nobody configured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.flags.launch import Launch
    from kvwatch.target import Target

# Named alike in both: a configured value wins over the command line, which wins over nothing.
_SHARED = (
    "full_length_tokens",
    "request_limit",
    "max_num_batched_tokens",
    "pool_tokens",
    "kv_unified",
    "cache_dtype",
    "share_ratio",
    "pin_bytes",
    "tensor_parallel",
    "pipeline_parallel",
    "decode_context_parallel",
    "hybrid_manager",
    "async_scheduling",
    "prefix_caching",
)


def complete(target: Target, launch: Launch | None) -> Target:
    """Return the target with what the server was told where the configuration says nothing.

    A documented default of the engine's version counts as told; what is unknown stays None.
    """
    if launch is None:
        return target
    told = {
        name: value
        for name in _SHARED
        if getattr(target, name) is None and (value := getattr(launch, name)) is not None
    }
    return replace(target, **told)
