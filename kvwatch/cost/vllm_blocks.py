"""The block size that vLLM ends up with, and every layer's page at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.cost.spec import Layer, LayerKind
from kvwatch.cost.vllm_options import OptionError, VllmOptions, model_element_bytes
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

DEFAULT_BLOCK_SIZE = 16
LATENT_HYBRID_ALIGNMENT = 128
BOUNDARY_LAYERS = 2
WIDE_HEAD = 256
HOPPER = 9


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


def kernel_block(spec: ModelSpec, cache_dtype: str, options: VllmOptions) -> int:
    """Return the smallest block that the attention backend takes on this device.

    64 for sparse latent attention, for latent attention with FP8 on Hopper (FLASHMLA) and for heads of more
    than 256 with FP8 on Hopper (FlashAttention 4); 16 elsewhere.
    """
    if _has(spec, LayerKind.INDEXER):
        return 64
    major = options.compute_capability[0]
    one_byte = cache_dtype in ONE_BYTE_DTYPES or cache_dtype in DS_MLA_TOKEN_BYTES
    if _has(spec, LayerKind.LATENT):
        return 64 if one_byte and major == HOPPER else DEFAULT_BLOCK_SIZE
    wide = any(layer.k_width > WIDE_HEAD for layer in spec.layers if layer.kind is LayerKind.FULL)
    return 64 if wide and one_byte and major == HOPPER else DEFAULT_BLOCK_SIZE


def page_layers(spec: ModelSpec, options: VllmOptions) -> tuple[PagedLayer, ...]:
    """Return every cache-owning layer with its block size and the bytes of one block on one rank."""
    if options.tensor_parallel < 1 or (
        spec.attention_heads and spec.attention_heads % options.tensor_parallel
    ):
        raise OptionError(
            "tensor_parallel", f"{spec.attention_heads} heads cannot be divided by {options.tensor_parallel}"
        )
    cache_dtype = resolve_cache_dtype(spec, options)
    kernel = kernel_block(spec, cache_dtype, options)
    block_size = options.block_size or kernel
    states = [state_bytes(layer, spec, options) for layer in spec.layers if layer.kind is LayerKind.RECURRENT]
    attention = [layer for layer in spec.layers if layer.kind is not LayerKind.RECURRENT]
    padded: int | None = None
    if states and attention:
        per_token = _alignment_token_bytes(spec, attention, cache_dtype, options)
        block_size = _hybrid_block(
            max(states), per_token, block_size, kernel, latent=_has(spec, LayerKind.LATENT)
        )
        padded = block_size * per_token
    elif cache_dtype in TURBOQUANT_BITS:
        block_size = _mixed_block(spec, block_size, kernel, options)
    pages: list[PagedLayer] = []
    for layer in spec.layers:
        if layer.kind is LayerKind.RECURRENT:
            own = state_bytes(layer, spec, options)
            pages.append(_recurrent_page(layer, padded or own, own, block_size))
        else:
            stored = _stored_dtype(spec, layer, cache_dtype, hybrid=bool(states))
            per_token = token_bytes(
                layer, stored, element_bytes=model_element_bytes(spec, options), options=options
            )
            pages.append(_attention_page(layer, per_token, block_size, stored))
    return tuple(pages)


def _alignment_token_bytes(
    spec: ModelSpec, attention: list[Layer], cache_dtype: str, options: VllmOptions
) -> int:
    """Return the bytes per token by which the engine sizes a hybrid's block."""
    reference = spec.block_layer or attention[0]
    return token_bytes(
        reference, cache_dtype, element_bytes=model_element_bytes(spec, options), options=options
    )


def _hybrid_block(state: int, per_token: int, block_size: int, kernel: int, *, latent: bool) -> int:
    """Return the attention block whose page holds a recurrent state (0.32.0, platforms/interface.py)."""
    alignment = max(kernel, block_size, LATENT_HYBRID_ALIGNMENT if latent else 0)
    wanted = alignment * -(-state // (alignment * per_token))
    wanted = kernel * -(-wanted // kernel)
    return max(block_size, wanted)


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


def _recurrent_page(layer: Layer, page_bytes: int, state: int, block_size: int) -> PagedLayer:
    return PagedLayer(
        layer=layer,
        kind=layer.kind,
        block_size=block_size,
        page_bytes=max(page_bytes, state),
        window=None,
        signature=(layer.state, layer.checkpoint_blocks),
    )


def _attention_page(layer: Layer, per_token: int, block_size: int, stored: str) -> PagedLayer:
    return PagedLayer(
        layer=layer,
        kind=layer.kind,
        block_size=block_size,
        page_bytes=per_token * block_size,
        window=layer.window,
        signature=(
            layer.kv_heads,
            layer.k_width,
            layer.v_width,
            stored,
            layer.element_bytes,
            layer.sink_tokens,
        ),
    )


def _stored_dtype(spec: ModelSpec, layer: Layer, cache_dtype: str, *, hybrid: bool) -> str:
    """Return the dtype of one layer; turboquant leaves the first and last two layers of non-hybrids alone."""
    if layer.ignores_cache_dtype or cache_dtype in PLAIN_DTYPES:
        return "auto" if layer.ignores_cache_dtype else cache_dtype
    if cache_dtype in TURBOQUANT_BITS and not hybrid:
        edge = min(BOUNDARY_LAYERS, spec.hidden_layers // 2)
        if layer.index < edge or layer.index >= spec.hidden_layers - edge:
            return "auto"
    return cache_dtype
