"""Printed amounts of memory as bytes, and differences of bytes as text.

vLLM prints GiB with two decimals, llama.cpp MiB with two: bytes are the printed value exactly, so they are
within half of the last digit of what was measured, 0.005 GiB (5,368,709 bytes) or 0.005 MiB (5,243 bytes).
"""

from __future__ import annotations

from kvwatch.byte_sizes import size

NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
GIB, MIB = 1 << 30, 1 << 20

_UNITS = {"B": 1, "bytes": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40}


def gib(text: str) -> int:
    """Return the bytes of a printed number of GiB."""
    return amount(text, "GiB")


def mib(text: str) -> int:
    """Return the bytes of a printed number of MiB."""
    return amount(text, "MiB")


def amount(text: str, unit: str) -> int:
    """Return the bytes of a printed number of a unit."""
    return round(float(text) * _UNITS[unit])


def count(text: str) -> int:
    """Return a printed count, with or without thousands separators."""
    return int(text.replace(",", ""))


def change(number: int) -> str:
    """Return a difference in bytes with its sign."""
    return f"+{size(number)}" if number >= 0 else size(number)
