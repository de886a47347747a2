"""Curves as SVG: steps, stacks, dashed limits, gaps where nothing was known, marks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.previews import svg
from tests.previews.units import tick

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PALETTE = (
    "#56a64b", "#f2cc0c", "#3274d9", "#ff780a", "#e02f44", "#a352cc", "#19730e", "#cc9d00",
    "#1250b0", "#e55400", "#ad0317", "#7c2ea3", "#96d98d", "#ffee52", "#8ab8ff", "#ffb357",
)  # fmt: skip
"""Grafana's classic palette in the light theme, in its order."""
_LEFT, _BOTTOM, _TOP, _RIGHT = 62.0, 18.0, 6.0, 8.0
_TICK_SECONDS = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: its name, its points in order of time, its style."""

    name: str
    points: Mapping[float, float]
    colour: str
    dashed: bool = False
    filled: float = 0.08
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a moment."""

    at: float
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The size in pixels, the time range, the step of the points, the unit and the bounds of values."""

    width: float
    height: float
    start: float
    end: float
    step: float
    unit: str
    low: float
    high: float

    def x(self, at: float) -> float:
        """Return where a moment is."""
        return _LEFT + (at - self.start) / (self.end - self.start) * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return where a value is."""
        inside = self.height - _TOP - _BOTTOM
        return _TOP + inside - (value - self.low) / (self.high - self.low) * inside


def stacked(curves: Sequence[Curve]) -> list[tuple[Curve, dict[float, float]]]:
    """Return each curve with the height of its base at each moment; those that are not stacked stand on 0."""
    heights: dict[float, float] = {}
    based = []
    for curve in curves:
        if not curve.stacked:
            based.append((curve, dict.fromkeys(curve.points, 0.0)))
            continue
        based.append((curve, {at: heights.get(at, 0.0) for at in curve.points}))
        for at, value in curve.points.items():
            heights[at] = heights.get(at, 0.0) + value
    return based


def drawn(curves: Sequence[Curve], axes: Axes, marks: Sequence[Mark] = ()) -> str:
    """Return the SVG of a panel."""
    shapes = [*_grid(axes)]
    for curve, base in stacked(curves):
        shapes += _line(curve, base, axes)
    bottom = axes.height - _BOTTOM
    for mark in marks:
        if axes.start <= mark.at <= axes.end:
            x = axes.x(mark.at)
            shapes.append(svg.line((x, _TOP), (x, bottom), "mark", mark.colour))
            shapes.append(
                svg.area([(x - 4, bottom + 5), (x + 4, bottom + 5), (x, bottom - 1)], mark.colour, 1)
            )
    return svg.picture(axes.width, axes.height, shapes)


def _line(curve: Curve, base: Mapping[float, float], axes: Axes) -> Iterator[str]:
    for run in _runs(curve.points, axes.step):
        top = _steps([(at, base[at] + curve.points[at]) for at in run], axes)
        bottom = _steps([(at, base[at]) for at in run], axes)
        if curve.filled:
            yield svg.area([*top, *reversed(bottom)], curve.colour, curve.filled)
        yield svg.stroke(top, curve.colour, dashed=curve.dashed)
        if len(run) == 1:
            yield svg.dot(top[0], curve.colour)


def _runs(points: Mapping[float, float], step: float) -> Iterator[list[float]]:
    """Yield moments without a gap between them."""
    run: list[float] = []
    for at in points:
        if run and at - run[-1] > 1.5 * step:
            yield run
            run = []
        run.append(at)
    if run:
        yield run


def _steps(points: Sequence[tuple[float, float]], axes: Axes) -> list[tuple[float, float]]:
    """Return corners: a value holds until the next one."""
    corners: list[tuple[float, float]] = []
    for at, value in points:
        x, y = axes.x(at), axes.y(value)
        if corners and corners[-1][1] != y:
            corners.append((x, corners[-1][1]))
        elif len(corners) > 1 and corners[-2][1] == y:
            corners.pop()
        corners.append((x, y))
    return corners


def _grid(axes: Axes) -> Iterator[str]:
    right, bottom = axes.width - _RIGHT, axes.height - _BOTTOM
    for value in ticks(axes.low, axes.high, axes.unit, count=max(2, int(axes.height // 38))):
        y = axes.y(value)
        yield svg.line((_LEFT, y), (right, y), "grid")
        yield svg.text((_LEFT - 6, y + 4), tick(value, axes.unit), anchor="end")
    for at in _moments(axes):
        x = axes.x(at)
        yield svg.line((x, _TOP), (x, bottom), "grid")
        words = f"{datetime.fromtimestamp(at, UTC):%H:%M{':%S' if at % 60 else ''}}"
        anchor = "middle" if x < right - _RIGHT else "end"
        yield svg.text((x, axes.height - 4), words, anchor=anchor)


def ticks(low: float, high: float, unit: str, *, count: int) -> list[float]:
    """Return round values between two bounds; bytes are round in powers of 2."""
    rough = (high - low) / count
    if unit == "bytes":
        step = 2.0 ** math.ceil(math.log2(rough))
    else:
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= rough * 0.999)
    if unit == "none":
        step = max(1.0, math.ceil(step))
    first = math.ceil(low / step - 1e-9)
    return [step * index for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _moments(axes: Axes) -> list[float]:
    wanted = (axes.end - axes.start) / max(2.0, (axes.width - _LEFT) / 90)
    step = next((step for step in _TICK_SECONDS if step >= wanted), _TICK_SECONDS[-1])
    first = math.ceil(axes.start / step)
    return [float(step * index) for index in range(first, math.floor(axes.end / step) + 1)]


def bounds(curves: Sequence[Curve], settings: Mapping[str, object]) -> tuple[float, float]:
    """Return the lowest and highest value to be shown."""
    tops = [base[at] + value for curve, base in stacked(curves) for at, value in curve.points.items()]
    lows = [base[at] + value for curve, base in stacked(curves) for at, value in curve.points.items()]
    low = settings.get("min")
    high = settings.get("max")
    bottom = min(lows, default=0.0) if not isinstance(low, int | float) else min(float(low), *lows, 0.0)
    top = float(high) if isinstance(high, int | float) else max(tops, default=1.0) * 1.05
    return bottom, (top if top > bottom else bottom + 1.0)


def legend_of(template: str, labels: Mapping[str, str]) -> str:
    """Return a series' name: the template with its labels, or the labels where there is none."""
    if not template:
        return ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template).strip()
