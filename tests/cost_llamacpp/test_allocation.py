"""What llama-server allocates: published logs, the engine's documented sums, and each rule by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kvwatch.cost.llamacpp import (
    DraftKind,
    FitChange,
    LlamaDraft,
    LlamaOptions,
    LlamaOptionsError,
    LlamaPool,
    allocate,
)
from kvwatch.cost.spec import LayerKind
from tests.cost_llamacpp.files import model_of

MIB = 1 << 20


def pool_of(architecture: str, options: dict[str, Any], /, **keys: Any) -> LlamaPool:
    """Allocate for a small model with these keys."""
    return allocate(model_of(architecture, **keys), LlamaOptions(**options))


def mib(size: int) -> str:
    """Print MiB with two digits."""
    return f"{size / MIB:.2f}"


class TestPublicLogs:
    """Numbers that users published, to the printed digit."""

    def test_qwen_32b_q8_0_on_two_gpus(self) -> None:
        """K and V take 2,176 MiB each, and 41 of 64 layers are the first GPU's 2,788 MiB."""
        pool = pool_of(
            "qwen2",
            {"ctx_size": 32768, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
            block_count=64,
            context_length=32768,
            attention__head_count_kv=8,
            attention__key_length=128,
            attention__value_length=128,
        )
        (cache,) = pool.caches
        assert (mib(cache.k_bytes), mib(cache.v_bytes)) == ("2176.00", "2176.00")
        assert pool.bytes_per_token == 139_264
        assert mib(sum(pool.layer_bytes[:41])) == "2788.00"
        assert mib(sum(pool.layer_bytes[41:])) == "1564.00"

    def test_llama_30b_f32(self) -> None:
        """512 cells of 32-bit floats take 1,560 MiB; half of that in f16."""
        keys: dict[str, Any] = {
            "block_count": 60,
            "embedding_length": 6656,
            "attention__head_count": 52,
            "attention__head_count_kv": None,
            "attention__key_length": None,
            "attention__value_length": None,
        }
        wide: dict[str, Any] = {
            "ctx_size": 512,
            "parallel": 1,
            "cache_type_k": "f32",
            "cache_type_v": "f32",
        }
        assert pool_of("llama", wide, **keys).total_bytes == 1560 * MIB
        assert pool_of("llama", {"ctx_size": 512, "parallel": 1}, **keys).total_bytes == 780 * MIB

    def test_falcon_40b_f32(self) -> None:
        """8 KV heads of 64: 480 MB for 2,048 tokens."""
        pool = pool_of(
            "falcon",
            {"ctx_size": 2048, "parallel": 1, "cache_type_k": "f32", "cache_type_v": "f32"},
            block_count=60,
            embedding_length=8192,
            attention__head_count=128,
            attention__head_count_kv=8,
            attention__key_length=None,
            attention__value_length=None,
        )
        assert (pool.total_bytes, pool.bytes_per_token) == (480 * MIB, 245_760)

    def test_phi_3_mini(self) -> None:
        """384 kB a token in f16, 108 kB at 4.5 bits: the window that its file names is ignored."""
        keys: dict[str, Any] = {
            "block_count": 32,
            "attention__head_count": 32,
            "attention__head_count_kv": 32,
            "attention__key_length": 96,
            "attention__value_length": 96,
            "attention__sliding_window": 2047,
        }
        assert pool_of("phi3", {"ctx_size": 4096}, **keys).bytes_per_token == 384 * 1024
        small = {"ctx_size": 4096, "cache_type_k": "q4_0", "cache_type_v": "q4_0"}
        assert pool_of("phi3", small, **keys).bytes_per_token == 108 * 1024

    def test_deepseek_r1_latent_q8_0(self) -> None:
        """61 layers of 576: 37,332 bytes a token, 1,166.625 MiB for 32,768, and no values."""
        pool = pool_of(
            "deepseek2",
            {"ctx_size": 32768, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
            block_count=61,
            context_length=163840,
            attention__head_count=128,
            attention__head_count_kv=1,
            attention__key_length=576,
            attention__value_length=512,
            attention__key_length_mla=192,
            attention__value_length_mla=128,
        )
        (cache,) = pool.caches
        assert (cache.kind, cache.k_bytes / MIB, cache.v_bytes) == (LayerKind.LATENT, 1166.625, 0)
        assert pool.bytes_per_token == 37_332

    def test_deepseek_r1_without_latent_keys(self) -> None:
        """A file of before the latent cache takes 4,997,120 bytes a token."""
        pool = pool_of(
            "deepseek2",
            {"ctx_size": 4096, "parallel": 1},
            block_count=61,
            attention__head_count=128,
            attention__head_count_kv=128,
            attention__key_length=192,
            attention__value_length=128,
        )
        assert pool.bytes_per_token == 4_997_120

    def test_falcon_h1_1_5b(self) -> None:
        """Attention and a state in each of 24 layers: 768 MiB, and 72.98 MiB whatever the context."""
        keys: dict[str, Any] = {
            "block_count": 24,
            "context_length": 131072,
            "attention__head_count_kv": 2,
            "attention__key_length": 128,
            "attention__value_length": 128,
            "ssm__conv_kernel": 4,
            "ssm__inner_size": 3072,
            "ssm__state_size": 256,
            "ssm__group_count": 1,
        }
        pool = pool_of("falcon-h1", {"ctx_size": 32768, "parallel": 1}, **keys)
        (cache,) = pool.caches
        states = {state.name: mib(state.size_bytes) for state in pool.states}
        assert (mib(cache.k_bytes), mib(cache.v_bytes), states["state"]) == ("384.00", "384.00", "72.00")
        assert mib(pool.recurrent_bytes) == "72.98"
        assert pool.bytes_per_token == 24_576

    def test_qwen_27b_gated_delta(self) -> None:
        """48 of 64 layers hold 11.25 and 288 MiB for two sequences; 16 take 65,536 bytes a token."""
        keys: dict[str, Any] = {
            "block_count": 64,
            "context_length": 262144,
            "full_attention_interval": 4,
            "attention__head_count": 24,
            "attention__head_count_kv": 4,
            "attention__key_length": 256,
            "attention__value_length": 256,
            "ssm__conv_kernel": 4,
            "ssm__inner_size": 6144,
            "ssm__state_size": 128,
            "ssm__group_count": 16,
        }
        two = pool_of("qwen35", {"ctx_size": 24576, "parallel": 2, "kv_unified": True}, **keys)
        assert [mib(state.size_bytes) for state in two.states] == ["11.25", "288.00"]
        assert (two.bytes_per_token, two.caches[0].layers) == (65_536, 16)
        assert two.caches[0].k_bytes + two.caches[0].v_bytes == 1536 * MIB
        one = pool_of("qwen35", {"ctx_size": 24576, "parallel": 1}, **keys)
        assert f"{one.recurrent_bytes / MIB:.2f}" == "149.62"

    def test_two_captured_starts(self) -> None:
        """8 layers of 2 KV heads x 64: 8.50 MiB for 4,096 q8_0 cells, 32 MiB for four streams of f16."""
        small = {"ctx_size": 4096, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
        assert mib(pool_of("llama", small).total_bytes) == "8.50"
        assert mib(pool_of("llama", {"ctx_size": 8192, "parallel": 4}).total_bytes) == "32.00"


LAYERS_4 = {"block_count": 4}


class TestCellsAndTypes:
    """Cells of plain caches and bytes by type."""

    @pytest.mark.parametrize(
        "name, expected",
        [
            ("f32", "8.00"),
            ("f16", "4.00"),
            ("bf16", "4.00"),
            ("q8_0", "2.12"),
            ("q5_1", "1.50"),
            ("q5_0", "1.38"),
            ("q4_1", "1.25"),
            ("q4_0", "1.12"),
            ("iq4_nl", "1.12"),
        ],
    )
    def test_types_take_what_the_engine_prints(self, name: str, expected: str) -> None:
        """4,096 cells of 4 layers 128 wide, as printed for each cache type."""
        options = {"ctx_size": 4096, "cache_type_k": name, "cache_type_v": name}
        (cache,) = pool_of("llama", options, **LAYERS_4).caches
        assert (mib(cache.k_bytes), mib(cache.v_bytes)) == (expected, expected)

    @pytest.mark.parametrize(
        "options, n_ctx, n_ctx_seq, streams, limit",
        [
            ({"ctx_size": 4096}, 4096, 4096, 1, 4096),
            ({"ctx_size": 4097}, 4352, 4352, 1, 4352),
            ({"ctx_size": 4096, "parallel": 3}, 4608, 1536, 3, 1536),
            ({"ctx_size": 4096, "parallel": 3, "kv_unified": True}, 4096, 4096, 1, 4096),
            ({"ctx_size": 100_000, "parallel": 2, "kv_unified": True}, 100_096, 100_096, 1, 8192),
            ({"kv_unified_per_slot": 1000}, 4096, 4096, 1, 1000),
            ({"ctx_size": 4096, "parallel": 2, "kv_unified_per_slot": 512}, 4096, 2048, 2, 512),
            ({"parallel": 2}, 16384, 8192, 2, 8192),
            ({"parallel": 2, "fit": False}, 8192, 4096, 2, 4096),
            ({"ctx_size": 0, "parallel": 2}, 16384, 8192, 2, 8192),
            ({"parallel": -1}, 8192, 8192, 1, 8192),
            ({"ctx_size": 100}, 256, 256, 1, 256),
            ({"ctx_size": 16384, "parallel": 1, "context_train": 32768}, 16384, 16384, 1, 16384),
        ],
    )
    def test_contexts_are_rounded(
        self, options: dict[str, Any], n_ctx: int, n_ctx_seq: int, streams: int, limit: int
    ) -> None:
        """Pools and streams are padded to 256 cells; a slot's limit is capped by training and option."""
        pool = pool_of("llama", options)
        assert (pool.n_ctx, pool.n_ctx_seq, pool.streams) == (n_ctx, n_ctx_seq, streams)
        assert (pool.slot_limit_tokens, pool.pool_tokens) == (limit, n_ctx)

    def test_automatic_slots_share_one_pool(self) -> None:
        """Without `-np` there are four slots and one pool, whatever `-no-kvu` says."""
        pool = pool_of("llama", {"ctx_size": 4096, "kv_unified": False})
        assert (pool.slots, pool.unified, pool.streams) == (4, True, 1)

    def test_values_are_widened_without_flash_attention(self) -> None:
        """Transposed values take the widest layer's width, rows of keys do not."""
        keys = {"attention__head_count_kv": [1, 2, 4, 1], "block_count": 4}
        on = pool_of("llama", {"ctx_size": 4096}, **keys).caches[0]
        off = pool_of("llama", {"ctx_size": 4096, "flash_attention": False}, **keys).caches[0]
        assert on.k_bytes == off.k_bytes == on.v_bytes
        assert off.v_bytes * 8 == on.v_bytes * 16

    @pytest.mark.parametrize(
        "options, words",
        [
            ({"parallel": 0}, "0 slots"),
            ({"parallel": 257}, "257 slots"),
            ({"cache_type_k": "q6_0"}, "known are"),
            ({"cache_type_v": "q8_0", "flash_attention": False}, "needs flash attention"),
            ({"split_mode": "tensor", "flash_attention": False}, "needs flash attention"),
            ({"batch_size": 0, "ubatch_size": 0}, "batch is empty"),
        ],
    )
    def test_options_that_the_server_refuses(self, options: dict[str, Any], words: str) -> None:
        """What llama-server does not start with has no allocation."""
        with pytest.raises(LlamaOptionsError, match=words):
            pool_of("llama", {"ctx_size": 4096, **options})

    def test_blocks_must_divide_the_head(self) -> None:
        """A head of 80 has no q8_0 cache while flash attention may be used."""
        keys = {"attention__key_length": 80, "attention__value_length": 80}
        with pytest.raises(LlamaOptionsError, match="do not divide a head of 80"):
            pool_of("llama", {"ctx_size": 4096, "cache_type_k": "q8_0"}, **keys)
        off = {"ctx_size": 4096, "cache_type_k": "q8_0", "flash_attention": False}
        assert pool_of("llama", off, **keys).total_bytes == 4096 * 8 * (160 // 32 * 34 + 160 * 2)
        with pytest.raises(LlamaOptionsError, match="do not fill a row of 80"):
            pool_of("llama", off, **keys, attention__head_count_kv=1)

    def test_latent_models_have_one_type(self) -> None:
        """K and V types must agree where only a latent is stored."""
        latent = {"attention__key_length_mla": 64, "attention__value_length_mla": 64}
        with pytest.raises(LlamaOptionsError, match="one type"):
            pool_of("deepseek2", {"ctx_size": 4096, "cache_type_k": "q8_0"}, **latent)


GEMMA3 = {"block_count": 6, "attention__sliding_window": 512}


class TestWindows:
    """Window caches."""

    @pytest.mark.parametrize(
        "options, cells, streams",
        [
            ({"ctx_size": 8192}, 2560, 1),
            ({"ctx_size": 8192, "parallel": 4}, 1024, 4),
            ({"ctx_size": 8192, "parallel": 4, "swa_full": True}, 2048, 4),
            ({"ctx_size": 8192, "ubatch_size": 2048}, 4096, 1),
            ({"ctx_size": 8192, "batch_size": 64}, 2304, 1),
            ({"ctx_size": 512, "parallel": 1}, 512, 1),
        ],
    )
    def test_cells_follow_window_slots_and_micro_batch(
        self, options: dict[str, Any], cells: int, streams: int
    ) -> None:
        """512 tokens a slot of a stream and one micro-batch, padded, at most the context."""
        full, window = pool_of("gemma3", options, **GEMMA3).caches
        assert (window.cells, window.streams, window.layers, full.layers) == (cells, streams, 5, 1)

    def test_windows_cost_nothing_for_one_more_token(self) -> None:
        """Only full layers grow, until `--swa-full` or a short context makes all of them grow."""
        row = 2 * 64 * 2 * 2
        assert pool_of("gemma3", {"ctx_size": 8192}, **GEMMA3).bytes_per_token == row
        full = {"ctx_size": 8192, "swa_full": True}
        assert pool_of("gemma3", full, **GEMMA3).bytes_per_token == 6 * row
        assert pool_of("gemma3", {"ctx_size": 512}, **GEMMA3).bytes_per_token == 6 * row

    def test_chunked_windows_are_named(self) -> None:
        """Chunked attention keeps the built-in 8,192 tokens whatever the file says."""
        pool = pool_of("llama4", {"ctx_size": 65536, "parallel": 1}, attention__sliding_window=100)
        window = pool.caches[1]
        assert (window.kind, window.cells, window.layers) == (LayerKind.CHUNKED, 8192 + 512, 6)


class TestPlaces:
    """Where caches lie."""

    def test_layers_behind_the_offloaded_ones_are_in_host_memory(self) -> None:
        """The last layers go to the device first, the output counts as one of them."""
        pool = pool_of("llama", {"ctx_size": 4096, "n_gpu_layers": 3})
        assert pool.host_bytes == pool.total_bytes * 6 // 8

    @pytest.mark.parametrize(
        "options, share",
        [
            ({"n_gpu_layers": 0}, 1),
            ({"n_gpu_layers": 9}, 0),
            ({"n_gpu_layers": 99}, 0),
            ({"n_gpu_layers": -2}, 0),
            ({"n_gpu_layers": 99, "kv_offload": False}, 1),
            ({"gpu": False}, 1),
            ({"fit": False}, 0),
        ],
    )
    def test_all_or_nothing(self, options: dict[str, Any], share: int) -> None:
        """No layers, all layers, `--no-kv-offload`, and a CPU build."""
        pool = pool_of("llama", {"ctx_size": 4096, **options})
        assert pool.host_bytes == pool.total_bytes * share

    def test_states_follow_their_layers(self) -> None:
        """Recurrent states lie beside their layers too."""
        ssm = {"ssm__conv_kernel": 4, "ssm__inner_size": 1024, "ssm__state_size": 16}
        heads = [0, 0, 0, 2] * 2
        options = {"ctx_size": 4096, "n_gpu_layers": 5}
        pool = pool_of("jamba", options, attention__head_count_kv=heads, **ssm)
        assert pool.host_bytes == pool.total_bytes // 2

    def test_fit_makes_places_and_context_uncertain(self) -> None:
        """`--fit` may lower what was not given: the result says so, and claims no place."""
        pool = pool_of("llama", {})
        assert pool.fit_changes == {FitChange.CONTEXT, FitChange.LAYERS}
        assert pool.host_bytes is None
        given = pool_of("llama", {"ctx_size": 4096, "n_gpu_layers": 99})
        assert given.fit_changes == frozenset()
        assert pool_of("llama", {"ctx_size": 0}).fit_changes == {FitChange.LAYERS}
        assert pool_of("llama", {"kv_unified_per_slot": 512}).fit_changes == {FitChange.LAYERS}
        assert pool_of("llama", {"gpu": False}).fit_changes == {FitChange.CONTEXT}
        assert pool_of("llama", {"split_mode": "tensor"}).fit_changes == frozenset()


class TestStates:
    """Recurrent states."""

    def test_a_state_space_model_has_no_cache(self) -> None:
        """Mamba keeps no tokens: a token costs nothing, each slot one state."""
        keys: dict[str, Any] = {
            "attention__head_count": None,
            "attention__head_count_kv": None,
            "ssm__conv_kernel": 4,
            "ssm__inner_size": 1024,
            "ssm__state_size": 16,
        }
        pool = pool_of("mamba", {"ctx_size": 4096, "parallel": 3}, **keys)
        assert (pool.caches, pool.bytes_per_token) == ((), 0)
        assert pool.recurrent_bytes == pool.total_bytes == 3 * 8 * 4 * (3 * 1024 + 16 * 1024)

    def test_states_ignore_cache_types_and_context(self) -> None:
        """States are 32-bit floats whatever is asked for."""
        ssm = {"ssm__conv_kernel": 4, "ssm__inner_size": 1024, "ssm__state_size": 16, "ssm__group_count": 2}
        heads = {"attention__head_count_kv": [0, 2] * 4}
        one = pool_of("granitehybrid", {"ctx_size": 4096}, **ssm, **heads)
        options = {"ctx_size": 65536, "cache_type_k": "q4_0", "cache_type_v": "q4_0"}
        other = pool_of("granitehybrid", options, **ssm, **heads)
        assert one.recurrent_bytes == other.recurrent_bytes > 0

    def test_draft_heads_keep_snapshots(self) -> None:
        """Speculative decoding multiplies the states where the architecture can roll back."""
        keys: dict[str, Any] = {
            "nextn_predict_layers": 1,
            "ssm__conv_kernel": 4,
            "ssm__inner_size": 1024,
            "ssm__state_size": 16,
            "ssm__group_count": 2,
        }
        plain = pool_of("qwen35", {"ctx_size": 4096}, **keys)
        draft = {"draft": LlamaDraft(kind=DraftKind.HEAD, max_tokens=3)}
        drafting = pool_of("qwen35", {"ctx_size": 4096, **draft}, **keys)
        assert drafting.recurrent_bytes == 4 * plain.recurrent_bytes
        assert pool_of("qwen3next", {"ctx_size": 4096, **draft}, **keys).recurrent_bytes == (
            pool_of("qwen3next", {"ctx_size": 4096}, **keys).recurrent_bytes
        )

    def test_delta_layers_without_a_kernel_keep_three_taps(self) -> None:
        """A convolution kernel of 0 counts as 4 in the state of Kimi's delta layers."""
        keys: dict[str, Any] = {
            "attention__key_length_mla": 64,
            "attention__value_length_mla": 64,
            "attention__head_count_kv": [0, 1] * 4,
            "kda__head_dim": 32,
        }
        none = pool_of("kimi-linear", {"ctx_size": 4096}, ssm__conv_kernel=0, **keys)
        four = pool_of("kimi-linear", {"ctx_size": 4096}, ssm__conv_kernel=4, **keys)
        assert none.states == four.states

    def test_an_encoder_allocates_nothing(self) -> None:
        """BERT has no memory at all: nothing is uncertain about it either."""
        pool = pool_of("bert", {})
        assert (pool.total_bytes, pool.pool_tokens, pool.host_bytes) == (0, 0, 0)
        assert (pool.caches, pool.fit_changes) == ((), frozenset())


class TestDrafts:
    """Draft contexts."""

    def test_a_draft_model_adds_its_cache(self) -> None:
        """A draft model keeps as many cells as its target, in types of its own."""
        draft = LlamaDraft(model=model_of("llama", block_count=2), cache_type_k="q8_0", cache_type_v="q8_0")
        pool = pool_of("llama", {"ctx_size": 4000, "parallel": 3, "n_gpu_layers": 99, "draft": draft})
        alone = pool_of("llama", {"ctx_size": 4000, "parallel": 3})
        assert pool.draft is not None
        assert (pool.draft.n_ctx, pool.draft.caches[0].cells) == (alone.n_ctx, alone.n_ctx_seq)
        assert pool.total_bytes == alone.total_bytes + pool.draft.total_bytes
        assert pool.bytes_per_token == alone.bytes_per_token + 2 * 2 * 128 // 32 * 34
        assert pool.host_bytes == 0

    def test_a_draft_head_has_only_its_layers(self) -> None:
        """The layers behind the trunk are cached in the draft context and nowhere else."""
        keys = {"nextn_predict_layers": 2}
        plain = pool_of("glm4moe", {"ctx_size": 4096}, **keys)
        assert plain.caches[0].layers == 6
        options = {"ctx_size": 4096, "draft": LlamaDraft(kind=DraftKind.HEAD)}
        draft = pool_of("glm4moe", options, **keys).draft
        assert draft is not None
        assert draft.caches[0].layers == 2

    def test_a_head_must_be_there(self) -> None:
        """A model without draft layers has no draft head."""
        with pytest.raises(LlamaOptionsError, match="no draft layers"):
            pool_of("llama", {"ctx_size": 4096, "draft": LlamaDraft(kind=DraftKind.HEAD)})

    def test_a_draft_model_serves_nothing(self) -> None:
        """A draft model's file is not what a server serves."""
        with pytest.raises(LlamaOptionsError, match="draft model"):
            pool_of("eagle3", {"ctx_size": 4096})

    def test_an_assistant_reads_its_target_s_cache(self) -> None:
        """A draft that shares its target's cells stores nothing."""
        windows = {
            "attention__sliding_window": 512,
            "attention__sliding_window_pattern": [1, 1, 1, 0] * 2,
            "attention__key_length_swa": 32,
            "attention__value_length_swa": 32,
        }
        assistant = model_of("gemma4-assistant", **windows)
        draft = LlamaDraft(model=assistant, kind=DraftKind.EAGLE3)
        pool = pool_of("gemma4", {"ctx_size": 8192, "draft": draft}, **windows)
        assert pool.draft is not None
        assert pool.draft.total_bytes == 0


class TestCompression:
    """Caches with several tokens in a cell."""

    def test_compressed_cells_cost_a_fraction(self) -> None:
        """A token costs its share of a cell, and every slot has streams of its own."""
        keys: dict[str, Any] = {
            "attention__head_count_kv": 1,
            "attention__key_length": 512,
            "attention__value_length": 512,
            "attention__sliding_window": 128,
            "attention__indexer__key_length": 128,
            "attention__compress_ratios": [0, 4, 128, 4, 128, 4, 128, 0],
        }
        pool = pool_of("deepseek4", {"ctx_size": 8192, "parallel": 2, "kv_unified": True}, **keys)
        cells = {cache.name: (cache.cells, cache.streams, cache.layers) for cache in pool.caches}
        assert cells == {
            "window": (768, 2, 8),
            "compressed": (2048, 2, 3),
            "heavily_compressed": (256, 2, 3),
            "indexer": (2048, 2, 3),
        }
        assert pool.bytes_per_token == 3 * (512 * 2 / 4 + 512 * 2 / 128 + 128 * 2 / 4)
