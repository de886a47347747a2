"""vLLM's reasons not to start, with their numbers (0.2.7 to 0.32; v1/core/kv_cache_utils.py, v1/worker)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.startup_log.amounts import NUMBER, amount, gib
from kvwatch.startup_log.facts import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

_Numbers = dict[str, int | float]

_TOO_SMALL = re.compile(
    rf"To serve at least one request with the models?'?s?'?s? max seq len \((\d+)\),\s*\(?({NUMBER}) GiB KV"
    rf"\s*cache is needed, which is larger than the available KV cache\s*memory \(({NUMBER}) GiB\)"
)
_ESTIMATE = re.compile(r"estimated maximum model length is (\d+)")
_TOO_LONG = re.compile(
    r"[Tt]he model's max seq len \((\d+)\) is larger than the maximum number of tokens that can be stored in "
    r"KV cache \((\d+)\)"
)
_NO_MEMORY = re.compile(r"No available memory for the cache blocks")
_NOT_FREE = re.compile(
    rf"(?:Free|Available) memory on (?:device|node)(?: \S+)? \(({NUMBER})/({NUMBER}) GiB\) on startup is less"
    rf" than (?:desired (?:GPU|CPU|XPU) memory utilization|the engine's budget[\w' ]*)"
    rf" \(({NUMBER}), ({NUMBER}) GiB\)"
)
_NOT_FREE_FOR_KV = re.compile(
    rf"Available memory on node \S+ \(({NUMBER})/({NUMBER}) GiB\) on kv cache allocation is less than"
    rf" requested memory for kv \(({NUMBER})"
)
_NOT_FITTED = re.compile(r"Cannot auto-fit max_model_len")
_DISTURBED = re.compile(
    rf"Error in memory profiling\. Initial free memory ({NUMBER}) GiB, current free memory ({NUMBER}) GiB"
)
_OUT_OF_MEMORY = re.compile(rf"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate ({NUMBER}) ([KMG]iB|bytes)")
_CAPACITY = re.compile(rf"total capacity of ({NUMBER}) ([KMG]iB)|; ({NUMBER}) ([KMG]iB) total capacity")
_FREE = re.compile(rf"of which ({NUMBER}) ([KMG]iB|bytes) is free|; ({NUMBER}) ([KMG]iB|bytes) free")
_IN_USE = re.compile(rf"this process has ({NUMBER}) ([KMG]iB) memory in use")
_OF_OTHERS = re.compile(rf"Process \d+ has ({NUMBER}) ([KMG]iB) memory in use")
_ALLOCATED = re.compile(rf"({NUMBER}) ([KMG]iB) (?:is allocated by PyTorch|already allocated)")
_UNUSED = re.compile(rf"({NUMBER}) ([KMG]iB) is reserved by PyTorch but unallocated")
_CUDA_ERROR = re.compile(r"(?:CUDA error|RuntimeError: CUDA error): out of memory")

WORDS = (
    "max seq len",
    "cache blocks",
    "memory on device",
    "memory on node",
    "auto-fit",
    "memory profiling",
    "out of memory",
)


def read_failure(text: str, line: int) -> Failure | None:
    """Return the reason not to start that a line states."""
    for read in _READERS:
        found = read(text)
        if found is not None:
            kind, sentence, numbers = found
            return Failure(kind=kind, text=sentence, line=line, numbers=numbers)
    return None


_Found = tuple[str, str, _Numbers]


def _too_small(text: str) -> _Found | None:
    found = _TOO_SMALL.search(text)
    if found is None:
        return None
    length, needed, available = int(found.group(1)), gib(found.group(2)), gib(found.group(3))
    numbers: _Numbers = {"max_model_len": length, "needed_bytes": needed, "available_bytes": available}
    missing = needed - available
    sentence = (
        f"one request of {length:,} tokens needs {found.group(2)} GiB of KV cache and there are"
        f" {found.group(3)} GiB: {size(missing) if missing else 'less than 0.01 GiB'} too little"
    )
    estimate = _ESTIMATE.search(text)
    if estimate is not None:
        numbers["estimated_max_model_len"] = int(estimate.group(1))
        sentence += f"; the largest --max-model-len that fits is {int(estimate.group(1)):,}"
    return "kv_too_small", sentence, numbers


def _too_long(text: str) -> _Found | None:
    """Read V0's refusal; its pool is a plain count of tokens, so that is the largest length."""
    found = _TOO_LONG.search(text)
    if found is None:
        return None
    length, tokens = int(found.group(1)), int(found.group(2))
    return (
        "kv_too_small",
        (
            f"one request of {length:,} tokens does not fit into a KV cache of {tokens:,}; the largest"
            f" --max-model-len that fits is {tokens:,}"
        ),
        {"max_model_len": length, "available_tokens": tokens, "estimated_max_model_len": tokens},
    )


def _no_memory(text: str) -> _Found | None:
    if _NO_MEMORY.search(text) is None:
        return None
    return "no_kv_memory", "nothing of the share is left for the KV cache", {}


def _not_free(text: str) -> _Found | None:
    found = _NOT_FREE.search(text)
    if found is None:
        return None
    free, total, share, wanted = found.groups()
    return (
        "not_enough_free",
        (
            f"{free} of {total} GiB were free at start and the share of {share} is {wanted} GiB:"
            f" {size(gib(wanted) - gib(free))} too little"
        ),
        {
            "free_bytes": gib(free),
            "total_bytes": gib(total),
            "share": float(share),
            "needed_bytes": gib(wanted),
        },
    )


def _not_free_for_kv(text: str) -> _Found | None:
    found = _NOT_FREE_FOR_KV.search(text)
    if found is None:
        return None
    free, total, wanted = found.groups()
    return (
        "not_enough_free",
        f"{free} of {total} GiB were free and the KV cache is to have {wanted} GiB",
        {"free_bytes": gib(free), "total_bytes": gib(total), "needed_bytes": gib(wanted)},
    )


def _not_fitted(text: str) -> _Found | None:
    if _NOT_FITTED.search(text) is None:
        return None
    return "kv_too_small", "not even one token fits into the memory left for the KV cache", {}


def _disturbed(text: str) -> _Found | None:
    found = _DISTURBED.search(text)
    if found is None:
        return None
    before, after = found.groups()
    return (
        "profiling_disturbed",
        (
            f"another process gave memory back while vLLM measured: {before} GiB were free before and {after}"
            f" GiB after, so the measure is void"
        ),
        {"free_bytes": gib(before), "free_after_bytes": gib(after)},
    )


def _out_of_memory(text: str) -> _Found | None:
    found = _OUT_OF_MEMORY.search(text)
    if found is None:
        if _CUDA_ERROR.search(text) is None:
            return None
        return "out_of_memory", "the device ran out of memory", {}
    numbers: _Numbers = {"tried_bytes": amount(found.group(1), found.group(2))}
    said = [f"{found.group(1)} {found.group(2)} could not be allocated"]
    for name, pattern, words in (
        ("total_bytes", _CAPACITY, "the card has {}"),
        ("free_bytes", _FREE, "{} were free"),
        ("in_use_bytes", _IN_USE, "the process held {}"),
        ("torch_bytes", _ALLOCATED, "{} of it in PyTorch"),
        ("unused_bytes", _UNUSED, "{} more reserved but unused"),
    ):
        match = pattern.search(text)
        if match is not None:
            value, unit = (part for part in match.groups() if part is not None)
            numbers[name] = amount(value, unit)
            said.append(words.format(f"{value} {unit}"))
    others = _OF_OTHERS.findall(text)
    if others:
        numbers["processes_bytes"] = sum(amount(value, unit) for value, unit in others)
        said.append(f"processes of the card held {size(int(numbers['processes_bytes']))}")
    return "out_of_memory", ", ".join(said), numbers


_READERS: tuple[Callable[[str], _Found | None], ...] = (
    _too_small,
    _too_long,
    _no_memory,
    _not_free,
    _not_free_for_kv,
    _not_fitted,
    _disturbed,
    _out_of_memory,
)
