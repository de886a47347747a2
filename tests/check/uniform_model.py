"""A model with full attention in every layer, by its dimensions."""

from __future__ import annotations

from typing import Any


def uniform_config(layers: int, kv_heads: int, *, width: int = 128) -> dict[str, Any]:
    """Return a config.json's content."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": layers,
        "num_attention_heads": max(64, kv_heads),
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "max_position_embeddings": 262_144,
        "dtype": "bfloat16",
    }
