"""Every version's lines say the same of one and the same start."""

from __future__ import annotations

import pytest

from tests.startup_log.reading import documents, gib
from tests.startup_log.vllm_prints import FACTS, VERSIONS, numbers, v0_log, v1_log


@pytest.mark.parametrize("version", VERSIONS)
def test_v1(version: str) -> None:
    """What a version prints at INFO is read, and what it does not print is absent."""
    release = numbers(version)
    (start,) = documents(v1_log(version))

    assert (start["engine"], start["version"], start["ready"]) == ("vllm", version, True)
    assert start["model"] == "acme/chat-8b"
    assert start["weights_bytes"] == gib(FACTS.weights)
    assert start["graphs_bytes"] == gib(FACTS.graphs)
    assert start["kv_tokens"] == FACTS.tokens
    assert start["max_model_len"] == FACTS.length
    assert start["max_concurrency"] == FACTS.concurrency
    assert start["share"] == FACTS.share
    assert start.get("kv_bytes") == (gib(FACTS.kv) if release >= (0, 9, 1) else None)
    assert start.get("num_blocks") == (FACTS.blocks if release >= (0, 9, 1) else None)
    assert "error" not in start
    suggested = (0, 10, 2) <= release < (0, 11) or release >= (0, 26)
    assert ("suggested_pin_bytes" in start) is suggested
    assert ("total_bytes" in start) is suggested


@pytest.mark.parametrize("version", [name for name in VERSIONS if numbers(name) >= (0, 10, 2)])
def test_v1_with_its_suggestion(version: str) -> None:
    """The line with the two pins, at INFO or DEBUG, gives the card, the share, each part and both pins."""
    (start,) = documents(v1_log(version, debug=True))

    assert start["total_bytes"] == gib(FACTS.total)
    assert start["free_bytes"] == gib(FACTS.free)
    assert start["requested_bytes"] == gib(FACTS.requested)
    assert start["non_torch_bytes"] == pytest.approx(gib(FACTS.non_torch), abs=2)
    estimated = FACTS.estimated if numbers(version) >= (0, 27) else 0
    assert start["activation_bytes"] == gib(FACTS.activation + estimated)
    assert start["suggested_pin_bytes"] == FACTS.pin
    assert start["suggested_pin_full_bytes"] == FACTS.pin_full
    assert start["pin_line"] == f"kv-cache-memory-bytes: {FACTS.pin}"


@pytest.mark.parametrize("version", ["0.6.3", "0.6.4", "0.6.5", "0.6.6", "0.7.3", "0.8.5", "0.10.2"])
def test_v0(version: str) -> None:
    """The legacy engine's lines, of which there are three shapes, say all but the pins."""
    (start,) = documents(v0_log(version))

    assert (start["engine"], start["version"], start["ready"]) == ("vllm", version, True)
    assert start["total_bytes"] == gib(FACTS.total)
    assert start["share"] == FACTS.share
    assert start["weights_bytes"] == gib(FACTS.weights)
    assert start["non_torch_bytes"] == gib(FACTS.non_torch)
    assert start["activation_bytes"] == pytest.approx(gib(FACTS.activation), abs=2)
    assert start["graphs_bytes"] == gib(FACTS.graphs)
    assert start["kv_bytes"] == gib(FACTS.kv)
    assert start["num_blocks"] == FACTS.blocks
    assert start["max_model_len"] == FACTS.length
    assert start["max_concurrency"] == FACTS.concurrency
    assert "kv_tokens" not in start
    assert "suggested_pin_bytes" not in start


def test_pool_bytes_that_are_printed_to_the_byte() -> None:
    """0.10.2 prints the pool in use in bytes: that is taken, not the rounded line before it."""
    (start,) = documents(v1_log("0.10.2").replace("in use is 9792525435 bytes", "in use is 9790000001 bytes"))
    assert start["kv_bytes"] == 9_790_000_001


def test_a_pool_below_zero() -> None:
    """A neighbour can take so much while vLLM profiles that less than nothing is left."""
    text = v1_log("0.28.0").replace(
        "Available KV cache memory: 9.12 GiB", "Available KV cache memory: -3.21 GiB"
    )
    (start,) = documents("\n".join(line for line in text.splitlines() if "Free memory on device" not in line))
    assert start["kv_bytes"] == gib(-3.21)
