"""What start-up logs of every vLLM version say of what is beside the pool, and plans that start from them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.cli import main
from kvwatch.planning.errors import PlanError
from kvwatch.planning.footprint import Footprint, logged, merged
from kvwatch.startup_log.reading import read_log
from tests.planning.models import GIB, MIB
from tests.replay import CAPTURES
from tests.startup_log.vllm_prints import VERSIONS, numbers, v1_log

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.startup_log.facts import Start

CARD_BYTES = int(44.99 * GIB)
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131_072,
}


def start_of(text: str) -> Start:
    """Return the last start of a log."""
    return read_log(io.BytesIO(text.encode())).starts[-1]


def sizes(footprint: Footprint) -> dict[str, float | None]:
    """Return what is beside the pool in GiB of two decimals."""
    return {
        part.name: None if part.size_bytes is None else round(part.size_bytes / GIB, 2)
        for part in footprint.beside_pool() or ()
    }


@pytest.mark.parametrize("version", [version for version in VERSIONS if numbers(version) >= (0, 9, 1)])
def test_every_version_tells_what_is_beside_the_pool(version: str) -> None:
    """Part by part where the log prints them, else as what the share left: 26.99 - 9.12 - 14.99 GiB."""
    found = sizes(logged(start_of(v1_log(version)), card_bytes=CARD_BYTES))
    if numbers(version) >= (0, 26) or version == "0.10.2":
        activation = 1.7 if numbers(version) >= (0, 19) else found["peak activation"]
        assert found == {
            "weights": 14.99, "non-torch": 0.63, "peak activation": activation, "CUDA graphs": 0.5
        }  # fmt: skip
    elif numbers(version) >= (0, 20):
        assert found == {"weights": 14.99, "the rest of its share": 2.88}
    else:
        assert found == {"weights": 14.99, "the rest of its share": 2.88, "CUDA graphs": 0.5}


def test_a_log_from_before_the_pool_was_printed() -> None:
    """Release 0.8.5 printed no KV bytes: nothing is made of it."""
    with pytest.raises(PlanError, match="does not say what the KV cache took"):
        logged(start_of(v1_log("0.8.5")), card_bytes=CARD_BYTES)


def test_a_log_of_another_card() -> None:
    """Weights and pool that are more than the share of this card are of another one."""
    with pytest.raises(PlanError, match=r"more than 0\.6 of the card"):
        logged(start_of(v1_log("0.21.0")), card_bytes=24 * GIB)


def test_a_log_of_another_number_of_ranks() -> None:
    """What one of one rank holds is not what one of two does."""
    with pytest.raises(PlanError, match="of 1 ranks, not of 2"):
        logged(start_of(v1_log("0.28.0")), card_bytes=CARD_BYTES, ranks=2)


def test_a_start_that_failed() -> None:
    """A start without a pool measures nothing."""
    text = (CAPTURES.parent / "startup_log" / "logs" / "vllm-0.32.0-pool-too-small.log").read_text()
    with pytest.raises(PlanError, match="that start failed: "):
        logged(start_of(text), card_bytes=CARD_BYTES)


def test_a_llama_servers_log_leaves_the_context_out() -> None:
    """Its buffers are on the CPU in the capture, which is no card: nothing is made of that."""
    text = (CAPTURES / "llamacpp" / "b11434-split-startup.log").read_text()
    with pytest.raises(PlanError, match="one GPU"):
        logged(start_of(text), card_bytes=CARD_BYTES)


def test_a_measured_total_beside_a_log() -> None:
    """The process's total wins, the log says what of it is cache; a cache that was measured wins too."""
    log = Footprint(kv_bytes=9 * GIB, kv_doubt_bytes=5, tokens=74_704, source="log")
    both = merged(Footprint(total_bytes=30 * GIB), log)
    assert (both.total_bytes, both.kv_bytes, both.tokens, both.kv_doubt_bytes) == (
        30 * GIB,
        9 * GIB,
        74_704,
        5,
    )
    (rest,) = both.beside_pool() or ()
    assert rest.size_bytes == 21 * GIB
    stated = Footprint(total_bytes=30 * GIB, kv_bytes=8 * GIB)
    assert merged(stated, log) == stated


@pytest.mark.parametrize("version", ["0.10.2", "0.17.0", "0.25.1", "0.32.0"])
def test_a_plan_from_a_log(version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log makes it certain: so many requests of 32,768 tokens fit, with this share of the card."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "chat.log").write_text(v1_log(version))
    words = ["plan", str(tmp_path), "--card", "44.99GiB", "--log", str(tmp_path / "chat.log"), "--json"]
    words += ["--length", "32768", "--concurrency", "4"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    (card,), (server,) = document["cards"], document["servers"]
    assert server["pin_bytes"] == (4 * 2048 + 1) * 2 * MIB
    assert server["measured_pool"]["tokens"] == 74_704
    assert server["measured_pool"]["pool_bytes_least"] // (2 * MIB) == 4669
    assert card["known_bytes"] <= server["share"] * card["total_bytes"] <= card["ceiling_bytes"] + 1
    words[words.index("4")] = "8"
    assert main(words) == 1
