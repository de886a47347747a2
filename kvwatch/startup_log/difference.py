"""What moved between two starts, and what the movement means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.flags.secrets import without_secrets
from kvwatch.startup_log.amounts import GIB, change

if TYPE_CHECKING:
    from kvwatch.startup_log.facts import Memory, Start

NOTICEABLE = GIB // 20
"""Less than this is rounding and the noise of profiling."""
_MOST_SETTINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both starts."""

    name: str
    old: str
    new: str
    moved: str
    unit: str = "bytes"
    change: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two starts beside each other."""

    rows: tuple[Row, ...]
    settings: tuple[tuple[str, str, str], ...]
    """Names and values that are not the same; secrets hidden."""
    sentences: tuple[str, ...]


_BYTES = (
    ("card", "total_bytes"),
    ("free at start", "free_bytes"),
    ("memory asked for", "requested_bytes"),
    ("weights", "weights_bytes"),
    ("non-torch", "non_torch_bytes"),
    ("peak activation", "activation_bytes"),
    ("CUDA graphs, estimated", "graphs_estimated_bytes"),
    ("CUDA graphs", "graphs_bytes"),
    ("KV cache", "kv_bytes"),
)
# Flags that hold a port or a name change nothing of memory.
_IDLE = frozenset({"port", "host", "uvicorn_log_level", "model_tag", "served_model_name", "api_server_count"})


def compare(old: Start, new: Start) -> Difference:
    """Return what moved from one start to a later one."""
    settings = _settings(old, new)
    rows = [
        _bytes_row(name, getattr(old.memory, field), getattr(new.memory, field)) for name, field in _BYTES
    ]
    rows += [_count_row("tokens", old.kv_tokens, new.kv_tokens)]
    rows += [_count_row("blocks", old.num_blocks, new.num_blocks)]
    rows += [_count_row("max length", old.max_model_len, new.max_model_len)]
    rows += [_concurrency_row(old, new)]
    rows = [row for row in rows if row.old or row.new]
    return Difference(rows=tuple(rows), settings=settings, sentences=tuple(_meaning(old, new, settings)))


def _settings(old: Start, new: Start) -> tuple[tuple[str, str, str], ...]:
    """Return the printed settings that differ; the engine's own where no argument says the same."""
    if old.engine != new.engine:
        return ()
    found = [
        (name, _shown(name, old.settings.get(name)), _shown(name, new.settings.get(name)))
        for name in sorted({*old.settings, *new.settings})
        if old.settings.get(name) != new.settings.get(name) and name not in _IDLE
    ]
    named = {name for name, _, _ in found}
    for name in ("dtype", "kv_cache_dtype", "quantization", "enforce_eager", "tensor_parallel_size"):
        before, after = old.configuration.get(name), new.configuration.get(name)
        if before and after and before != after and name not in named:
            found.append((name, before, after))
    return tuple(found[:_MOST_SETTINGS])


def _shown(name: str, value: str | None) -> str:
    if value is None:
        return "not set"
    (option,) = without_secrets([f"--{name.replace('_', '-')}={value}"])
    return option.partition("=")[2][:100]


def _bytes_row(name: str, old: int | None, new: int | None) -> Row:
    moved = None if old is None or new is None else new - old
    return Row(
        name=name,
        old="" if old is None else size(old),
        new="" if new is None else size(new),
        moved="" if moved is None else change(moved) if moved else "same",
        change=moved,
    )


def _count_row(name: str, old: int | None, new: int | None) -> Row:
    moved = None if old is None or new is None else new - old
    return Row(
        name=name,
        old="" if old is None else f"{old:,}",
        new="" if new is None else f"{new:,}",
        moved="" if moved is None else f"{moved:+,}" if moved else "same",
        unit=name,
        change=moved,
    )


def _concurrency_row(old: Start, new: Start) -> Row:
    before, after = old.max_concurrency, new.max_concurrency
    moved = None if before is None or after is None else round(after - before, 2)
    return Row(
        name="max concurrency",
        old="" if before is None else f"{before:.2f}x",
        new="" if after is None else f"{after:.2f}x",
        moved="" if moved is None else f"{moved:+.2f}" if moved else "same",
        unit="requests",
        change=moved,
    )


def _meaning(old: Start, new: Start, settings: tuple[tuple[str, str, str], ...]) -> list[str]:
    said = []
    if old.engine != new.engine:
        return [f"Two engines, {old.engine} and {new.engine}: their figures do not compare."]
    if old.model != new.model and old.model and new.model:
        said.append(f"Another model: {old.model} then, {new.model} now.")
    if old.version != new.version and old.version and new.version:
        said.append(
            f"Another version: {old.version} then, {new.version} now; what it prints as tokens may"
            f" count otherwise."
        )
    if new.failure is not None:
        said.append(f"The later start failed: {new.failure.text}.")
    said += _of_pool(old, new, settings)
    if old.max_model_len != new.max_model_len and old.max_model_len and new.max_model_len:
        said.append(
            f"The longest request went from {old.max_model_len:,} to {new.max_model_len:,} tokens:"
            f" concurrency, and the token count of models with windows or states, move with it."
        )
    if new.engine == "llama.cpp":
        said += _of_context(old, new)
    return said or ["Nothing that the logs print has moved."]


def _of_pool(old: Start, new: Start, settings: tuple[tuple[str, str, str], ...]) -> list[str]:
    before, after = old.memory.kv_bytes, new.memory.kv_bytes
    if before is None or after is None:
        return []
    moved = after - before
    if abs(moved) < NOTICEABLE:
        return ["The KV cache has the same memory, to the rounding of the logs."]
    ratio = f", {100 * moved / before:+.0f} %" if before > 0 else ""
    said = [f"The KV cache moved by {change(moved)}{ratio}."]
    if new.engine == "vllm":
        said += _of_share(old, new, moved, settings)
    return said


def _of_share(old: Start, new: Start, moved: int, settings: tuple[tuple[str, str, str], ...]) -> list[str]:
    """Take the pool's movement apart: pool = memory asked for - weights - non-torch - activation - graphs."""
    if old.pinned_bytes is not None or new.pinned_bytes is not None:
        pins = " and ".join(
            f"{when} {'no pin' if pin is None else size(pin)}"
            for when, pin in (("then", old.pinned_bytes), ("now", new.pinned_bytes))
        )
        return [f"A pin decides it: {pins}."]
    terms = _terms(old.memory, new.memory)
    said, explained = [], 0
    for name, term in terms:
        explained += term
        if abs(term) >= NOTICEABLE:
            said.append(f"{change(term)} by {name}")
    rest = moved - explained
    sentences = [f"Of that: {', '.join(said)}."] if said else []
    same = not settings and old.version == new.version and old.model == new.model
    names = {name for name, _ in terms}
    if "non-torch memory" in names:
        taken = -dict(terms)["non-torch memory"]
        if taken >= NOTICEABLE and moved < 0:
            sentences.append(_NEIGHBOUR.format(size(taken)))
    elif abs(rest) >= NOTICEABLE and same and "weights" in names:
        sentences.append(
            f"{change(rest)} is in what these logs do not print (activation, non-torch memory). "
            + (
                "Nothing in the configuration moved, so another process most likely took card memory while"
                " this server profiled; see which server of the card started at that time, start them one"
                " after the other, or pin the pool."
                if rest < 0
                else "Nothing in the configuration moved, so the earlier start was most likely charged with"
                " memory that another process took while it profiled."
            )
        )
    elif abs(rest) >= NOTICEABLE:
        sentences.append(f"{change(rest)} is in what these logs do not print, or by settings that moved.")
    return sentences


_NEIGHBOUR = (
    "Non-torch memory grew by {}: it is measured on the whole card, so this start was charged with what"
    " another process took while it profiled. Start the servers of a card one after the other,"
    " or pin the pool."
)


def _terms(old: Memory, new: Memory) -> list[tuple[str, int]]:
    """Return by how much each printed part moved the pool."""
    terms = []
    asked = [_asked(memory) for memory in (old, new)]
    if asked[0] is not None and asked[1] is not None:
        terms.append(("the memory asked for (card x share)", asked[1] - asked[0]))
    for name, field in (
        ("weights", "weights_bytes"),
        ("non-torch memory", "non_torch_bytes"),
        ("peak activation", "activation_bytes"),
    ):
        before, after = getattr(old, field), getattr(new, field)
        if before is not None and after is not None:
            terms.append((name, before - after))
    before, after = old.graphs_estimated_bytes, new.graphs_estimated_bytes
    if (before is not None or after is not None) and not new.graphs_in_activation:
        terms.append(("CUDA graphs set aside", (before or 0) - (after or 0)))
    return terms


def _asked(memory: Memory) -> int | None:
    if memory.requested_bytes is not None:
        return memory.requested_bytes
    if memory.total_bytes is None or memory.share is None:
        return None
    return round(memory.total_bytes * memory.share)


def _of_context(old: Start, new: Start) -> list[str]:
    if old.kv_tokens == new.kv_tokens or old.kv_tokens is None or new.kv_tokens is None:
        return []
    text = f"The context went from {old.kv_tokens:,} to {new.kv_tokens:,} tokens"
    if new.slots is not None and new.slots.reduced_from is not None:
        text += f": --fit lowered it from {new.slots.reduced_from:,} to suit the free memory"
    return [f"{text}. --ctx-size and --fit off keep it the same at every start."]
