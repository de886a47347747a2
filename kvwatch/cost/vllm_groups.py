"""vLLM's KV groups: which layers share a block table, and how pages are made equal.

Follows v1/core/kv_cache_utils.py of 0.32.0 (`get_kv_cache_groups` and what it calls).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.cost.spec import LayerKind
from kvwatch.cost.vllm_options import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.cost.vllm_pages import PagedLayer
    from kvwatch.cost.vllm_version import EngineRules

FULL_LIKE = frozenset({LayerKind.FULL, LayerKind.LATENT, LayerKind.INDEXER})
LATENT_KINDS = frozenset({LayerKind.LATENT, LayerKind.LATENT_WINDOW, LayerKind.INDEXER})

Group = tuple["PagedLayer", ...]


def group_layers(
    layers: Sequence[PagedLayer], *, hybrid_manager: bool, rules: EngineRules
) -> tuple[Group, ...]:
    """Return the groups of layers that share one block table, in the engine's order.

    Raises:
        OptionError: the engine cannot serve these layers together with these options.

    """
    if not layers:
        return ()
    chunked = any(layer.kind is LayerKind.CHUNKED for layer in layers)
    if not hybrid_manager or not rules.hybrid_groups or (chunked and not rules.chunked_groups):
        layers = promote_local(layers)
    equal = len({layer.page_bytes for layer in layers}) == 1
    if is_uniform(layers) and (equal or rules.mixed_pages):
        return (tuple(layers),)
    return _deal(layers if equal else equal_pages(layers, rules), rules.group_tolerance)


def is_uniform(layers: Sequence[PagedLayer]) -> bool:
    """Say whether all layers need the same tokens at the same block size: then they form one group."""
    return len({(layer.block_size, _family(layer)) for layer in layers}) == 1


def _family(layer: PagedLayer) -> tuple[object, ...]:
    if layer.kind in FULL_LIKE:
        return ("full",)
    if layer.kind is LayerKind.RECURRENT:
        return (layer.kind, layer.page_bytes, layer.layer.checkpoint_blocks)
    return (layer.kind, layer.window)


def promote_local(layers: Sequence[PagedLayer]) -> list[PagedLayer]:
    """Return the layers as allocated without the hybrid manager: local ones beside full ones become full."""
    if is_uniform(layers):
        return list(layers)
    full = [layer for layer in layers if layer.kind in FULL_LIKE]
    sizes = {layer.block_size for layer in full}
    promoted = []
    for layer in layers:
        local = layer.kind in (LayerKind.WINDOW, LayerKind.CHUNKED, LayerKind.LATENT_WINDOW)
        if not full or not local:
            promoted.append(layer)
            continue
        kind = LayerKind.LATENT if layer.kind is LayerKind.LATENT_WINDOW else LayerKind.FULL
        sized = layer.with_block_size(next(iter(sizes))) if len(sizes) == 1 else layer
        promoted.append(replace(sized, kind=kind, window=None))
    if not is_uniform(promoted):
        raise OptionError("hybrid_manager", "this model needs the hybrid KV cache manager")
    return promoted


def equal_pages(layers: Sequence[PagedLayer], rules: EngineRules) -> list[PagedLayer]:
    """Return the layers with pages of one size: blocks enlarged by a whole ratio, else pages padded."""
    if not rules.scaled_blocks:
        raise OptionError("engine_version", "this release serves no layers with pages of several sizes")
    largest = max(layer.page_bytes for layer in layers)
    unified = []
    for layer in layers:
        if layer.page_bytes == largest:
            unified.append(layer)
        elif layer.kind is not LayerKind.RECURRENT and largest % layer.page_bytes == 0:
            ratio = largest // layer.page_bytes
            unified.append(replace(layer, block_size=layer.block_size * ratio, page_bytes=largest))
        elif layer.kind not in LATENT_KINDS and rules.padded_pages:
            unified.append(replace(layer, page_bytes=largest))
        else:
            raise OptionError("block_size", "the pages of this model's layers cannot be made equal")
    return unified


def _deal(layers: Sequence[PagedLayer], tolerance: float) -> tuple[Group, ...]:
    buckets: dict[tuple[object, ...], list[PagedLayer]] = {}
    for layer in layers:
        key = (layer.kind, layer.window, layer.block_size, layer.page_bytes, *layer.signature)
        buckets.setdefault(key, []).append(layer)
    sizes = [len(bucket) for bucket in buckets.values()]
    size = max(sizes) if max(sizes) < min(sizes) * tolerance else min(sizes)
    groups: list[Group] = []
    for bucket in buckets.values():
        count = -(-len(bucket) // size)
        groups += [tuple(bucket[start::count]) for start in range(count)]
    return tuple(groups)
