"""Text in cells of a terminal: spans of one style, lines of spans, widths, clipping and wrapping. Pure."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Style(StrEnum):
    """What a span means; the terminal gives it a colour where it has some. No meaning rests on it alone."""

    PLAIN = "plain"
    TITLE = "title"
    DIM = "dim"
    BAD = "bad"
    WARN = "warn"
    GOOD = "good"
    UNKNOWN = "unknown"
    ALARM = "alarm"
    KEYS = "keys"
    KV_CACHE = "kv_cache"
    WEIGHTS = "weights"
    WORKING = "working"
    OTHER = "other"
    ORPHAN = "orphan"
    RESERVED = "reserved"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one style."""

    text: str
    style: Style = Style.PLAIN


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the screen."""

    spans: tuple[Span, ...] = ()
    selected: bool = field(default=False, kw_only=True)
    filled: bool = field(default=False, kw_only=True)
    """Its last style goes on to the right edge."""

    @property
    def text(self) -> str:
        """The line without its styles."""
        return "".join(span.text for span in self.spans)


def line(*parts: Span | str | tuple[str, Style], selected: bool = False, filled: bool = False) -> Line:
    """Return a line of spans, plain texts and (text, style) pairs."""
    spans = tuple(
        part if isinstance(part, Span) else Span(part) if isinstance(part, str) else Span(*part)
        for part in parts
    )
    return Line(tuple(span for span in spans if span.text), selected=selected, filled=filled)


def width(text: str) -> int:
    """Return how many cells a text takes: two for East Asian wide characters, none for combining ones."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def clip(text: str, cells: int, mark: str) -> str:
    """Return at most `cells` cells of a text, with `mark` at the end where something is left out."""
    if width(text) <= cells:
        return text
    room = cells - width(mark)
    if room < 0:
        return ""
    taken = 0
    for at, character in enumerate(text):
        taken += _cells(character)
        if taken > room:
            return text[:at] + mark
    return text


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """Return a text with spaces up to `cells` cells; with `right` they come first."""
    spaces = " " * (cells - width(text))
    return spaces + text if right else text + spaces


def fit_line(whole: Line, cells: int, mark: str) -> Line:
    """Return a line of at most `cells` cells, with `mark` where something is left out."""
    if width(whole.text) <= cells:
        return whole
    spans: list[Span] = []
    room = cells
    for at, span in enumerate(whole.spans):
        rest = sum(width(later.text) for later in whole.spans[at + 1 :])
        # The last span that has room must keep a cell for the mark.
        text = span.text if width(span.text) + min(rest, width(mark)) <= room else None
        if text is None:
            spans.append(Span(clip(span.text + " " * rest, room, mark), span.style))
            break
        spans.append(span)
        room -= width(text)
    return replace(whole, spans=tuple(spans))


def wrap(text: str, cells: int, *, indent: str = "") -> list[str]:
    """Return a text as lines of at most `cells` cells, broken at spaces where there are some."""
    lines: list[str] = []
    room = max(1, cells - width(indent))
    current = ""
    for word in text.split(" "):
        candidate = f"{current} {word}" if current else word
        if width(candidate) <= room:
            current = candidate
            continue
        if current:
            lines.append(current)
        current = word
        while width(current) > room:
            head = clip(current, room, "") or current[0]
            lines.append(head)
            current = current[len(head) :]
    lines.append(current)
    return [indent + one for one in lines]


def _cells(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
