"""Fields by their other names, nested, missing, or saying something else than they seem to."""

from __future__ import annotations

from typing import Any

import pytest

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.spec import LayerKind, ModelSpec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
FALCON = {
    "architectures": ["FalconForCausalLM"],
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
}


def shape(spec: ModelSpec) -> tuple[int, int, int]:
    """Return layers, KV heads and head width of a model whose layers are alike."""
    (only,) = {(layer.kv_heads, layer.k_width) for layer in spec.layers}
    return len(spec.layers), *only


@pytest.mark.parametrize(
    "config, right",
    [
        pytest.param(LLAMA, (32, 8, 128), id="plain"),
        pytest.param({**LLAMA, "head_dim": 64}, (32, 8, 64), id="stated head width"),
        pytest.param({**LLAMA, "num_key_value_heads": None}, (32, 32, 128), id="null KV heads"),
        pytest.param(
            {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "head_dim": 64},
            (32, 8, 128),
            id="a head width that the code ignores",
        ),
        pytest.param(
            {"architectures": ["GPT2LMHeadModel"], "n_layer": 12, "n_head": 12, "n_embd": 768},
            (12, 12, 64),
            id="n_layer, n_head, n_embd",
        ),
        pytest.param(
            {"architectures": ["BloomForCausalLM"], "n_layer": 30, "n_head": 32, "hidden_size": 4096},
            (30, 32, 128),
            id="both spellings",
        ),
        pytest.param(
            {
                "architectures": ["MPTForCausalLM"],
                "n_layers": 32,
                "n_heads": 32,
                "d_model": 4096,
                "attn_config": {"kv_n_heads": 8},
            },
            (32, 8, 128),
            id="heads in attn_config",
        ),
        pytest.param(FALCON, (32, 1, 64), id="multi_query by default"),
        pytest.param({**FALCON, "multi_query": False}, (32, 71, 64), id="multi_query off"),
        pytest.param(
            {
                **FALCON,
                "new_decoder_architecture": True,
                "num_kv_heads": 8,
                "num_attention_heads": 128,
                "hidden_size": 8192,
            },
            (32, 8, 64),
            id="new decoder architecture",
        ),
        pytest.param(
            {
                "architectures": ["LlavaForConditionalGeneration"],
                "text_config": {k: v for k, v in LLAMA.items() if k != "architectures"},
            },
            (32, 8, 128),
            id="text_config",
        ),
        pytest.param(
            {
                "architectures": ["LlavaForConditionalGeneration"],
                "text_config": {"model_type": "llama", "num_key_value_heads": 4},
            },
            (32, 4, 128),
            id="a text_config that leaves out what equals its class's defaults",
        ),
        pytest.param(
            {**LLAMA, "sliding_window": 1024, "use_sliding_window": False}, (32, 8, 128), id="window off"
        ),
    ],
)
def test_fields(config: dict[str, Any], right: tuple[int, int, int]) -> None:
    """Layers, KV heads and widths are those that the engine's model code makes of the file."""
    spec = read_hf_config(config)
    assert shape(spec) == right
    assert all(layer.window is None for layer in spec.layers)


@pytest.mark.parametrize(
    "extra, right",
    [
        ({}, 8192),
        ({"model_max_length": 4096}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 32_768),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 8192),
        (
            {"rope_scaling": {"rope_type": "longrope"}, "original_max_position_embeddings": 4096},
            4096,
        ),
        ({"max_position_embeddings": None}, 2048),
    ],
)
def test_the_longest_request(extra: dict[str, Any], right: int) -> None:
    """The longest request is the one that the engine derives where it is not told."""
    assert read_hf_config({**LLAMA, **extra}).max_positions == right


def test_a_pooling_model_of_a_decoder() -> None:
    """A classifier on a decoder keeps its cache; a bidirectional one keeps none."""
    spec = read_hf_config({**LLAMA, "architectures": ["LlamaForSequenceClassification"]})
    assert spec.pooling
    assert {layer.kind for layer in spec.layers} == {LayerKind.FULL}
    spec = read_hf_config({**LLAMA, "is_causal": False})
    assert spec.encoder_only
    assert spec.layers == ()
