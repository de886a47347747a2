"""How a field looks: unit, thresholds, mappings and overrides of a panel, applied to one value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.colours import SHADES
from tests.previews.units import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLOURS = SHADES["light"]
NEVER_SHRINKS = 150
"""Pixels of a column of Grafana's table that says nothing of its width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A text and its colour."""

    text: str
    colour: str


def settings_of(panel: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return the settings of a field by their names, those of its overrides last."""
    defaults = dict(panel["fieldConfig"]["defaults"])
    for name, value in defaults.pop("custom", {}).items():
        defaults[f"custom.{name}"] = value
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        if matcher["id"] == "byName":
            hit = matcher["options"] == field
        else:
            hit = re.search(matcher["options"].strip("/"), field) is not None
        if hit:
            defaults |= {entry["id"]: entry["value"] for entry in override["properties"]}
    return defaults


def cell(value: float | str | None, settings: Mapping[str, Any]) -> Cell:
    """Return how a value is shown; None and an empty label are what `noValue` says."""
    if value is None or value == "":
        return Cell(text=settings["noValue"], colour=colour_at(None, settings))
    for mapping in settings.get("mappings", ()):
        option = mapping["options"].get(value if isinstance(value, str) else f"{value:g}")
        if option:
            return Cell(text=option["text"], colour=COLOURS[option.get("color", "text")])
    if isinstance(value, str):
        return Cell(text=value, colour=COLOURS["text"])
    text = shown(value, settings["unit"], settings.get("decimals"))
    return Cell(text=text, colour=colour_at(value, settings))


def colour_at(value: float | None, settings: Mapping[str, Any]) -> str:
    """Return the colour of the last threshold that a value reaches, and of the first where there is none."""
    steps: Sequence[Mapping[str, Any]] = settings["thresholds"]["steps"]
    reached = steps[0]
    for step in steps[1:]:
        if value is not None and value >= step["value"]:
            reached = step
    return COLOURS[reached["color"]]


def fixed_colour(settings: Mapping[str, Any], otherwise: str) -> str:
    """Return the colour that a field is given, or another."""
    colour: Mapping[str, Any] = settings["color"]
    fixed = str(colour["fixedColor"]) if colour["mode"] == "fixed" else otherwise
    return COLOURS.get(fixed, fixed)


def widths(fields: Sequence[Mapping[str, Any]], room: float) -> list[float]:
    """Return the width of each column as Grafana's table has it: its own, or an even part of the rest."""
    own = [field.get("custom.width") for field in fields]
    rest = room - sum(width for width in own if width)
    even = rest / max(1, own.count(None))
    return [
        width or max(even, field.get("custom.minWidth", NEVER_SHRINKS))
        for width, field in zip(own, fields, strict=True)
    ]
