"""Rules about a llama-server's cache types, and where its cache lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.check.rule import Hit
from kvwatch.check.verdict import Severity
from kvwatch.cost.gguf_types import CACHE_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.check.evidence import Evidence
    from kvwatch.flags.launch import Launch

_TENSOR_REFUSED, _TENSOR_ALLOWED = 9442, 9484
"""The last build read that refuses a quantised cache under `-sm tensor`, the first that allows it."""
_AUTOMATIC_FLASH = 9093
"""The oldest build read in which `-fa auto` switches flash attention on for a quantised V."""


def quantised_cache_tensor_split(evidence: Evidence) -> Iterator[Hit]:
    """Find quantised caches under `--split-mode tensor`, which builds up to b9442 refuse."""
    for server, _ in evidence.llamacpp():
        launch = server.launch
        types = _quantised(launch)
        build = None if server.version is None else server.version[0]
        if launch.split_mode != "tensor" or not types or (build is not None and build >= _TENSOR_ALLOWED):
            continue
        refused = build is not None and build <= _TENSOR_REFUSED
        which = "this build" if build is None else f"b{build}"
        says = f"{which} does not start" if refused else f"whether {which} starts is not known"
        yield Hit(
            message=(
                f"{server.name}: --split-mode tensor with a quantised cache ({', '.join(types)}): builds up"
                f" to b{_TENSOR_REFUSED} refuse it, b{_TENSOR_ALLOWED} and later do not; {says}. Use"
                f" b{_TENSOR_ALLOWED} or later, an f16 cache, or --split-mode layer."
            ),
            place=server.where("split_mode", "cache_type_k", "cache_type_v"),
            severity=Severity.ERROR if refused else Severity.WARNING,
            servers=(server.name,),
            numbers={} if build is None else {"build": build},
        )


def quantised_v_without_flash(evidence: Evidence) -> Iterator[Hit]:
    """Find quantised V caches without flash attention, with which no context is made."""
    for server, _ in evidence.llamacpp():
        launch = server.launch
        kind = launch.cache_type_v
        if kind is None or not _is_quantised(kind) or launch.flash_attention != "off":
            continue
        yield Hit(
            message=(
                f"{server.name} does not start: --cache-type-v {kind} needs flash attention, and --flash-attn"
                f" is off. Drop --flash-attn off (from b{_AUTOMATIC_FLASH} on auto switches it on), or"
                f" quantise K alone."
            ),
            place=server.where("cache_type_v", "flash_attention"),
            servers=(server.name,),
        )


def cache_refused(evidence: Evidence) -> Iterator[Hit]:
    """Find settings with which the model's own file makes a llama-server refuse its cache."""
    for server, sizing in evidence.llamacpp():
        launch = server.launch
        told = launch.flash_attention == "off" and launch.cache_type_v is not None
        if sizing.refusal is None or (told and _is_quantised(launch.cache_type_v or "")):
            continue
        yield Hit(
            message=(
                f"{server.name} does not start: {sizing.refusal}. Use f16, or a type that the model allows."
            ),
            place=server.where("cache_type_v", "cache_type_k", "parallel"),
            servers=(server.name,),
        )


def cache_in_host_memory(evidence: Evidence) -> Iterator[Hit]:
    """Find caches that are kept in host memory while layers compute on a GPU."""
    for server, sizing in evidence.llamacpp():
        if server.launch.no_kv_offload is not True or server.launch.device == "none":
            continue
        held = "" if sizing.pool is None else f", {size(sizing.pool.total_bytes)},"
        yield Hit(
            message=(
                f"{server.name}: --no-kv-offload keeps the KV cache{held} in host memory: it takes none of"
                f" the card, and every step reads it over the bus. Drop it if the card has room; quantise the"
                f" cache (-ctk q8_0 -ctv q8_0) if it has not."
            ),
            place=server.where("no_kv_offload"),
            servers=(server.name,),
            numbers={} if sizing.pool is None else {"host_bytes": sizing.pool.total_bytes},
        )


def _quantised(launch: Launch) -> tuple[str, ...]:
    kinds = (("-ctk", launch.cache_type_k), ("-ctv", launch.cache_type_v))
    return tuple(f"{flag} {kind}" for flag, kind in kinds if kind is not None and _is_quantised(kind))


def _is_quantised(kind: str) -> bool:
    return kind in CACHE_TYPES and CACHE_TYPES[kind].block_elements > 1
