"""Horizontal bars as SVG: one value a bar from 0, or parts stacked in one bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.previews import svg
from tests.previews.curves import ticks
from tests.previews.units import tick

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MARGIN, _BOTTOM, _TEXT = 7.0, 18.0, 52.0
_LETTER = 7.2
"""Pixels of a letter of 12 px, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a bar; its text is left out where the piece is too short for it."""

    value: float
    text: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar: its name and its parts from left to right."""

    name: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Where values are, in pixels from the left."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return self.left + (value - self.low) / (self.high - self.low) * (self.right - self.left)


def drawn(bars: Sequence[Bar], *, width: float, height: float, unit: str) -> str:
    """Return the SVG of a panel; a bar of one part has its text beyond its end."""
    names = _MARGIN + _LETTER * max(len(bar.name) for bar in bars)
    ends = [sum(part.value for part in bar.parts) for bar in bars]
    low, high = min(0.0, *ends), max(0.0, *ends)
    scale = _Scale(
        left=names + (_TEXT if low < 0 else 0.0),
        right=width - _TEXT,
        low=low,
        high=high if high > low else low + 1.0,
    )
    shapes = list(_grid(scale, height, unit))
    shelf = (height - _BOTTOM) / len(bars)
    for index, bar in enumerate(bars):
        shapes += _bar(bar, scale, top=shelf * (index + 0.15), height=shelf * 0.7, names=names)
    shapes.append(svg.line((scale.x(0), 0), (scale.x(0), height - _BOTTOM), "zero"))
    return svg.picture(width, height, shapes)


def _bar(bar: Bar, scale: _Scale, *, top: float, height: float, names: float) -> Iterator[str]:
    middle = top + height / 2 + 4
    yield svg.text((names - 8, middle), bar.name, anchor="end")
    start = 0.0
    for part in bar.parts:
        one, other = sorted((scale.x(start), scale.x(start + part.value)))
        yield svg.bar((one, top), other - one, height, part.colour)
        if len(bar.parts) == 1 and part.value < 0:
            yield svg.text((one - 5, middle), part.text, anchor="end", kind="value")
        elif len(bar.parts) == 1:
            yield svg.text((other + 5, middle), part.text, kind="value")
        elif other - one > _LETTER * len(part.text):
            yield svg.text(((one + other) / 2, middle), part.text, anchor="middle", kind="value")
        start += part.value


def _grid(scale: _Scale, height: float, unit: str) -> Iterator[str]:
    for value in ticks(scale.low, scale.high, unit, count=6):
        x = scale.x(value)
        yield svg.line((x, 0), (x, height - _BOTTOM), "grid")
        yield svg.text((x, height - 4), tick(value, unit), anchor="middle")
