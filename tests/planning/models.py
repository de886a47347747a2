"""Models and servers for the tests of this folder: config.json as they are published, and their questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.vllm import VllmOptions
from kvwatch.planning.question import Card, Server, VllmModel

if TYPE_CHECKING:
    from kvwatch.planning.footprint import Footprint

MIB, GIB = 1 << 20, 1 << 30

EMBEDDING: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 2560,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
"""Qwen3-Embedding-4B: 36 layers of 8 KV heads of 128 in 16 bits, 147,456 bytes a token."""

CARD = Card(name="A40", total_bytes=46_068 * MIB)


def served(config: dict[str, Any] = EMBEDDING, **options: Any) -> VllmModel:
    """Return a model that vLLM serves with these options."""
    given = {"max_num_batched_tokens": 2048, **options}
    return VllmModel(spec=read_hf_config(config), options=VllmOptions(**given))


def server(
    *,
    config: dict[str, Any] = EMBEDDING,
    length: int = 8192,
    concurrency: int = 1,
    cards: tuple[str, ...] = ("A40",),
    footprint: Footprint | None = None,
    weights: int | None = None,
    working: int | None = None,
    **options: Any,
) -> Server:
    """Return a server that is asked for."""
    return Server(
        name="embed",
        cards=cards,
        model=served(config, **options),
        length_tokens=length,
        concurrency=concurrency,
        footprint=footprint,
        weights_bytes=weights,
        working_bytes=working,
    )
