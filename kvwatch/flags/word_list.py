"""Long lists of names, written as text to stay readable."""

from __future__ import annotations


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())
