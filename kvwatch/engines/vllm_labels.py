"""Numbers in the labels of vLLM's cache_config_info, which prints a Python object's fields as text."""

from __future__ import annotations

import math

LARGEST = 1 << 62  # beyond any count of tokens, blocks or bytes


def number(label: str | None) -> float | None:
    """Read a label that holds a number above zero; Python's None prints as the word."""
    try:
        value = float(label) if label is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def whole(label: str | None) -> int | None:
    """Read a label that holds a whole number above zero."""
    value = number(label)
    return int(value) if value is not None and value == int(value) and value <= LARGEST else None
