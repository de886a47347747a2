"""How values are shown: thresholds, words in place of numbers, overrides of single fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]

# Blue, not green: one man in twelve cannot tell Grafana's green from its red.
NEUTRAL, GOOD, WARN, BAD = "text", "blue", "orange", "red"
ROOM = "#c7d0d9"
"""Grey: of what nobody holds."""
Steps = tuple[tuple[float | None, str], ...]
NEUTRAL_ONLY: Steps = ((None, NEUTRAL),)
# The first step is also the colour of no value at all, which is neither good nor bad news.
LEAST = -1e9
NONE_IS_BAD: Steps = ((None, NEUTRAL), (0, BAD), (1, GOOD))
ANY_IS_BAD: Steps = ((None, NEUTRAL), (0, GOOD), (1, BAD))
ANY_IS_A_WARNING: Steps = ((None, NEUTRAL), (0, GOOD), (1, WARN))
HEADROOM: Steps = ((None, NEUTRAL), (LEAST, BAD), (0, WARN), (1, GOOD))
FALL: Steps = ((None, NEUTRAL), (-1, BAD), (-0.05, NEUTRAL), (0.05, GOOD))
"""Of a change as a ratio: -1 is all of it."""


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
