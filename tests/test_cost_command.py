"""`kvwatch cost`: the worked sums of papers and logs, models found by path and id, refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.cli import main
from tests.replay import CAPTURES

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "float16",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_size": 4096,
    "head_dim": 128,
    "max_position_embeddings": 8192,
}
OPT_13B = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "torch_dtype": "float16",
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "hidden_size": 5120,
    "word_embed_proj_dim": 5120,
    "max_position_embeddings": 2048,
}


@pytest.fixture
def cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs `kvwatch cost --json` on a config and returns the report."""

    def run(config: dict[str, Any], *options: str) -> dict[str, Any]:
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config))
        assert main(["cost", str(file), "--json", *options]) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    return run


def length_of(report: dict[str, Any], length: int) -> dict[str, Any]:
    """Return the row of one length."""
    (row,) = [row for row in report["lengths"] if row["length"] == length]
    return dict(row)


def test_the_paged_attention_papers_opt_13b(cost: Any) -> None:
    """800 KB a token; a 12 GiB pool has 15,728 slots (the paper prints 15.7K) and a ceiling of 7 requests."""
    report = cost(OPT_13B, "--pool", "12GiB", "--length", "2048")
    assert report["bytes_per_token"] == 819_200
    assert report["num_blocks"] * report["block_size"] == 15_728
    assert length_of(report, 2048)["ceiling"] == 7


def test_one_eighth_of_the_heads_holds_eight_times_the_requests(cost: Any) -> None:
    """The same model with 5 KV heads of 40 would have a ceiling of 61."""
    grouped = {**LLAMA, "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 5,
               "hidden_size": 5120}  # fmt: skip
    assert length_of(cost(grouped, "--pool", "12GiB", "--length", "2048"), 2048)["ceiling"] == 61


@pytest.mark.parametrize(
    "kv_heads, length, ceiling, fits", [(32, 4096, 30, 29), (8, 4096, 120, 119), (32, 8192, 15, 14)]
)
def test_the_textbooks_60_gib(cost: Any, kv_heads: int, length: int, ceiling: int, fits: int) -> None:
    """Pool bytes by request bytes is the ceiling; the null block costs one request."""
    report = cost({**LLAMA, "num_key_value_heads": kv_heads}, "--pool", "60GiB", "--length", str(length))
    row = length_of(report, length)
    assert (row["ceiling"], row["fit_empty"]) == (ceiling, fits)


def test_the_chat_card(cost: Any) -> None:
    """36 layers of 8 heads in BF16: 1,152 MiB for 8,192 tokens; a pin of 12,480 tokens, 1.52 requests."""
    model = {**LLAMA, "torch_dtype": "bfloat16", "num_hidden_layers": 36, "num_key_value_heads": 8}
    report = cost(model, "--pool", "1842537186", "--length", "8192")
    assert report["bytes_per_token"] == 147_456
    assert length_of(report, 8192)["bytes"] == 1152 << 20
    assert report["kv_cache_size_tokens"] == 12_480
    assert round(report["max_concurrency"], 2) == 1.52


def test_two_short_requests_take_a_block_each(cost: Any) -> None:
    """2 layers x 1 head x 4 x 2 bytes: 32 bytes a token, 256 for lengths 3 and 5, two blocks allocated."""
    tiny = {**LLAMA, "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1,
            "hidden_size": 4, "head_dim": 4}  # fmt: skip
    report = cost(tiny, "--length", "3", "--length", "5")
    assert report["bytes_per_token"] == 32
    rows = [length_of(report, 3), length_of(report, 5)]
    assert sum(row["logical_bytes"] for row in rows) == 256
    assert sum(row["resident_blocks"] for row in rows) == 2


def test_a_request_limit_caps_the_fits(cost: Any) -> None:
    """However large the pool, no more requests than --max-num-seqs run at once."""
    report = cost(LLAMA, "--pool", "60GiB", "--length", "4096", "--max-num-seqs", "8")
    row = length_of(report, 4096)
    assert (row["fit_empty"], row["resident_limit"], row["ceiling"]) == (8, 8, 30)


def test_a_model_is_found_by_its_id_in_the_cache_and_never_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The current revision of the Hugging Face cache counts; an id that is not there is refused."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    for revision in ("abc", "def"):
        (folder / "snapshots" / revision).mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(LLAMA))
    assert main(["cost", "org/model"]) == 0
    assert "LlamaForCausalLM" in capsys.readouterr().out
    assert main(["cost", "org/other"]) == 1
    refused = capsys.readouterr()
    assert refused.out == ""
    assert "org/other: not_found" in refused.err


@pytest.mark.parametrize(
    "config, options, complaint",
    [
        ({"architectures": ["NobodyKnowsForCausalLM"]}, (), "NobodyKnowsForCausalLM"),
        ({**LLAMA, "num_hidden_layers": None}, (), "num_hidden_layers"),
        (LLAMA, ("--cache-dtype", "fp7"), "fp7"),
        (LLAMA, ("--tp", "3"), "tensor_parallel"),
        (LLAMA, ("--ctx-size", "4096"), "--ctx-size"),
        (LLAMA, ("--engine", "llamacpp"), "GGUF"),
    ],
)
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_what_is_not_known_gives_no_number_at_all(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any],
    options: tuple[str, ...],
    complaint: str,
    as_json: tuple[str, ...],
) -> None:
    """Exit status 1, the architecture, field or option named, nothing on standard output."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert main(["cost", str(file), *options, *as_json]) == 1
    result = capsys.readouterr()
    assert result.out == ""
    assert complaint in result.err


def test_the_table_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """Groups, blocks by length, the smallest pool and what the engine prints stand in the text."""
    assert main(["cost", str(CAPTURES / "vllm" / "tiny-llama-config.json"), "--pool", "4MiB"]) == 0
    text = capsys.readouterr().out
    assert "full           4              16         4,096" in text
    assert "Smallest pool that starts: 2.02 MiB" in text
    assert "4,096 tokens and a maximum concurrency of 2.00x" in " ".join(text.split())


def test_the_weights_are_those_of_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes of the checkpoint's own tensors; where there is none beside the config, unknown."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["cost", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights_bytes"] is None
    header = json.dumps({"x": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert main(["cost", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights_bytes"] == 8
