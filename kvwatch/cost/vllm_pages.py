"""Bytes of one block of one layer on one rank, by cache dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.cost.spec import Layer, LayerKind, ModelSpec, StateRole
from kvwatch.cost.vllm_options import DTYPE_BYTES, OptionError, VllmOptions, model_element_bytes

if TYPE_CHECKING:
    from kvwatch.cost.spec import StatePart

PLAIN_DTYPES = frozenset({"auto", "float16", "bfloat16", "half", "float", "float32"})
ONE_BYTE_DTYPES = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "int8"})
PER_TOKEN_HEAD_BITS = {"int8_per_token_head": 8, "fp8_per_token_head": 8, "int4_per_token_head": 4}
TURBOQUANT_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
"""Bits of a key's and of a value's element (0.32.0, quantization/turboquant/config.py)."""
DS_MLA_TOKEN_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""One token's latent vector with its scales and unquantised rotary part (0.32.0, mla_attention.py)."""
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayer:
    """A layer as one rank stores it."""

    layer: Layer
    kind: LayerKind
    block_size: int
    page_bytes: int
    """Bytes of one block, padding included."""
    window: int | None
    signature: tuple[object, ...]
    """What must be equal for two layers to share a group."""

    def with_block_size(self, block_size: int) -> PagedLayer:
        """Return the same layer with blocks of another size, their bytes in proportion."""
        return replace(
            self, block_size=block_size, page_bytes=self.page_bytes // self.block_size * block_size
        )


def kv_heads_of_rank(layer: Layer, options: VllmOptions) -> int:
    """Return the KV heads of one tensor-parallel rank; more ranks than heads hold copies.

    Raises:
        OptionError: the engine refuses this division.

    """
    heads, ranks = layer.kv_heads, options.tensor_parallel
    if heads >= ranks:
        if heads % ranks:
            raise OptionError("tensor_parallel", f"{heads} KV heads cannot be divided by {ranks}")
        return heads // ranks
    if ranks % heads:
        raise OptionError("tensor_parallel", f"{ranks} ranks cannot share {heads} KV heads")
    return 1


def token_bytes(layer: Layer, cache_dtype: str, *, element_bytes: int, options: VllmOptions) -> int:
    """Return the bytes that one token takes in one attention layer of one rank."""
    if layer.element_bytes is not None:
        return (layer.k_width + layer.v_width) * layer.element_bytes
    dtype = "auto" if layer.ignores_cache_dtype else cache_dtype
    if layer.kind in (LayerKind.LATENT, LayerKind.LATENT_WINDOW):
        return _latent_token_bytes(layer.k_width, dtype, element_bytes)
    return kv_heads_of_rank(layer, options) * head_token_bytes(
        layer.k_width, layer.v_width, dtype, element_bytes
    )


def head_token_bytes(k_width: int, v_width: int, cache_dtype: str, element_bytes: int) -> int:
    """Return the bytes of one token's key and value in one head.

    Scales are stored inside the page: 4 bytes for each of key and value with a per-token-head dtype (0.32.0,
    triton_attn.py), one FP8 byte per 16 elements with nvfp4 (flashinfer.py), norms with turboquant.
    """
    if cache_dtype in PLAIN_DTYPES:
        return (k_width + v_width) * _plain_bytes(cache_dtype, element_bytes)
    if cache_dtype in ONE_BYTE_DTYPES:
        return k_width + v_width
    if cache_dtype in PER_TOKEN_HEAD_BITS:
        bits = PER_TOKEN_HEAD_BITS[cache_dtype]
        return k_width * bits // 8 + v_width * bits // 8 + 2 * SCALE_BYTES
    if cache_dtype in ("nvfp4", "nvfp4_4over6"):
        return k_width // 2 + k_width // 16 + v_width // 2 + v_width // 16
    if cache_dtype in TURBOQUANT_BITS:
        return _turboquant_token_bytes(k_width, cache_dtype)
    raise OptionError("cache_dtype", f"{cache_dtype} is not known for attention with keys and values")


def _turboquant_token_bytes(width: int, cache_dtype: str) -> int:
    key_bits, value_bits = TURBOQUANT_BITS[cache_dtype]
    key = width if key_bits == 8 else -(-width * key_bits // 8) + 2  # noqa: PLR2004 - FP8 keys keep no norm
    value = -(-width * value_bits // 8) + 4
    return key + value + (key + value) % 2


def _latent_token_bytes(width: int, cache_dtype: str, element_bytes: int) -> int:
    if cache_dtype in DS_MLA_TOKEN_BYTES:
        return DS_MLA_TOKEN_BYTES[cache_dtype]
    if cache_dtype in PLAIN_DTYPES:
        return width * _plain_bytes(cache_dtype, element_bytes)
    if cache_dtype in ONE_BYTE_DTYPES:
        return width
    if cache_dtype in PER_TOKEN_HEAD_BITS:
        return width * PER_TOKEN_HEAD_BITS[cache_dtype] // 8 + 2 * SCALE_BYTES
    raise OptionError("cache_dtype", f"{cache_dtype} is not known for latent attention")


def _plain_bytes(cache_dtype: str, element_bytes: int) -> int:
    return element_bytes if cache_dtype == "auto" else DTYPE_BYTES[cache_dtype]


def state_bytes(layer: Layer, spec: ModelSpec, options: VllmOptions) -> int:
    """Return the bytes of one request's recurrent state in one layer of one rank."""
    return sum(_part_bytes(part, spec, options) for part in layer.state)


def _part_bytes(part: StatePart, spec: ModelSpec, options: VllmOptions) -> int:
    ranks = 1 if part.replicated else options.tensor_parallel
    groups = part.groups
    if groups % ranks:
        groups = ranks
    split = part.split + groups * part.group_width
    if split % ranks:
        raise OptionError(
            "tensor_parallel", f"a recurrent state of width {split} cannot be divided by {ranks}"
        )
    return split // ranks * part.rest * _state_element_bytes(part, spec, options)


def _state_element_bytes(part: StatePart, spec: ModelSpec, options: VllmOptions) -> int:
    if part.dtype is not None:
        return DTYPE_BYTES[part.dtype]
    name = options.mamba_cache_dtype
    if part.role is StateRole.SSM:
        chosen = options.mamba_ssm_dtype
        if chosen == "auto":
            chosen = spec.ssm_dtype or part.auto_dtype or "auto"
        name = name if chosen == "auto" else chosen
    if name == "auto":
        return model_element_bytes(spec, options)
    if name not in DTYPE_BYTES:
        raise OptionError("mamba_ssm_dtype", f"{name} is not known")
    return DTYPE_BYTES[name]
