"""Figures and names as the findings spell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.snapshot import DeviceState, RankState, ServerState

_MIB = 1 << 20
_CELLS = 256
"""A slot's context is rounded up to so many (llama.cpp b11434, src/llama-context.cpp)."""


def mib(size: float) -> str:
    """Return bytes as MiB, the unit of `nvidia-smi`."""
    return f"{size / _MIB:,.0f} MiB"


def count(number: float, noun: str, many: str = "") -> str:
    """Return a count with its noun, as in "1 request" and "2 requests"; `many` where no s makes it."""
    return f"{number:,.0f} {noun if number == 1 else many or noun + 's'}"


def place(server: ServerState, rank: RankState) -> str:
    """Return a server's name, with the rank where it has several."""
    name = server.target.name
    return name if len(server.ranks) == 1 else f"{name} (rank {rank.reading.rank})"


def card(device: DeviceState) -> str:
    """Return a device as `nvidia-smi` numbers it, with its name."""
    reading = device.reading
    return f"GPU {reading.index}" + (f" ({reading.name})" if reading.name else "")


def listed(names: list[str]) -> str:
    """Return names as in "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def minutes(seconds: float) -> str:
    """Return a span as people say it."""
    return f"{seconds / 60:g} min"


def fewer_or_split(slots: int, limit_tokens: int, pool_tokens: int) -> str:
    """Return the edits that keep a llama-server's slots within their shared pool.

    A larger `-c` alone is none of them: while only the pool limits a slot, each slot may claim that, too.
    """
    whole = max(1, pool_tokens // limit_tokens)
    each = -(-(pool_tokens // slots) // _CELLS) * _CELLS
    return (
        f"Take -np {whole} for full length, or -np {slots} without --kv-unified: a split pool, {each:,}"
        f" tokens a slot, and {limit_tokens:,} with -c {slots * limit_tokens}."
    )
