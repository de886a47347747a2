"""Public reports with a configuration: what the check says before a start is what the report saw after it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.cli import main
from tests.check.uniform_model import uniform_config
from tests.cost.agreement import GIB, load
from tests.cost.cases import DELTA_NET, WINDOWS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GPT_OSS = {**load("configs")["gpt-oss-20b"], "num_hidden_layers": 36, "layer_types": None}
KIMI = load("configs")["kimi-linear-48b"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A report: its model, the server's options with the pool that it had, and what is right."""

    config: Mapping[str, Any]
    options: str
    version: str
    rules: frozenset[str] = frozenset()
    """Those that must be found."""
    silent: frozenset[str] = frozenset()
    """Those that must not."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Of the server's pool."""
    found: Mapping[str, float] = field(default_factory=dict)
    """Of the first rule's finding."""
    said: tuple[str, ...] = ()


REFUSED = frozenset({"pool-below-one-request"})
CASES = {
    # 1,952 blocks at 20,000 tokens: starts, prints 1.56, holds one.
    "C01": Case(
        config=uniform_config(32, 8),
        options="--num-gpu-blocks-override 1952 --max-model-len 20000 --block-size 16",
        version="0.8.5",
        rules=frozenset({"length-just-in-case"}),
        silent=REFUSED,
        numbers={"max_concurrency": 1.56, "resident_limit": 1, "size_bytes": 3.81 * GIB},
    ),
    # The same card at 29,000: 1,478 blocks hold 23,648 tokens.
    "C02": Case(
        config=uniform_config(32, 8),
        options="--num-gpu-blocks-override 1478 --max-model-len 29000 --block-size 16",
        version="0.8.5",
        rules=REFUSED,
        numbers={"max_concurrency": 0.82, "resident_limit": 0, "size_bytes": 2.89 * GIB},
        found={"longest_max_model_len": 23_648, "full_length_tokens": 29_000},
    ),
    "C06": Case(
        config=uniform_config(48, 8),
        options="--num-gpu-blocks-override 5096 --max-model-len 131072 -tp 2",
        version="0.8.5",
        rules=REFUSED,
        numbers={"resident_limit": 0, "bytes_per_token": 98_304},
        found={"longest_max_model_len": 81_536},
    ),
    "C07": Case(
        config=uniform_config(80, 8),
        options="--num-gpu-blocks-override 1381 --max-model-len 2048",
        version="0.8.5",
        silent=REFUSED,
        numbers={"max_concurrency": 10.79, "resident_limit": 10, "bytes_per_token": 327_680},
    ),
    "C09": Case(
        config=uniform_config(32, 32),
        options="--num-gpu-blocks-override 229 --max-model-len 4096",
        version="0.8.5",
        rules=REFUSED,
        numbers={"resident_limit": 0, "bytes_per_token": 524_288},
        found={"longest_max_model_len": 3_664},
    ),
    "C10": Case(
        config=uniform_config(80, 8),
        options="--num-gpu-blocks-override 378 --max-model-len 8192",
        version="0.8.5",
        rules=REFUSED,
        found={"longest_max_model_len": 6_048},
    ),
    # 23.25 GiB needed, 22.5 there; the engine's own estimate of the longest that starts: 190,272.
    "C12": Case(
        config=uniform_config(62, 8),
        options=f"--kv-cache-memory-bytes {int(22.5 * GIB)} --max-model-len 196608 -tp 2",
        version="0.28.0",
        rules=REFUSED,
        numbers={"minimum_pool_bytes": 23.25 * GIB, "resident_limit": 0},
        found={"longest_max_model_len": 190_256, "short_bytes": 0.75 * GIB},
        said=("needs 23.25 GiB", "22.50 GiB", "768.00 MiB short"),
    ),
    "C12 with 28.5 GiB": Case(
        config=uniform_config(62, 8),
        options="--num-gpu-blocks-override 15051 --max-model-len 196608 -tp 2",
        version="0.28.0",
        silent=REFUSED,
        numbers={"max_concurrency": 1.22, "resident_limit": 1},
    ),
    # Windows reserve for the batch: 4.54 GiB, not 4.50 and not 9.
    "C15": Case(
        config=GPT_OSS,
        options=(
            f"--kv-cache-memory-bytes {int(1.71 * GIB)} --max-model-len 131072 --max-num-batched-tokens 1024"
        ),
        version="0.11.0",
        rules=REFUSED,
        numbers={"minimum_pool_bytes": 4.54 * GIB, "resident_limit": 0},
        said=("needs 4.54 GiB", "1.71 GiB"),
    ),
    # A hybrid: 208 blocks, 90 for 131,072 tokens, 174 for 262,144.
    "C16": Case(
        config=DELTA_NET,
        options=(
            f"--kv-cache-memory-bytes {int(4.99 * GIB)} --max-model-len 131072 -tp 2"
            " --kv-cache-dtype fp8_e4m3 --max-num-batched-tokens 2048"
        ),
        version="0.32.0",
        silent=REFUSED | {"length-just-in-case"},
        numbers={"max_concurrency": 2.31, "resident_limit": 2, "usable_blocks": 207},
    ),
    "C16 at 262,144": Case(
        config=DELTA_NET,
        options=(
            f"--kv-cache-memory-bytes {int(4.99 * GIB)} --max-model-len 262144 -tp 2"
            " --kv-cache-dtype fp8_e4m3 --max-num-batched-tokens 2048"
        ),
        version="0.32.0",
        rules=frozenset({"length-just-in-case"}),
        silent=REFUSED,
        numbers={"max_concurrency": 1.195, "resident_limit": 1},
    ),
    # The engine prints 75,840 tokens for requests of 120,000, and holds two of them.
    "C19": Case(
        config=KIMI,
        options="--num-gpu-blocks-override 318 --max-model-len 120000 -tp 2 --max-num-batched-tokens 2048",
        version="0.11.1",
        rules=frozenset({"ranks-replicate-cache"}),
        silent=REFUSED,
        numbers={"max_concurrency": 2.48, "resident_limit": 2},
    ),
    # One latent vector on eight ranks: kept eight times.
    "C23": Case(
        config=load("configs")["deepseek-v3"],
        options="--kv-cache-memory-bytes 20G --max-model-len 32768 -tp 8",
        version="0.25.0",
        rules=frozenset({"ranks-replicate-cache"}),
        numbers={"bytes_per_token": 70_272},
        found={"kv_heads": 1, "copies": 8},
        said=("--data-parallel-size 8",),
    ),
    "C43": Case(
        config=uniform_config(92, 8),
        options="--num-gpu-blocks-override 102564 --max-model-len 131072",
        version="0.10.0",
        numbers={"usable_blocks": 102_563, "resident_limit": 12},
    ),
    # Without the hybrid manager a token costs 11 times as much.
    "C60": Case(
        config=WINDOWS,
        options=(
            "--kv-cache-memory-bytes 50G --max-model-len 131072 --disable-hybrid-kv-cache-manager"
            " --max-num-batched-tokens 2048"
        ),
        version="0.21.0",
        rules=frozenset({"window-kept-whole"}),
        numbers={"bytes_per_token": 901_120},
    ),
}


def checked(folder: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what the command says of a case's server, as JSON."""
    (folder / "config.json").write_text(json.dumps(case.config))
    script = folder / "chat.sh"
    script.write_text(f"vllm serve {shlex.quote(str(folder))} {case.options}\n")
    main(["check", "--format=json", f"--engine-version={case.version}", str(script)])
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_a_report_is_foretold(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refusals, the smallest pool, the longest request and the concurrency are those of the report."""
    case = CASES[name]
    document = checked(tmp_path, case, capsys)
    [server] = document["servers"]
    rules = {finding["rule"] for finding in document["findings"]}
    assert case.rules <= rules
    assert not case.silent & rules
    for quantity, expected in case.numbers.items():
        assert server["pool"][quantity] == pytest.approx(expected, rel=0.006), quantity
    if case.found or case.said:
        finding = next(one for one in document["findings"] if one["rule"] in case.rules)
        for quantity, expected in case.found.items():
            assert finding["numbers"][quantity] == pytest.approx(expected, rel=1e-3), quantity
        assert [part for part in case.said if part not in finding["message"]] == []


LLAMA_CASES = {
    # C63: one pool of 1,024, four slots that each claim it: one request, not four.
    "-c 1024": ("unified-pool-over-committed", {"pool_tokens": 1024, "resident_limit": 1}),
    # C64: divided by -np.
    "-c 4096 -np 4": ("parallel-divides-context", {"full_length_tokens": 1024, "resident_limit": 4}),
    "-c 163840 -np 6": ("parallel-divides-context", {"full_length_tokens": 27_392, "resident_limit": 6}),
    # C66: 200k shared, each slot capped at 50k.
    "-c 200000 -np 4 -kvu --kv-unified-per-slot 50000": (None, {"resident_limit": 4}),
    "-c 100000 -np 4 -kvu --kv-unified-per-slot 50000": (
        "unified-pool-over-committed",
        {"full_length_tokens": 50_000, "resident_limit": 2},
    ),
    # C25: q8_0 takes 34 bytes for 32 values.
    "-c 32768 -np 1 -ctk q8_0 -ctv q8_0": (None, {"size_bytes": 4352 << 20, "resident_limit": 1}),
}


@pytest.mark.parametrize("options", LLAMA_CASES)
def test_a_report_of_llama_server_is_foretold(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slots, their limit and the bytes of the pool are those of the report."""
    from tests.cost_llamacpp.files import PLAIN, write_gguf  # noqa: PLC0415 - only here

    rule, numbers = LLAMA_CASES[options]
    keys = {"block_count": 64, "attention.head_count_kv": 8, "attention.key_length": 128}
    keys |= {"attention.value_length": 128, "context_length": 262_144}
    model = write_gguf(tmp_path / "model.gguf", "llama", PLAIN | keys)
    script = tmp_path / "chat.sh"
    script.write_text(f"llama-server -m {model} -ngl all {options}\n")
    main(["check", "--format=json", "--engine-version=b11434", str(script)])
    document = json.loads(capsys.readouterr().out)
    [server] = document["servers"]
    rules = {one["rule"] for one in document["findings"] if not one["rule"].startswith("unknown")}
    assert rules == (set() if rule is None else {rule})
    assert {name: server["pool"][name] for name in numbers} == numbers
