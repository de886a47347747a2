"""What the cost model refuses, and how it says so."""

from __future__ import annotations

import pytest

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.vllm import MissingOptionError, OptionError, VllmOptions, plan_blocks
from kvwatch.readings import Reason
from tests.cost.agreement import load

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def test_an_unknown_architecture_is_refused_by_name() -> None:
    """The error names the architecture; no number is guessed from fields that look familiar."""
    with pytest.raises(ModelSpecError) as caught:
        read_hf_config({**LLAMA, "architectures": ["BrandNewForCausalLM"]})
    assert caught.value.reason is Reason.UNKNOWN_ARCHITECTURE
    assert caught.value.architecture == "BrandNewForCausalLM"
    assert "BrandNewForCausalLM" in str(caught.value)


@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "hidden_size", "num_attention_heads", "architectures"]
)
def test_a_missing_field_is_named(field: str) -> None:
    """A file without one of the dimensions is refused by the field's name."""
    with pytest.raises(ModelSpecError) as caught:
        read_hf_config({name: value for name, value in LLAMA.items() if name != field})
    assert (caught.value.reason, caught.value.field) == (Reason.MISSING_FIELD, field)


@pytest.mark.parametrize("config", [[LLAMA], "{}", None, 7])
def test_a_file_that_holds_no_object_is_refused(config: object) -> None:
    """A list, a string, null or a number is no config.json."""
    with pytest.raises(ModelSpecError) as caught:
        read_hf_config(config)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.MISSING_FIELD


@pytest.mark.parametrize(
    "field, value",
    [
        ("num_hidden_layers", "32"),
        ("num_hidden_layers", 32.5),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", True),
        ("num_key_value_heads", [8]),
        ("architectures", []),
        ("architectures", [None]),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(field: str, value: object) -> None:
    """A field that is no whole positive number is refused, not rounded or read as its default."""
    with pytest.raises(ModelSpecError) as caught:
        read_hf_config({**LLAMA, field: value})
    assert caught.value.field == field


def test_a_list_shorter_than_the_layers_is_refused() -> None:
    """`layer_types` must have an entry for each layer."""
    config = {**LLAMA, "sliding_window": 512, "layer_types": ["full_attention"] * 31}
    with pytest.raises(ModelSpecError, match="layer_types"):
        read_hf_config(config)


@pytest.mark.parametrize(
    "model, ranks", [("phi-4", 4), ("phi-4", 8), ("qwen2.5-0.5b", 4), ("llama-3.1-8b", 3), ("gpt2", 8)]
)
def test_tensor_parallel_sizes_that_the_engine_refuses(model: str, ranks: int) -> None:
    """Heads must be divided by the ranks, or the ranks by the heads."""
    with pytest.raises(OptionError, match="tensor_parallel"):
        plan_blocks(read_hf_config(load("configs")[model]), VllmOptions(tensor_parallel=ranks))


def test_windows_need_the_batch_size() -> None:
    """Without max_num_batched_tokens a window's charge is unknown; blocks and resident cost are not."""
    cost = plan_blocks(read_hf_config(load("configs")["gpt-oss-20b"]), VllmOptions(max_model_len=131072))
    assert cost.bytes_per_block > 0
    assert cost.resident_blocks(131072) == 8192 + 9
    for ask in (
        lambda: cost.start_blocks,
        lambda: cost.admission_blocks(10),
        lambda: cost.max_concurrency(100),
    ):
        with pytest.raises(MissingOptionError) as caught:
            ask()
        assert caught.value.option == "max_num_batched_tokens"


def test_an_unknown_cache_dtype_is_refused() -> None:
    """A cache dtype that no rule covers gives no number."""
    spec = read_hf_config(LLAMA)
    for dtype in ("q4_0", "fp8_ds_mla", ""):
        with pytest.raises(OptionError, match="cache_dtype"):
            plan_blocks(spec, VllmOptions(cache_dtype=dtype))


def test_context_ranks_that_the_engine_refuses() -> None:
    """Context ranks divide the tensor ranks, and windows cannot be divided."""
    with pytest.raises(OptionError, match="decode_context_parallel"):
        plan_blocks(read_hf_config(LLAMA), VllmOptions(tensor_parallel=2, decode_context_parallel=4))
    with pytest.raises(OptionError, match="decode_context_parallel"):
        plan_blocks(
            read_hf_config(load("configs")["gpt-oss-20b"]),
            VllmOptions(tensor_parallel=2, decode_context_parallel=2),
        )


def test_blackwell_latent_blocks_are_not_guessed() -> None:
    """On a device whose default backend depends on what is installed, the block size must be given."""
    spec = read_hf_config(load("configs")["deepseek-v3"])
    with pytest.raises(MissingOptionError, match="block_size"):
        plan_blocks(spec, VllmOptions(compute_capability=(10, 0)))
    assert (
        plan_blocks(spec, VllmOptions(compute_capability=(10, 0), block_size=128)).groups[0].block_size == 128
    )
