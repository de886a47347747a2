"""Cells and MiB against what llama.cpp b11434 printed for tiny random models of every architecture.

`llama_server_b11434.jsonl` holds, after a line with the metadata all models share, one line a start: the
model's architecture and its own keys (null: left out), the options after `llama-server -m MODEL -lv 4`, and
the lines of the log that speak of memory. Where `source` says libllama, the server did not come up with the
tiny model, and the lines were printed by the library when it built the same context.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.cost.llamacpp import (
    DraftKind,
    LlamaDraft,
    LlamaModel,
    LlamaOptions,
    LlamaOptionsError,
    LlamaPool,
    allocate,
)
from kvwatch.cost.llamacpp_architectures import ARCHITECTURES
from kvwatch.cost.llamacpp_rules import Memory
from tests.cost_llamacpp.files import read, write_gguf

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = Path(__file__).with_name("llama_server_b11434.jsonl")
BASE, *STARTS = [json.loads(line) for line in RECORDED.read_text().splitlines()]

VALUES: dict[str, tuple[str, Any]] = {
    "-c": ("ctx_size", int),
    "-np": ("parallel", int),
    "-ub": ("ubatch_size", int),
    "-b": ("batch_size", int),
    "-ctk": ("cache_type_k", str),
    "-ctv": ("cache_type_v", str),
    "-fa": ("flash_attention", {"on": True, "off": False}.get),
    "--fit": ("fit", {"on": True, "off": False}.get),
    "--kv-unified-per-slot": ("kv_unified_per_slot", int),
}
DRAFT_VALUES: dict[str, tuple[str, Any]] = {
    "-ctkd": ("cache_type_k", str),
    "-ctvd": ("cache_type_v", str),
    "--spec-draft-n-max": ("max_tokens", int),
    "--spec-type": ("kind", DraftKind),
}
FLAGS = {"-kvu": "kv_unified", "--swa-full": "swa_full"}
CACHE_LINE = re.compile(
    r"llama_kv_cache: size = [\d.]+ MiB \( *(\d+) cells, +(\d+) layers, +\d+/(\d+) seqs\), "
    r"K \(\w+\): ([\d.]+) MiB, V \(\w+\): ([\d.]+) MiB"
)
STATE_LINE = re.compile(
    r"llama_memory_recurrent: .*R \(f32\): ([\d.]+) MiB, S \(f32\): ([\d.]+) MiB, P \(f32\): ([\d.]+) MiB"
)
COMPRESSOR_LINE = re.compile(r"llama_dsv4_comp_state: .* layers = (\d+), size = ([\d.]+) MiB")
CONTEXT_LINES = re.compile(
    r"n_ctx = (\d+)\nllama_context: n_ctx_seq = (\d+)\nllama_context: n_ubatch = (\d+)"
)
SLOTS_LINE = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(true|false)'")


def options_of(text: str, draft: LlamaModel | None) -> LlamaOptions:
    """Read the options that the recorded starts use."""
    values: dict[str, Any] = {}
    drafting: dict[str, Any] = {}
    words = iter(text.split())
    for word in words:
        if word in FLAGS:
            values[FLAGS[word]] = True
        elif word == "-nkvo":
            values["kv_offload"] = False
        elif word == "-md":
            next(words)
            drafting["model"] = draft
        else:
            name, read_value = {**VALUES, **DRAFT_VALUES}[word]
            (drafting if word in DRAFT_VALUES else values)[name] = read_value(next(words))
    return LlamaOptions(**values, draft=LlamaDraft(**drafting) if drafting else None)


def mib(size: int) -> str:
    """Print bytes as the engine does: a 32-bit float with two digits."""
    (single,) = struct.unpack("f", struct.pack("f", size))
    return f"{single / 2**20:.2f}"


def contexts(log: list[str]) -> Iterator[str]:
    """Divide a log into one part a context: the model's own, then the draft's."""
    joined = "\n".join(log)
    starts = [match.start() for match in CONTEXT_LINES.finditer(joined)]
    yield from (joined[start:end] for start, end in pairwise([*starts, len(joined)]))


def printed(log: str) -> tuple[Any, ...]:
    """Return what a context's lines say: caches that have layers, states, sizes of the context."""
    caches = sorted(
        (int(cells), int(layers), int(streams), k, v)
        for cells, layers, streams, k, v in CACHE_LINE.findall(log)
        if layers != "0"
    )
    states = [line for line in STATE_LINE.findall(log) if set(line) != {"0.00"}]
    context = CONTEXT_LINES.search(log)
    assert context is not None
    return caches, states, COMPRESSOR_LINE.findall(log), tuple(map(int, context.groups()))


def computed(pool: LlamaPool) -> tuple[Any, ...]:
    """Return the same of a computed context."""
    caches = sorted(
        (cache.cells, cache.layers, cache.streams, mib(cache.k_bytes), mib(cache.v_bytes))
        for cache in pool.caches
    )
    sizes = {state.name: state.size_bytes for state in pool.states}
    recurrent = tuple(mib(sizes.get(name, 0)) for name in ("conv", "state", "history"))
    known = {"conv", "state", "history"} & set(sizes)
    running = [] if known else [(str(state.layers), mib(state.size_bytes)) for state in pool.states]
    states = [recurrent] if known and set(recurrent) != {"0.00"} else []
    return caches, states, running, (pool.n_ctx, pool.n_ctx_seq, pool.n_ubatch)


@pytest.mark.parametrize(
    "start", STARTS, ids=[f"{one['architecture']} {one['rule']} {one['options']}" for one in STARTS]
)
def test_a_recorded_start_is_reproduced(start: dict[str, Any], tmp_path: Path) -> None:
    """Every cache's cells, layers, streams and MiB, and the slots, are those that the engine printed."""
    shared = BASE["base"]
    path = write_gguf(tmp_path / "model.gguf", start["architecture"], {**shared, **start["metadata"]})
    model = LlamaModel.from_header(read(path))
    draft = None
    if "draft" in start:
        own = {**shared, **start["draft"]["metadata"]}
        draft_path = write_gguf(tmp_path / "draft.gguf", start["draft"]["architecture"], own)
        draft = LlamaModel.from_header(read(draft_path))
    options = options_of(start["options"], draft)
    # A draft model was given a context of its own to see its cache.
    model = replace(model, draft_only=False)
    parts = list(contexts(start["log"]))
    if not parts:
        with pytest.raises(LlamaOptionsError):
            allocate(model, options)
        return
    pool = allocate(model, options)
    assert [printed(part) for part in parts] == [computed(one) for one in (pool, pool.draft) if one]
    slots = SLOTS_LINE.search("\n".join(start["log"]))
    if slots is not None:
        stated = (int(slots[1]), int(slots[2]), slots[3] == "true")
        assert stated == (pool.slots, pool.slot_limit_tokens, pool.unified)


def test_every_architecture_was_recorded() -> None:
    """An architecture without a recorded start is one that keeps no cache or that no server runs."""
    recorded = {start["architecture"] for start in STARTS}
    missing = {name for name, rules in ARCHITECTURES.items() if name not in recorded}
    assert missing <= {
        name for name, rules in ARCHITECTURES.items() if rules.memory is Memory.NONE or rules.draft_only
    }


def test_most_starts_are_a_server_s() -> None:
    """The library alone stands in only where the server refused the tiny model."""
    alone = [start for start in STARTS if start.get("source") == "libllama"]
    assert len(alone) * 5 < len(STARTS)
