"""What a quantised checkpoint says about the cache dtype of its model."""

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
