"""llama-server: its context is its pool, split or shared; weights by the tensor table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from kvwatch.cli import main
from kvwatch.cost.llamacpp import LlamaOptions
from kvwatch.planning.answer import Verdict, answer
from kvwatch.planning.errors import PlanError
from kvwatch.planning.levers import levers_of
from kvwatch.planning.pool import device_bytes, held_by, needed_pool
from kvwatch.planning.question import Card, GgufFile, Question, Server
from tests.cost_llamacpp.files import model_of
from tests.planning.models import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = 8 * 2 * (64 + 64) * 2
"""Bytes a token of the small plain model: 8 layers, 2 KV heads of 64 and 64, 16 bits."""


def small(length: int = 8192, slots: int = 4, **options: Any) -> Server:
    """Return the small plain model on llama-server."""
    file = GgufFile(llama=model_of("llama"), options=LlamaOptions(**options))
    return Server(name="small", cards=("card",), model=file, length_tokens=length, concurrency=slots)


@pytest.mark.parametrize(
    "length, slots, options, context",
    [
        (8192, 4, {}, 32_768),
        (1000, 4, {}, 4096),
        (1000, 4, {"kv_unified": True}, 4096),
        (1000, 3, {"kv_unified": True}, 3072),
        (1, 1, {}, 256),
    ],
    ids=["whole steps", "each slot rounded up", "shared", "the sum rounded up", "at least one step"],
)
def test_contexts(length: int, slots: int, options: dict[str, Any], context: int) -> None:
    """A context is of all slots together, each rounded up to 256 cells, a shared one as a whole."""
    pool = needed_pool(small(length, slots, **options))
    assert pool.slots is not None
    assert (pool.slots.n_ctx, pool.pin_bytes) == (context, context * TOKEN)
    assert pool.slots.slot_limit_tokens >= length


def test_most_slots() -> None:
    """As many slots as the bytes hold, and never one more."""
    one = small(1000)
    assert held_by(one, [10 * 1024 * TOKEN]) == 10
    assert held_by(one, [10 * 1024 * TOKEN - 1]) == 9
    assert held_by(one, [0]) == 0


def test_longer_than_the_model() -> None:
    """The training context bounds a slot."""
    with pytest.raises(PlanError, match="8,448 tokens are more than the model's 8,192"):
        needed_pool(small(8448))


def test_levers() -> None:
    """A cache type of 8.5 bits instead of 16, one of 4.5, half of length or slots; sharing buys nothing."""
    one = small()
    base = answer(Question(cards=(Card(name="card", total_bytes=GIB),), servers=(one,)))
    found = {(lever.name, lever.setting): lever for lever in levers_of(base, one)}
    pool = 32_768 * TOKEN
    saved = {setting: lever.saved_bytes for (_, setting), lever in found.items()}
    assert saved == {
        "cache-type-k and -v: q8_0": pool - pool * 34 // 64,
        "cache-type-k and -v: q4_0": pool - pool * 18 // 64,
        "slots of 4096 tokens": pool // 2,
        "parallel: 2": pool // 2,
    }
    assert {lever.verdict for lever in found.values()} == {Verdict.CANNOT_TELL}


def test_windows_are_cheaper_in_a_shared_pool() -> None:
    """A window's cells are slots x window + batch when shared, slots x (window + batch) when split."""
    keys = {"attention__sliding_window": 1024, "context_length": 131_072}
    file = GgufFile(llama=model_of("gemma3", **keys), options=LlamaOptions())
    one = Server(name="windows", cards=("card",), model=file, length_tokens=8192, concurrency=4)
    base = answer(Question(cards=(Card(name="card", total_bytes=4 * GIB),), servers=(one,)))
    (lever,) = (lever for lever in levers_of(base, one) if lever.name == "shared pool")
    assert lever.saved_bytes is not None
    assert lever.saved_bytes > 0
    slots = needed_pool(one).slots
    assert slots is not None
    assert lever.pool_bytes == device_bytes(slots) - lever.saved_bytes


def written(path: Path, *, tied: bool) -> Path:
    """Write a GGUF with an embedding, one block's matrix and, unless it is tied, an output matrix."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(512)
    writer.add_block_count(8)
    writer.add_feed_forward_length(1024)
    writer.add_head_count(8)
    writer.add_head_count_kv(2)
    writer.add_key_length(64)
    writer.add_value_length(64)
    names = ["token_embd.weight", "blk.0.attn_q.weight", *([] if tied else ["output.weight"])]
    for name in names:
        writer.add_tensor(name, np.zeros((256, 512), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [False, True])
def test_weights_on_the_card(tied: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: FBT001 - a parameter
    """The embedding stays in host memory; where there is no output matrix, a copy of it is on the card."""
    file = written(tmp_path / "small.gguf", tied=tied)
    words = ["plan", str(file), "--card", "1GiB", "--length", "8192", "--concurrency", "2"]
    assert main([*words, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    matrix = 256 * 512 * 4
    assert [row["bytes"] for row in document["cards"][0]["rows"]] == [16_384 * TOKEN, 2 * matrix, None]
    assert document["servers"][0]["context_tokens"] == 16_384
    assert main([*words, "--working", "300MiB"]) == 0
    text = capsys.readouterr().out
    assert "--ctx-size 16384 --parallel 2 --n-gpu-layers 999 --fit off" in text
    assert f"{(16_384 * TOKEN) / MIB:,.1f}" in text
