"""Bytes as people read them. Pure."""

from __future__ import annotations

_SHOWN = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(number: int) -> str:
    """Return bytes in the unit that a person reads."""
    for factor, unit in _SHOWN:
        if abs(number) >= factor:
            return f"{number / factor:,.2f} {unit}"
    return f"{number:,} B"
