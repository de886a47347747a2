"""Sums worked by hand, in papers, in public logs, and with vLLM's own planner on synthetic layers."""

from __future__ import annotations

import pytest

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.spec import Layer, LayerKind, ModelSpec
from kvwatch.cost.vllm import BlockPlan, VllmOptions, plan_blocks
from tests.cost.agreement import spec_of

GIB = 1 << 30


def layers(kind: LayerKind, count: int, heads: int, width: int, window: int | None = None) -> list[Layer]:
    """Return attention layers with keys and values of one width."""
    return [
        Layer(kind=kind, index=index, kv_heads=heads, k_width=width, v_width=width, window=window)
        for index in range(count)
    ]


def spec(*groups: list[Layer], heads: int = 1, hidden_layers: int | None = None) -> ModelSpec:
    """Return a model of these layers, numbered anew."""
    every = [layer for group in groups for layer in group]
    return ModelSpec(
        architecture="Synthetic",
        model_type=None,
        dtype="bfloat16",
        layers=tuple(every),
        hidden_layers=hidden_layers or max(layer.index for layer in every) + 1,
        attention_heads=heads,
        max_positions=None,
    )


def plan(model: ModelSpec, length: int, batched: int | None = None, **options: int) -> BlockPlan:
    """Return the plan at a full length."""
    return plan_blocks(model, VllmOptions(max_model_len=length, max_num_batched_tokens=batched, **options))  # type: ignore[arg-type]


def test_opt_13b_as_the_paged_attention_paper_counts_it() -> None:
    """800 KiB a token, 15.7K slots in 12 GiB, 7 requests of 2,048."""
    opt = read_hf_config(
        {
            "architectures": ["OPTForCausalLM"],
            "hidden_size": 5120,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "max_position_embeddings": 2048,
            "torch_dtype": "float16",
        }
    )
    cost = plan(opt, 2048)
    assert cost.bytes_per_token == 819_200
    assert 12 * GIB // 819_200 == 15_728
    assert 12 * GIB // (819_200 * 2048) == 7
    assert 12 * GIB // (819_200 // 8 * 2048) == 61


@pytest.mark.parametrize(
    "heads, length, ceiling, fit",
    [(32, 4096, 30, 29), (8, 4096, 120, 119), (32, 8192, 15, 14)],
)
def test_a_pool_of_60_gib(heads: int, length: int, ceiling: int, fit: int) -> None:
    """32 layers of 128-wide heads: the textbook's ceiling, and what is left beside the null block."""
    cost = plan(spec(layers(LayerKind.FULL, 32, heads, 128), heads=32), length)
    blocks = cost.num_blocks(60 * GIB)
    assert 60 * GIB // (int(cost.bytes_per_token) * length) == ceiling
    assert (blocks - 1) // cost.start_blocks == fit


def test_a_pool_in_bytes_that_a_log_prints() -> None:
    """36 layers x 8 heads x 128: 1,842,537,186 bytes hold 12,480 tokens, 1.52 requests of 8,192."""
    cost = plan(spec(layers(LayerKind.FULL, 36, 8, 128), heads=32), 8192)
    assert cost.bytes_per_token == 147_456
    assert cost.resident_blocks(8192) * cost.bytes_per_block == 1152 << 20
    blocks = cost.num_blocks(1_842_537_186)
    assert blocks * 16 == 12_480
    assert cost.kv_cache_size_tokens(blocks) == 12_480
    assert round(cost.max_concurrency(blocks) or 0, 2) == 1.52


def test_the_smallest_model() -> None:
    """2 layers x 1 head x 4: 32 bytes a token; lengths 3 and 5 are 256 bytes in two blocks."""
    cost = plan(spec(layers(LayerKind.FULL, 2, 1, 4)), 16)
    assert cost.bytes_per_token == 32
    assert (3 + 5) * cost.bytes_per_token == 256
    assert cost.resident_blocks(3) + cost.resident_blocks(5) == 2


def test_the_hybrid_measured_on_a_real_server() -> None:
    """10 windows of 128 beside 2 full layers: the engine printed 2.31x, ten requests ran, R is 89."""
    model = spec(layers(LayerKind.FULL, 2, 1, 32), layers(LayerKind.WINDOW, 10, 1, 32, window=128))
    cost = plan(model, 2048, 2048, block_size=32)
    assert (cost.start_blocks, cost.admission_blocks(2048), cost.resident_blocks(2048)) == (389, 384, 89)
    assert round(cost.max_concurrency(900) or 0, 2) == 2.31
    assert 899 // cost.resident_blocks(2048) == 10


TABLE = {
    "uniform": ([layers(LayerKind.FULL, 32, 8, 128)], 32768, {}, (10240, 163840, 5.0)),
    "uniform, a length that fills no block": (
        [layers(LayerKind.FULL, 32, 8, 128)],
        1000,
        {},
        (10240, 162539, 162.540),
    ),
    "10 full and 50 windows": (
        [layers(LayerKind.FULL, 10, 16, 128), layers(LayerKind.WINDOW, 50, 16, 128, 1024)],
        131072,
        {},
        (16384, 157474, 1.201),
    ),
    "12 full and 12 windows": (
        [layers(LayerKind.FULL, 12, 8, 64), layers(LayerKind.WINDOW, 12, 8, 64, 128)],
        131072,
        {},
        (54613, 775960, 5.920),
    ),
    "decode context parallel": (
        [layers(LayerKind.FULL, 32, 8, 128)],
        32768,
        {"decode_context_parallel": 2, "tensor_parallel": 2},
        (10240, 327680, 10.0),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_planner_on_synthetic_layers(name: str) -> None:
    """Blocks, tokens and concurrency of 20 GiB are those that vLLM 0.32.0's planner gave."""
    groups, length, options, (blocks, tokens, concurrency) = TABLE[name]
    ranks = options.get("tensor_parallel", 1)
    model = spec(*[[_scaled(layer, ranks) for layer in group] for group in groups], heads=ranks)
    cost = plan(model, length, 8192, **options)
    assert cost.num_blocks(20 * GIB) == blocks
    assert cost.kv_cache_size_tokens(blocks) == tokens
    assert round(cost.max_concurrency(blocks) or 0, 3) == concurrency


def _scaled(layer: Layer, ranks: int) -> Layer:
    """Return a layer that leaves each of so many ranks what the given one leaves a single rank."""
    return Layer(
        kind=layer.kind,
        index=layer.index,
        kv_heads=layer.kv_heads * ranks,
        k_width=layer.k_width,
        v_width=layer.v_width,
        window=layer.window,
    )


def test_latent_layers_with_an_indexer() -> None:
    """61 FP8 latent layers and their indexers: 6,980 blocks of 64 in 20 GiB."""
    latent = [Layer(kind=LayerKind.LATENT, index=index, kv_heads=1, k_width=576) for index in range(61)]
    keys = [
        Layer(kind=LayerKind.INDEXER, index=index, kv_heads=1, k_width=132, element_bytes=1)
        for index in range(61)
    ]
    cost = plan_blocks(spec(latent, keys, heads=128), VllmOptions(cache_dtype="fp8", max_model_len=163840))
    blocks = cost.num_blocks(20 * GIB)
    assert (blocks, cost.kv_cache_size_tokens(blocks)) == (6980, 446720)
    assert round(cost.max_concurrency(blocks) or 0, 3) == 2.727


GROWTH = """
bamba-9b=12288 bart-large-cnn=49152 bge-base-en=0 chatglm3-6b=28672 command-r7b=32768
deepseek-v2-lite=31104 deepseek-v3=70272 deepseek-v3.2=78324 embeddinggemma-300m=0
exaone-moe-default=131072 falcon-7b=8192 falcon-h1-7b=45056 gemma-2-9b=172032 gemma-3-27b-text=81920
gemma-3-4b-mm=20480 gemma-3-4b-text=20480 gemma-3n-e4b-text=8192 gemma-4-e4b-text=16384 glm-5=100152
gpt-oss-20b=24576 granite-4.0-h-small=16384 granite-swa-default=12288 jamba-v0.1=16384
kimi-linear-48b=8064 lfm2-1.2b=12288 llama-4-scout-text=49152 mamba-2.8b=0 mimo-v2-flash=23040
minicpm3-4b=952320 ministral-8b=0 mistral-7b-v0.1=0 nemotron-h-8b=16384 olmo-3-7b=131072
phi-3-mini-4k=0 qwen3-next-80b=24576 starcoder2-7b=0 whisper-large-v3=163840
"""
"""Bytes by which a request of each oracle model grows with a token, from the slope of the planner's rows."""


@pytest.mark.parametrize("growth", GROWTH.split())
def test_bytes_that_a_token_adds(growth: str) -> None:
    """Windows, states and cross attention stop growing; latent vectors and shared layers grow as stored."""
    model, _, right = growth.partition("=")
    assert plan_blocks(spec_of(model), VllmOptions()).bytes_per_token == int(right)
