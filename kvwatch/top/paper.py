"""What every part of the screen writes its figures with: width, characters, whether they hold now. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvwatch.top.cells import Line, Span, Style, wrap

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.top.feed import Moment
    from kvwatch.top.glyphs import Glyphs

UNKNOWN = "?"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """The sheet that is written on."""

    cells: int
    glyphs: Glyphs
    now: Moment
    current: bool
    """Whether figures may be shown as such; else they stand in round brackets."""

    def shown(self, text: str) -> str:
        """Return a text in the characters that the terminal has."""
        return self.glyphs.shown(text)

    def figure(self, value: Any, form: Callable[[Any], str] | None = None) -> str:
        """Return a figure, or `?` where it is not known."""
        if value is None:
            return UNKNOWN
        text = (form or whole)(value)
        return text if self.current else f"({text})"

    def explained(self, value: Any, why: str, form: Callable[[Any], str] | None = None) -> str:
        """Return a figure, or the word with the reason."""
        return f"unknown: {self.shown(why)}" if value is None else self.figure(value, form)

    def paragraph(self, text: str, style: Style = Style.PLAIN, *, indent: str = "") -> list[Line]:
        """Return a text as lines."""
        return [Line((Span(one, style),)) for one in wrap(self.shown(text), self.cells, indent=indent)]

    def ago(self, unix_seconds: float | None, taken_at: float | None) -> str:
        """Return a time of the daemon's clock, and how long before the snapshot that was."""
        if unix_seconds is None:
            return "an unknown time"
        clock = self.now.clock(unix_seconds)
        return clock if taken_at is None else f"{clock}, {span(max(0.0, taken_at - unix_seconds))} ago"


def whole(value: float) -> str:
    """Return a whole number with thousands apart."""
    return f"{round(value):,}"


def short(value: float) -> str:
    """Return about three digits, for what is rarely a whole number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004


def percent(ratio: float) -> str:
    """Return a percentage, rounded down, so that a pool which is not quite full does not read 100 %."""
    if ratio in (0.0, 1.0):
        return f"{ratio:.0%}"
    tenths = int(ratio * 1000 + 1e-6)
    return "<0.1%" if 0 < ratio < 0.001 else f"{tenths / 10:.1f}%"  # noqa: PLR2004


def span(seconds: float) -> str:
    """Return a span of time in its largest unit."""
    rounded = round(seconds)
    if rounded < 2 * _MINUTE:
        return f"{rounded} s"
    if rounded < 2 * _HOUR:
        return f"{rounded // _MINUTE} min"
    if rounded < 2 * _DAY:
        return f"{rounded // _HOUR} h {rounded % _HOUR // _MINUTE} min"
    return f"{rounded // _DAY} days"
