"""What a quantised checkpoint says of itself: the cache dtype of its model, the bits of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EIGHT_BITS = 8
FOUR_BITS = 4


def checkpoint_cache_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the cache dtype that the engine takes from `quantization_config` where its own is `auto`.

    vLLM 0.32.0: compressed-tensors files with a `kv_cache_scheme` get an FP8 cache (attention.py); ModelOpt
    files name their scheme (utils/torch_utils.py `get_kv_cache_quant_algo_string`).
    """
    quantization = config.get("quantization_config", config.get("compression_config"))
    if not isinstance(quantization, Mapping):
        return None
    method = str(quantization.get("quant_method", "")).replace("_", "-")
    producer = quantization.get("producer")
    if method.startswith("modelopt") or (
        isinstance(producer, Mapping) and producer.get("name") == "modelopt"
    ):
        return _modelopt_dtype(quantization)
    if method == "compressed-tensors" and isinstance(quantization.get("kv_cache_scheme"), Mapping):
        return "fp8"
    return None


def _modelopt_dtype(quantization: Mapping[str, Any]) -> str | None:
    inner = quantization.get("quantization")
    holders = (inner, quantization) if isinstance(inner, Mapping) else (quantization,)
    stated = [holder.get(name) for name in ("kv_cache_scheme", "kv_cache_quant_algo") for holder in holders]
    scheme = next((value for value in stated if value), None)
    if isinstance(scheme, Mapping) and scheme.get("type") == "float":
        return {EIGHT_BITS: "fp8", FOUR_BITS: "nvfp4"}.get(scheme.get("num_bits", 0))
    return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(scheme.lower()) if isinstance(scheme, str) else None


def checkpoint_weight_bits(config: Mapping[str, Any]) -> int | None:
    """Return the bits of a quantised weight by `quantization_config`; None where it does not say one number.

    The keys are those that vLLM 0.32.0 reads (model_executor/layers/quantization: gptq, awq,
    compressed-tensors, bitsandbytes, modelopt, mxfp4, fp8).
    """
    quantization = config.get("quantization_config", config.get("compression_config"))
    if not isinstance(quantization, Mapping):
        return None
    method = str(quantization.get("quant_method", "")).lower().replace("_", "-")
    if method in ("mxfp4", "fp8"):
        return FOUR_BITS if method == "mxfp4" else EIGHT_BITS
    groups = quantization.get("config_groups")
    if isinstance(groups, Mapping):
        found = {
            weights.get("num_bits")
            for group in groups.values()
            if isinstance(group, Mapping) and isinstance(weights := group.get("weights"), Mapping)
        }
        return _bits(found.pop()) if len(found) == 1 else None
    if quantization.get("load_in_4bit") is True:
        return FOUR_BITS
    if quantization.get("load_in_8bit") is True:
        return EIGHT_BITS
    inner = quantization.get("quantization")
    algorithm = quantization.get("quant_algo") or (
        inner.get("quant_algo") if isinstance(inner, Mapping) else None
    )
    if isinstance(algorithm, str):
        return {"FP8": EIGHT_BITS, "NVFP4": FOUR_BITS, "W4A16_AWQ": FOUR_BITS}.get(algorithm.upper())
    return _bits(quantization.get("bits", quantization.get("w_bit")))


def _bits(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 2 * EIGHT_BITS else None
