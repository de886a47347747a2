"""Where the memory of one start went, part by part, and as a bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.startup_log.facts import Device, Memory, Start

BAR_WIDTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a card."""

    letter: str
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The parts of one card; with its total they sum to that."""

    title: str
    total_bytes: int | None
    parts: tuple[Part, ...]
    overlap_bytes: int = 0
    """By how much the parts exceed the card: rounded figures, or memory counted in two of them."""


def ledgers(start: Start) -> tuple[Ledger, ...]:
    """Return the ledger of the deciding card, or of each device of a llama-server."""
    if start.devices:
        return tuple(_device_ledger(device) for device in start.devices if device.held_bytes)
    parts = _memory_parts(start.memory, pool_bytes(start))
    return (_closed("", start.memory.total_bytes, parts, known=_is_complete(start.memory)),) if parts else ()


def pool_bytes(start: Start) -> int | None:
    """Return what the pool takes of the card: less than the memory for it where blocks are overridden."""
    memory, blocks, profiled = start.memory.kv_bytes, start.num_blocks, start.profiled_blocks
    if memory is None or blocks is None or not profiled:
        return memory
    return memory * blocks // profiled


def _memory_parts(memory: Memory, pool: int | None) -> list[Part]:
    activation, graphs = memory.activation_bytes, memory.graphs_bytes
    estimated = memory.graphs_estimated_bytes
    if activation is not None and memory.graphs_in_activation and estimated is not None:
        activation -= estimated
    others = None
    if memory.total_bytes is not None and memory.free_bytes is not None:
        others = memory.total_bytes - memory.free_bytes
    parts = (
        ("o", "in use before it started", others),
        ("w", "weights", memory.weights_bytes),
        ("n", "non-torch", memory.non_torch_bytes),
        ("a", "peak activation", activation),
        (
            "g",
            "CUDA graphs" if graphs is not None else "CUDA graphs, estimated",
            estimated if graphs is None else graphs,
        ),
        ("K", "KV cache", None if pool is not None and pool < 0 else pool),
    )
    return [
        Part(letter=letter, name=name, size_bytes=value)
        for letter, name, value in parts
        if value is not None and value != 0
    ]


def _is_complete(memory: Memory) -> bool:
    needed = (memory.weights_bytes, memory.non_torch_bytes, memory.activation_bytes, memory.kv_bytes)
    return all(value is not None for value in needed)


def _device_ledger(device: Device) -> Ledger:
    others = None
    if device.total_bytes is not None and device.free_bytes is not None:
        others = device.total_bytes - device.free_bytes
    parts = [
        Part(letter=letter, name=name, size_bytes=value)
        for letter, name, value in (
            ("o", "in use before it started", others or 0),
            ("w", "weights", device.weights_bytes),
            ("K", "KV cache", device.kv_bytes),
            ("r", "recurrent states", device.recurrent_bytes),
            ("c", "compute buffers", device.compute_bytes),
            ("u", "output buffer", device.output_bytes),
        )
        if value
    ]
    title = device.name if device.description is None else f"{device.name} ({device.description})"
    return _closed(title, device.total_bytes, parts, known=others is not None)


def _closed(title: str, total: int | None, parts: Sequence[Part], *, known: bool) -> Ledger:
    """Return a ledger whose last part is what is left of the card."""
    if total is None:
        return Ledger(title=title, total_bytes=None, parts=tuple(parts))
    left = total - sum(part.size_bytes for part in parts)
    if left < 0:
        return Ledger(title=title, total_bytes=total, parts=tuple(parts), overlap_bytes=-left)
    name = "left" if known else "left, or not in the log"
    rest = (Part(letter=".", name=name, size_bytes=left),) if left else ()
    return Ledger(title=title, total_bytes=total, parts=(*parts, *rest))


def draw(ledger: Ledger) -> str:
    """Return the ledger as a bar; a part that is there has at least one column."""
    parts = [part for part in ledger.parts if part.size_bytes > 0]
    whole = sum(part.size_bytes for part in parts)
    if not whole or (len(parts) == 1 and ledger.total_bytes is None):
        return ""
    widths = [max(1, round(part.size_bytes * BAR_WIDTH / whole)) for part in parts]
    # The widest column gives or takes what rounding left over.
    widest = widths.index(max(widths))
    widths[widest] = max(1, widths[widest] + BAR_WIDTH - sum(widths))
    return "".join(part.letter * width for part, width in zip(parts, widths, strict=True))


def rows(ledger: Ledger) -> list[tuple[str, str, str]]:
    """Return letter and name, bytes, and the percentage of the card."""
    whole = ledger.total_bytes
    return [
        (
            f"{part.letter}  {part.name}",
            size(part.size_bytes),
            "" if not whole else f"{100 * part.size_bytes / whole:.1f} %",
        )
        for part in ledger.parts
    ]
