"""The few shapes that the drawings are made of."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Point = tuple[float, float]


def picture(width: float, height: float, shapes: Iterable[str]) -> str:
    """Return shapes as one drawing."""
    return f'<svg width="{width:.0f}" height="{height:.0f}">{"".join(shapes)}</svg>'


def line(start: Point, end: Point, kind: str, colour: str = "") -> str:
    """Return a straight line; `kind` is its class in the style sheet."""
    stroke = f' stroke="{colour}"' if colour else ""
    (x1, y1), (x2, y2) = start, end
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"{stroke}/>'


def text(at: Point, content: str, *, anchor: str = "start", kind: str = "axis") -> str:
    """Return words that start, end or have their middle at a point."""
    x, y = at
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(content)}</text>'


def bar(at: Point, width: float, height: float, colour: str) -> str:
    """Return a filled rectangle by its upper left corner."""
    x, y = at
    size = f'width="{max(1.0, width):.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}" fill-opacity="0.8"/>'


def area(corners: Iterable[Point], colour: str, opacity: float) -> str:
    """Return a filled outline."""
    return f'<path d="{_path(corners)}Z" fill="{colour}" fill-opacity="{opacity}"/>'


def stroke(corners: Iterable[Point], colour: str, *, dashed: bool) -> str:
    """Return a line through corners."""
    dash = ' stroke-dasharray="10 10"' if dashed else ""
    return f'<path d="{_path(corners)}" fill="none" stroke="{colour}" stroke-width="1.3"{dash}/>'


def dot(at: Point, colour: str) -> str:
    """Return a point that stands alone."""
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="2.5" fill="{colour}"/>'


def _path(corners: Iterable[Point]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in corners)
