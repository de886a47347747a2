"""The block size that vLLM ends up with, and every layer's page at it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.cost.spec import Layer, LayerKind
from kvwatch.cost.vllm_options import MissingOptionError, OptionError, VllmOptions, model_element_bytes
from kvwatch.cost.vllm_pages import (
    DS_MLA_TOKEN_BYTES,
    ONE_BYTE_DTYPES,
    PLAIN_DTYPES,
    TURBOQUANT_BITS,
    PagedLayer,
    state_bytes,
    token_bytes,
)

if TYPE_CHECKING:
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm_version import EngineRules

DEFAULT_BLOCK_SIZE = 16
LARGE_BLOCK_SIZE = 64
BOUNDARY_LAYERS = 2
WIDE_HEAD = 256
HOPPER = 9
BLACKWELL = 10
LOCAL_KINDS = frozenset({LayerKind.WINDOW, LayerKind.CHUNKED, LayerKind.CROSS})


def resolve_cache_dtype(spec: ModelSpec, options: VllmOptions) -> str:
    """Return the cache dtype as the layers store it (0.32.0, mla_attention.py, deepseek_v32)."""
    dtype = options.cache_dtype
    if dtype == "auto" and spec.cache_dtype is not None:
        dtype = spec.cache_dtype
    if dtype in ONE_BYTE_DTYPES and _has(spec, LayerKind.INDEXER) and _has(spec, LayerKind.LATENT):
        return "fp8_ds_mla"
    return dtype


def _has(spec: ModelSpec, kind: LayerKind) -> bool:
    return any(layer.kind is kind for layer in spec.layers)


def kernel_block(spec: ModelSpec, cache_dtype: str, options: VllmOptions, rules: EngineRules) -> int:
    """Return the smallest block that the attention backend takes on this device.

    64 for sparse latent attention, for latent attention with FP8 on Hopper (FLASHMLA) and for heads of more
    than 256 with FP8 on Hopper (FlashAttention 4); 16 elsewhere (0.32.0, v1/attention/backends).

    Raises:
        MissingOptionError: the device's backend depends on what is installed, and no block size is given.

    """
    if _has(spec, LayerKind.INDEXER):
        return LARGE_BLOCK_SIZE
    major = options.compute_capability[0]
    one_byte = cache_dtype in ONE_BYTE_DTYPES or cache_dtype in DS_MLA_TOKEN_BYTES
    latent = _has(spec, LayerKind.LATENT)
    widest = max(
        (layer.k_width for layer in spec.layers if layer.kind in (LayerKind.FULL, LayerKind.WINDOW)),
        default=0,
    )
    if major == BLACKWELL and options.block_size is None and (latent or widest >= WIDE_HEAD):
        raise MissingOptionError("block_size", "depends on the attention backend of this device")
    if major != HOPPER:
        return DEFAULT_BLOCK_SIZE
    if latent:
        return LARGE_BLOCK_SIZE if one_byte or rules.hopper_latent_block else DEFAULT_BLOCK_SIZE
    return LARGE_BLOCK_SIZE if widest > WIDE_HEAD and one_byte else DEFAULT_BLOCK_SIZE


def page_layers(
    spec: ModelSpec, options: VllmOptions, rules: EngineRules, mode: str
) -> tuple[PagedLayer, ...]:
    """Return every cache-owning layer with its block size and the bytes of one block on one rank.

    `mode`: how recurrent groups keep states.
    """
    if options.tensor_parallel < 1 or (
        spec.attention_heads and spec.attention_heads % options.tensor_parallel
    ):
        raise OptionError(
            "tensor_parallel", f"{spec.attention_heads} heads cannot be divided by {options.tensor_parallel}"
        )
    cache_dtype = resolve_cache_dtype(spec, options)
    kernel = kernel_block(spec, cache_dtype, options, rules) if spec.layers else DEFAULT_BLOCK_SIZE
    block_size = options.block_size or kernel
    states = [state_bytes(layer, spec, options) for layer in spec.layers if layer.kind is LayerKind.RECURRENT]
    attention = [layer for layer in spec.layers if layer.kind is not LayerKind.RECURRENT]
    padded = 0
    if states and attention:
        per_token = _token_bytes(spec, spec.block_layer or attention[0], cache_dtype, options, rules)
        alignment = _hybrid_alignment(spec, block_size, kernel, rules)
        if mode == "all":
            alignment = math.lcm(spec.state_chunk or 1, alignment)
        wanted = alignment * -(-max(states) // (alignment * per_token))
        block_size = max(block_size, kernel * -(-wanted // kernel))
        padded = block_size * per_token
    elif cache_dtype in TURBOQUANT_BITS:
        block_size = _mixed_block(spec, block_size, kernel, options)
    pages: list[PagedLayer] = []
    for layer in spec.layers:
        if layer.kind is LayerKind.RECURRENT:
            own = state_bytes(layer, spec, options)
            pages.append(_page(layer, max(own, padded), block_size, (layer.state, layer.checkpoint_blocks)))
        else:
            stored = _stored_dtype(spec, layer, cache_dtype, hybrid=bool(states))
            page = block_size * _token_bytes(spec, layer, stored, options, rules)
            pages.append(_page(layer, page, block_size, _attention_signature(layer, stored)))
    return tuple(pages)


def _hybrid_alignment(spec: ModelSpec, block_size: int, kernel: int, rules: EngineRules) -> int:
    """Return the tokens that a hybrid's block is a multiple of (0.32.0, platforms/interface.py)."""
    least = rules.latent_hybrid_alignment if _has(spec, LayerKind.LATENT) else 0
    return max(kernel, block_size, least)


def _token_bytes(
    spec: ModelSpec, layer: Layer, cache_dtype: str, options: VllmOptions, rules: EngineRules
) -> int:
    """Return the bytes of a token in a layer; releases that knew one head width store values at the keys'."""
    own_width = rules.local_value_widths if layer.kind in LOCAL_KINDS else rules.value_widths
    if layer.v_width and not own_width:
        layer = replace(layer, v_width=layer.k_width)
    return token_bytes(layer, cache_dtype, element_bytes=model_element_bytes(spec, options), options=options)


def _mixed_block(spec: ModelSpec, block_size: int, kernel: int, options: VllmOptions) -> int:
    """Return the block at which a byte-wide page covers that of the layers left unquantised.

    0.32.0, platforms/interface.py `_align_heterogeneous_kv_block_size`, which sizes the quantised page as if
    it took a byte for each element.
    """
    if any(layer.kind is LayerKind.WINDOW for layer in spec.layers):
        raise OptionError("cache_dtype", "turboquant has no sliding windows")
    element_bytes = model_element_bytes(spec, options)
    alignment = max(kernel, block_size)
    return max(block_size, alignment * -(-element_bytes * kernel // alignment))


def _page(layer: Layer, page_bytes: int, block_size: int, signature: tuple[object, ...]) -> PagedLayer:
    return PagedLayer(
        layer=layer,
        kind=layer.kind,
        block_size=block_size,
        page_bytes=page_bytes,
        window=layer.window,
        signature=signature,
    )


def _attention_signature(layer: Layer, stored: str) -> tuple[object, ...]:
    return (layer.kv_heads, layer.k_width, layer.v_width, stored, layer.element_bytes, layer.sink_tokens)


def _stored_dtype(spec: ModelSpec, layer: Layer, cache_dtype: str, *, hybrid: bool) -> str:
    """Return the dtype of one layer; turboquant leaves the first and last two layers of non-hybrids alone."""
    if layer.ignores_cache_dtype:
        return "auto"
    if cache_dtype in PLAIN_DTYPES or cache_dtype not in TURBOQUANT_BITS or hybrid:
        return cache_dtype
    edge = min(BOUNDARY_LAYERS, spec.hidden_layers // 2)
    inside = edge <= layer.index < spec.hidden_layers - edge
    return cache_dtype if inside else "auto"
