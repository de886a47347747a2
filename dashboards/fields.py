"""How values are shown: thresholds, words in place of numbers, overrides of single fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]

NEUTRAL, GOOD, WARN, BAD = "text", "green", "orange", "red"
Steps = tuple[tuple[float | None, str], ...]
NEUTRAL_ONLY: Steps = ((None, NEUTRAL),)
NONE_IS_BAD: Steps = ((None, NEUTRAL), (0, BAD), (1, GOOD))
ANY_IS_BAD: Steps = ((None, NEUTRAL), (0, GOOD), (1, BAD))


def override(name: str, properties: Json, *, matcher: str = "byName") -> Json:
    """Return a field override."""
    return {
        "matcher": {"id": matcher, "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def threshold_steps(steps: Steps) -> Json:
    """Return thresholds; the first step holds below all others, and where there is no value."""
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}


def coloured(steps: Steps) -> Json:
    """Return the settings of a column whose text is coloured by value."""
    return {"thresholds": threshold_steps(steps), "custom.cellOptions": {"type": "color-text"}}


def words(mapping: Mapping[str, tuple[str, str]]) -> Json:
    """Return the settings of a column that shows a word and a colour in place of a value."""
    options = {
        value: {"color": color, "index": index, "text": text}
        for index, (value, (text, color)) in enumerate(mapping.items())
    }
    return {
        "mappings": [{"options": options, "type": "value"}],
        "custom.cellOptions": {"type": "color-text"},
    }
