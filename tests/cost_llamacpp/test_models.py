"""Reading a model from its header: what is refused, by which names, and what no file says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvwatch.cost.gguf import GgufTensor
from kvwatch.cost.llamacpp import LlamaModel
from kvwatch.cost.llamacpp_architectures import ARCHITECTURES
from kvwatch.cost.llamacpp_rules import Architecture
from kvwatch.cost.spec import ModelSpecError
from kvwatch.readings import Reason
from tests.cost_llamacpp.files import PLAIN, header_of, model_of

LATENT = {"attention__key_length_mla": 64, "attention__value_length_mla": 64}


class TestRefusals:
    """Models without a number."""

    def test_an_unknown_architecture_is_named(self) -> None:
        """Nothing is guessed for an architecture that the table does not know."""
        with pytest.raises(ModelSpecError, match="unknown_architecture: architecture nebula") as caught:
            model_of("nebula")
        assert (caught.value.reason, caught.value.architecture) == (Reason.UNKNOWN_ARCHITECTURE, "nebula")

    @pytest.mark.parametrize("architecture", ["clip", "gptj"])
    def test_names_that_the_engine_does_not_load_are_unknown(self, architecture: str) -> None:
        """A name in the engine's list without a loader is refused like any other."""
        with pytest.raises(ModelSpecError, match="unknown_architecture"):
            model_of(architecture)

    def test_a_header_without_architecture(self) -> None:
        """A GGUF of anything else is refused."""
        header = header_of("llama", PLAIN)
        bare = replace(header, metadata={**header.metadata, "general.architecture": 7})
        with pytest.raises(ModelSpecError, match=r"missing_field: field general\.architecture"):
            LlamaModel.from_header(bare)

    def test_a_later_shard_is_not_the_model(self) -> None:
        """The keys are in the first shard: a later one says which it is."""
        header = header_of("llama", {**PLAIN, "split.count": 3, "split.no": 1})
        with pytest.raises(ModelSpecError, match="shard 2 of 3"):
            LlamaModel.from_header(header)

    @pytest.mark.parametrize(
        "architecture, key, value, words",
        [
            ("llama", "context_length", None, "required"),
            ("llama", "embedding_length", None, "required"),
            ("llama", "block_count", None, "required"),
            ("llama", "block_count", 0, "not within 1 to 512"),
            ("llama", "block_count", 513, "not within 1 to 512"),
            ("llama", "block_count", -1, "no unsigned 32-bit number"),
            ("llama", "block_count", True, "no unsigned 32-bit number"),
            ("llama", "attention__key_length", 64.0, "no unsigned 32-bit number"),
            ("llama", "attention__key_length", [64, 64], "no unsigned 32-bit number"),
            ("llama", "attention__head_count_kv", [2, 2], "2 values for 8 layers"),
            ("llama", "attention__head_count_kv", "2", "no unsigned 32-bit number"),
            ("llama", "nextn_predict_layers", 9, "9 of 8 layers"),
            ("gpt-oss", "attention__sliding_window", None, "required"),
            ("gemma4", "attention__sliding_window_pattern", None, "required"),
            ("gemma3", "attention__sliding_window_pattern", [0.5] * 8, "flags"),
            ("gemma4", "attention__shared_kv_layers", 8, "8 of 8 layers"),
            ("mamba2", "ssm__group_count", None, "required"),
            ("jamba", "ssm__conv_kernel", None, "required"),
            ("rwkv7", "wkv__head_size", None, "required"),
            ("lfm2", "shortconv__l_cache", None, "required"),
            ("lfm2", "shortconv__l_cache", 0, "0 taps"),
            ("kimi-linear", "kda__head_dim", None, "required"),
            ("kimi-linear", "attention__key_length_mla", None, "required"),
            ("deepseek2", "attention__value_length_mla", None, "one of the two"),
            ("deepseek32", "attention__indexer__key_length", None, "required"),
            ("dots3note", "attention__indexer__types", None, "required"),
            ("deepseek4", "attention__compress_ratios", [0, 4], "8 ratios"),
            ("qwen35", "full_attention_interval", 0, "no interval"),
            ("nanbeige", "num_loops", 65, "65 times 8 layers"),
        ],
    )
    def test_a_missing_or_impossible_field_is_named(
        self, architecture: str, key: str, value: Any, words: str
    ) -> None:
        """The error names the architecture and the key as the file spells it."""
        keys: dict[str, Any] = {
            "attention__sliding_window": 512,
            "attention__sliding_window_pattern": [1, 1, 1, 0] * 2,
            "attention__key_length_swa": 32,
            "attention__value_length_swa": 32,
            **({} if architecture in {"llama", "gemma3", "gpt-oss"} else LATENT),
            "attention__indexer__key_length": 64,
            "attention__indexer__types": [1] * 8,
            "attention__compress_ratios": [0] * 8,
            "ssm__conv_kernel": 4,
            "ssm__inner_size": 64,
            "ssm__state_size": 16,
            "ssm__group_count": 1,
            "kda__head_dim": 32,
            "shortconv__l_cache": 3,
            "wkv__head_size": 64,
            key: value,
        }
        with pytest.raises(ModelSpecError, match=words) as caught:
            model_of(architecture, **keys)
        assert caught.value.field == f"{architecture}.{key.replace('__', '.')}"
        assert caught.value.architecture == architecture

    def test_a_key_that_was_left_out_is_not_missing(self) -> None:
        """Head counts in an array of strings, or in one too long to keep, are refused and not defaulted."""
        header = header_of("llama", PLAIN, skipped={"llama.attention.head_count_kv": 5_000})
        with pytest.raises(ModelSpecError, match="array of one number a layer is expected"):
            LlamaModel.from_header(header)

    def test_no_layer_in_the_window(self) -> None:
        """The engine stops at a pattern without window layers, and so do we."""
        with pytest.raises(ModelSpecError, match="not_supported") as caught:
            model_of("gemma3", attention__sliding_window=512, attention__sliding_window_pattern=[0] * 8)
        assert caught.value.field == "gemma3.attention.sliding_window_pattern"


WINDOWS = [
    ("gemma2", {}, [0, 2, 4, 6], 4096),
    ("gemma3", {"attention__sliding_window": 512}, [0, 1, 2, 3, 4, 6, 7], 512),
    ("cohere2", {"attention__sliding_window": 512}, [0, 1, 2, 4, 5, 6], 512),
    ("cohere2moe", {"attention__sliding_window": 512}, [1, 2, 3, 5, 6, 7], 512),
    ("gpt-oss", {"attention__sliding_window": 128}, [0, 2, 4, 6], 128),
    ("llama4", {}, [0, 1, 2, 4, 5, 6], 8192),
    ("smallthinker", {"attention__sliding_window": 99}, [1, 2, 3, 5, 6, 7], 4096),
    ("plamo3", {"attention__sliding_window": 99}, [0, 1, 2, 3, 4, 5, 6], 99),
    (
        "mimo2",
        {"attention__sliding_window": 9, "attention__sliding_window_pattern": [1, 0] * 4},
        [0, 2, 4, 6],
        9,
    ),
    ("lfm2", {"attention__sliding_window": 9, "shortconv__l_cache": 3}, [0, 1, 2, 3, 4, 5, 6, 7], 9),
]
NO_WINDOW = [
    ("gemma3", {"attention__sliding_window": None}),
    ("gemma3", {"attention__sliding_window": 0}),
    ("llama4", {"attention__sliding_window": 0}),
    ("exaone4", {"attention__sliding_window": 4096}),
    ("phi3", {"attention__sliding_window": 2047}),
    ("llama", {"attention__sliding_window": 4096}),
    ("olmo2", {}),
]


class TestBuiltInRules:
    """Rules that the engine's code holds and no file."""

    @pytest.mark.parametrize("architecture, keys, layers, window", WINDOWS)
    def test_windows(self, architecture: str, keys: dict[str, Any], layers: list[int], window: int) -> None:
        """Periods, forced and default sizes."""
        model = model_of(architecture, **keys)
        (cache,) = [one for one in model.main.caches if one.name == "window"]
        assert ([layer.index for layer in cache.layers], model.window) == (layers, window)

    @pytest.mark.parametrize("architecture, keys", NO_WINDOW)
    def test_no_window(self, architecture: str, keys: dict[str, Any]) -> None:
        """A window that is absent, switched off, or ignored."""
        model = model_of(architecture, **keys)
        assert ([cache.name for cache in model.main.caches], model.window) == (["full"], None)

    def test_gemma3n_caches_its_first_twenty_layers(self) -> None:
        """Layers from the twentieth on read the cache of earlier ones."""
        model = model_of("gemma3n", block_count=30, attention__sliding_window=512)
        assert sum(len(cache.layers) for cache in model.main.caches) == 20

    def test_shared_layers_own_nothing(self) -> None:
        """The last `shared_kv_layers` layers of gemma4 are not cached."""
        keys = {
            "attention__sliding_window": 512,
            "attention__sliding_window_pattern": [1, 1, 1, 0] * 2,
            "attention__key_length_swa": 32,
            "attention__value_length_swa": 32,
            "attention__shared_kv_layers": 3,
        }
        cached = [layer.index for cache in model_of("gemma4", **keys).main.caches for layer in cache.layers]
        assert sorted(cached) == [0, 1, 2, 3, 4]

    def test_a_router_adds_a_layer_with_one_head(self) -> None:
        """granite-switch keeps one KV head behind its layers, in the main context."""
        (cache,) = model_of("graniteswitch").main.caches
        assert [layer.key_width for layer in cache.layers] == [128] * 8 + [64]

    def test_looped_layers_have_caches_of_their_own(self) -> None:
        """Nanbeige runs its layers several times, with a cache each time."""
        model = model_of("nanbeige", num_loops=3, attention__head_count_kv=[1, 2] * 4)
        (cache,) = model.main.caches
        assert [layer.key_width for layer in cache.layers] == [64, 128] * 12

    def test_the_interval_of_gated_delta_layers(self) -> None:
        """Every fourth layer attends unless the file has another interval or flags."""
        ssm = {"ssm__conv_kernel": 4, "ssm__inner_size": 64, "ssm__state_size": 16, "ssm__group_count": 1}
        for keys, attending in (
            ({}, [3, 7]),
            ({"full_attention_interval": 2}, [1, 3, 5, 7]),
            ({"attention__recurrent_layers": [0, 1, 1, 1] * 2}, [0, 4]),
        ):
            (cache,) = model_of("qwen3next", **ssm, **keys).main.caches
            assert [layer.index for layer in cache.layers] == attending

    def test_long_context_indexers_are_built_in(self) -> None:
        """Without flags, a training context of a million tokens has one indexer in four layers."""
        keys = {**LATENT, "attention__indexer__key_length": 64, "block_count": 78}
        full = model_of("glm-dsa", **keys).main.caches[1]
        sparse = model_of("glm-dsa", **keys, context_length=1_048_576).main.caches[1]
        assert (len(full.layers), len(sparse.layers)) == (78, 21)
        assert [layer.index for layer in sparse.layers[:5]] == [0, 1, 2, 6, 10]

    def test_a_draft_head_counts_where_its_projection_is(self) -> None:
        """deepseek4's draft layers exist only with their tensors, which another shard may hold."""
        keys = {
            **PLAIN,
            "nextn_predict_layers": 1,
            "attention.sliding_window": 128,
            "attention.indexer.key_length": 32,
            "attention.compress_ratios": [0, 4, 128, 4, 128, 4, 0, 0],
        }
        tensor = GgufTensor(shape=(4,), type_name="f32", size_bytes=16)
        there = {"blk.7.nextn.eh_proj.weight": tensor}
        assert LlamaModel.from_header(header_of("deepseek4", keys)).draft_head is None
        assert LlamaModel.from_header(header_of("deepseek4", keys, tensors=there)).draft_head is not None
        sharded = {**keys, "split.count": 2}
        assert LlamaModel.from_header(header_of("deepseek4", sharded)).draft_head is not None
        unsure = {**sharded, "attention.compress_ratios": [0] * 7 + [4]}
        with pytest.raises(ModelSpecError, match="another shard"):
            LlamaModel.from_header(header_of("deepseek4", unsure))

    def test_the_table_names_every_architecture_of_the_engine(self) -> None:
        """The table has as many rows as llama.cpp b11434 has loaders."""
        assert len(ARCHITECTURES) == 152


def test_the_document_names_every_rule() -> None:
    """An architecture with a rule of its own has a row in docs/cost-model-llamacpp.md."""
    document = (Path(__file__).parents[2] / "docs" / "cost-model-llamacpp.md").read_text()
    ruled = {name for name, rules in ARCHITECTURES.items() if rules != Architecture()}
    assert {name for name in ruled if f"`{name}`" not in document} == set()
