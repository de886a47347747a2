"""The pin to take, the ledger, the cost model's opinion, and what moved."""

from __future__ import annotations

import pytest

from kvwatch.startup_log.difference import compare
from kvwatch.startup_log.ledger import BAR_WIDTH, draw, ledgers
from kvwatch.startup_log.opinion import NoOpinionError, judge_vllm
from kvwatch.startup_log.pins import advise
from tests.startup_log.public_cases import CASES
from tests.startup_log.reading import GIB, LOGS, gib, only, read, read_file
from tests.startup_log.vllm_prints import FACTS, Facts, v0_log, v1_log

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "head_dim": 128,
    "max_position_embeddings": 131072,
}


class TestPins:
    """Which pin, and why not."""

    def test_of_the_two_the_one_that_fits(self) -> None:
        """The pin for the memory asked for, not the one that takes the whole card."""
        pin = advise(only(read(v1_log("0.26.0"))))
        assert pin.line == f"kv-cache-memory-bytes: {FACTS.pin}"
        assert pin.remarks[0] == (
            "It is the suggestion that fits into the memory asked for, 26.99 GiB of the card."
        )
        assert pin.remarks[1].startswith(f"Not the other one, {FACTS.pin_full:,} (25.99 GiB): it takes all")

    def test_graphs_that_are_taken_off_twice(self) -> None:
        """From 0.27 on the suggestion is smaller than need be by the CUDA graphs; before, it is not."""
        new, old = (advise(only(read(v1_log(version)))).remarks[2] for version in ("0.28.0", "0.26.0"))
        assert "512.00 MiB are CUDA graphs, which this version takes off twice" in new
        assert "twice" not in old

    def test_not_printed(self) -> None:
        """Between 0.11 and 0.25 the pool of the start is the pin, rounded down, and the text says why."""
        pin = advise(only(read(v1_log("0.21.0"))))
        assert pin.pin_bytes == gib(FACTS.kv) - GIB // 200
        assert "vLLM 0.21.0 prints it with VLLM_LOGGING_LEVEL=DEBUG only" in pin.remarks[0]

    @pytest.mark.parametrize(
        "log, refusal",
        [
            (
                v1_log("0.9.2"),
                (
                    "vLLM 0.9.2 has no --kv-cache-memory-bytes, 0.10.2 is the first;"
                    " --num-gpu-blocks-override 4669 keeps this pool"
                ),
            ),
            (
                v0_log("0.8.5"),
                (
                    "vLLM 0.8.5 has no --kv-cache-memory-bytes, 0.10.2 is the first;"
                    " --num-gpu-blocks-override 4669 keeps this pool"
                ),
            ),
            (CASES["C24"].log, "the start failed: there is no pool of it to keep"),
            (CASES["C05"].log, "no pin is known for sglang"),
            (CASES["C42"].log, "the log does not say how much memory the KV cache has"),
            (
                v1_log("0.28.0", Facts(pin=-5)),
                "vLLM's suggestion is below zero: the share leaves nothing to pin, raise it first",
            ),
        ],
        ids=["no such option", "V0", "failed", "another engine", "no bytes", "below zero"],
    )
    def test_nothing_to_pin(self, log: str, refusal: str) -> None:
        """Why there is no line."""
        pin = advise(only(read(log)))
        assert (pin.line, pin.refusal) == (None, refusal)

    def test_a_pin_too_small_to_start(self) -> None:
        """A suggestion below one request of full length would not start."""
        pin = advise(only(read(v1_log("0.28.0", Facts(pin=2 * GIB)))))
        assert pin.remarks[-1] == (
            "It would not start: one request of 32,768 tokens takes about 4.00 GiB. Lower --max-model-len or"
            " raise the share."
        )

    def test_pinned_already(self) -> None:
        """The arguments give the pin to the byte, and the pool is that."""
        log = v1_log("0.28.0").replace("'gpu_memory_utilization': 0.6", "'kv_cache_memory_bytes': 9792525440")
        log = log.replace(
            "Available KV cache memory: 9.12 GiB",
            "Initial free memory 44.51 GiB, reserved 9.12 GiB memory for KV Cache as specified by"
            " kv_cache_memory_bytes config and skipped memory profiling.",
        )
        log = "\n".join(line for line in log.splitlines() if "Desired GPU memory" not in line)
        start = only(read(log))
        assert (start.pinned_bytes, start.memory.kv_bytes) == (9_792_525_440, 9_792_525_440)
        assert advise(start).line == "kv-cache-memory-bytes: 9792525440"

    def test_blocks_by_hand(self) -> None:
        """A pool of so many blocks is not sized by bytes."""
        pin = advise(only(read_file(LOGS / "vllm-0.32.0-two-engines.log")))
        assert pin.line is None
        assert pin.refusal is not None
        assert "--num-gpu-blocks-override 100" in pin.refusal

    def test_llama_server(self) -> None:
        """The options that give this pool whatever memory is free."""
        pin = advise(only(read_file(LOGS / "llamacpp-b11434-draft.log")))
        assert pin.line == "--ctx-size 2048 --parallel 4 --kv-unified --fit off"


class TestLedger:
    """The parts of a card."""

    @pytest.mark.parametrize("version", ["0.10.2", "0.26.0", "0.28.0", "0.32.0"])
    def test_sums_to_the_card(self, version: str) -> None:
        """Every part and what is left are the card, and the bar has its width."""
        (ledger,) = ledgers(only(read(v1_log(version))))
        assert sum(part.size_bytes for part in ledger.parts) == ledger.total_bytes == gib(FACTS.total)
        assert ledger.parts[-1].name == "left"
        bar = draw(ledger)
        assert len(bar) == BAR_WIDTH
        assert all(part.letter in bar for part in ledger.parts)

    def test_the_same_start_has_the_same_parts(self) -> None:
        """0.27 prints other figures for the same memory: its ledger is that of 0.26."""
        old, new = (ledgers(only(read(v1_log(version))))[0] for version in ("0.26.0", "0.28.0"))
        assert [part.name for part in new.parts] == [part.name for part in old.parts]
        assert [part.size_bytes for part in new.parts] == pytest.approx(
            [part.size_bytes for part in old.parts], abs=GIB // 100
        )

    def test_parts_that_exceed_the_card(self) -> None:
        """What cannot be true is said, not cut off."""
        (ledger,) = ledgers(only(read(v1_log("0.26.0", Facts(kv=40.0)))))
        assert ledger.overlap_bytes > 10 * GIB
        assert ledger.parts[-1].name == "KV cache"

    def test_without_a_card(self) -> None:
        """A log that does not say the card's size has its parts and no rest."""
        (ledger,) = ledgers(only(read(v1_log("0.12.0"))))
        assert ledger.total_bytes is None
        assert [part.name for part in ledger.parts] == ["weights", "CUDA graphs", "KV cache"]

    def test_blocks_by_hand_take_less(self) -> None:
        """The pool of 100 of 32,768 blocks takes that part of the memory printed for it."""
        (ledger,) = ledgers(only(read_file(LOGS / "vllm-0.32.0-two-engines.log")))
        assert ledger.parts[0].size_bytes == GIB * 100 // 32768

    def test_each_device_of_a_llama_server(self) -> None:
        """Two cards are two ledgers."""
        both = ledgers(only(read(CASES["C25"].log)))
        assert [(ledger.title, ledger.parts[0].size_bytes) for ledger in both] == [
            ("CUDA0", 2788 << 20),
            ("CUDA1", 1564 << 20),
        ]


class TestOpinion:
    """The cost model beside the log."""

    def test_agrees(self) -> None:
        """9.12 GiB at 131,072 bytes a token are what the engine printed."""
        opinion = judge_vllm(only(read(v1_log("0.9.2"))), LLAMA_8B)
        assert opinion.agrees is True
        assert opinion.numbers["bytes_per_token"] == 131_072
        assert opinion.sentences[1] == "This pool makes 74,704 tokens; the engine says 74,704: they agree."

    def test_agrees_within_the_printed_digits(self) -> None:
        """Without a block count the bytes allow a range."""
        text = "\n".join(line for line in v1_log("0.28.0").splitlines() if "num_gpu_blocks" not in line)
        opinion = judge_vllm(only(read(text)), LLAMA_8B)
        assert opinion.agrees is True
        assert opinion.numbers["kv_tokens_least"] <= 74_704 <= opinion.numbers["kv_tokens_most"]

    def test_another_model(self) -> None:
        """Half the layers make twice the tokens: the distance is said."""
        opinion = judge_vllm(only(read(v1_log("0.28.0"))), {**LLAMA_8B, "num_hidden_layers": 16})
        text = "\n".join(line for line in v1_log("0.28.0").splitlines() if "num_gpu_blocks" not in line)
        opinion = judge_vllm(only(read(text)), {**LLAMA_8B, "num_hidden_layers": 16})
        assert opinion.agrees is False
        assert "the engine says 74,704: -50.0 %" in opinion.sentences[1]

    def test_length_that_would_fit(self) -> None:
        """Where the engine's message says no length (0.8.5 forgets it), the model's files say one."""
        text = v1_log("0.28.0").splitlines()[:3]
        text.append(
            "(EngineCore pid=90) ERROR 11-30 20:01:15 [core.py:1] ValueError: To serve at least one request"
            " with the models's max seq len (32768), (4.00 GiB KV cache is needed, which is larger than the"
            " available KV cache memory (2.50 GiB). Based on the available memory,  Try increasing"
            " `gpu_memory_utilization`"
        )
        start = only(read("\n".join(text)))
        opinion = judge_vllm(start, LLAMA_8B)
        # 0.29 and newer reserve the null block; 0.28 compares with all of the memory.
        assert opinion.numbers["longest_max_model_len"] == 2.5 * GIB / 131_072
        assert (
            opinion.sentences[-1] == "Into 2.50 GiB fits a --max-model-len of 20,480, by the model's files."
        )

    def test_ranks_that_are_not_seen(self) -> None:
        """C06: fewer tokens than the first rank's bytes make; the others' lines are missing."""
        text = v1_log("0.28.0").replace("tensor_parallel_size=1", "tensor_parallel_size=2")
        text = "\n".join(line for line in text.splitlines() if "num_gpu_blocks" not in line)
        opinion = judge_vllm(only(read(text)), LLAMA_8B)
        assert opinion.agrees is False
        assert opinion.sentences[1].endswith(
            "Not every rank printed its memory: all get the pool of the smallest."
        )

    def test_speculation(self) -> None:
        """A draft's layers are in the pool and not in the model's file."""
        text = v1_log("0.28.0").replace("speculative_config=None", "speculative_config=SpeculativeConfig(x)")
        with pytest.raises(NoOpinionError, match="draft"):
            judge_vllm(only(read(text)), LLAMA_8B)

    def test_unknown_architecture(self) -> None:
        """Refused by its name."""
        with pytest.raises(NoOpinionError, match="NewThing"):
            judge_vllm(only(read(v1_log("0.28.0"))), {**LLAMA_8B, "architectures": ["NewThing"]})


class TestDifferences:
    """What moved between two starts."""

    def test_a_neighbour_in_the_profile(self) -> None:
        """Non-torch memory is measured on the whole card: it grew by what the pool lost."""
        difference = compare(
            only(read(v1_log("0.28.0"))), only(read(v1_log("0.28.0", Facts(non_torch=3.73, kv=6.02))))
        )
        assert difference.sentences[:2] == (
            "The KV cache moved by -3.10 GiB, -34 %.",
            "Of that: -3.10 GiB by non-torch memory.",
        )
        assert difference.sentences[2].startswith("Non-torch memory grew by 3.10 GiB")

    def test_another_share(self) -> None:
        """The memory asked for explains it; no neighbour is suspected."""
        smaller = v1_log("0.28.0", Facts(share=0.5, requested=22.49, kv=4.62)).replace(
            "'gpu_memory_utilization': 0.6", "'gpu_memory_utilization': 0.5"
        )
        difference = compare(only(read(v1_log("0.28.0"))), only(read(smaller)))
        assert difference.settings == (("gpu_memory_utilization", "0.6", "0.5"),)
        assert difference.sentences[1] == "Of that: -4.50 GiB by the memory asked for (card x share)."
        assert not any("process" in sentence for sentence in difference.sentences)

    def test_nothing(self) -> None:
        """Two equal starts."""
        start = only(read(v1_log("0.28.0")))
        difference = compare(start, start)
        assert difference.sentences == ("The KV cache has the same memory, to the rounding of the logs.",)
        assert {row.moved for row in difference.rows} == {"same"}

    def test_secrets_stay_hidden(self) -> None:
        """A key in the arguments may be another one, but is never shown."""
        old, new = (
            only(read(v1_log("0.28.0").replace("'max_model_len'", f"'api_key': ['{key}'], 'max_model_len'")))
            for key in ("sk-first", "sk-second")
        )
        difference = compare(old, new)
        assert [name for name, _, _ in difference.settings] == ["api_key"]
        assert "sk-" not in str(difference)

    def test_versions_and_engines(self) -> None:
        """A new version is named first; two engines do not compare."""
        difference = compare(only(read(v1_log("0.26.0"))), only(read(v1_log("0.28.0"))))
        assert difference.sentences[0].startswith("Another version: 0.26.0 then, 0.28.0 now")
        difference = compare(only(read(v1_log("0.26.0"))), only(read(CASES["C25"].log)))
        assert difference.sentences == ("Two engines, vllm and llama.cpp: their figures do not compare.",)

    def test_a_pin(self) -> None:
        """A pin decides the pool, whatever else moved."""
        pinned = v1_log("0.28.0").replace(
            "'gpu_memory_utilization': 0.6", "'kv_cache_memory_bytes': 8589934592"
        )
        pinned = pinned.replace("memory: 9.12 GiB", "memory: 8.0 GiB")
        difference = compare(only(read(v1_log("0.28.0"))), only(read(pinned)))
        assert difference.sentences[1] == "A pin decides it: then no pin and now 8.00 GiB."

    def test_a_context_that_fit_lowered(self) -> None:
        """The same command, less free memory: --fit is named."""
        head = "llama_context: n_ctx         = {}\nllama_kv_cache:      CUDA0 KV buffer size =  {}.00 MiB\n"
        lowered = (
            "common_init_result: fitting params to device memory\n"
            "llama_params_fit_impl: context size reduced from 131072 to 40960 -> need 5632 MiB less memory in"
            " total\nllama_params_fit: successfully fit params to free device memory\n"
        )
        difference = compare(
            only(read(head.format(131072, 8192))), only(read(lowered + head.format(40960, 2560)))
        )
        assert difference.sentences[-1].startswith(
            "The context went from 131,072 to 40,960 tokens: --fit lowered it from 131,072"
        )
