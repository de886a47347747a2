"""The servers as a table that fits any width: columns come and go, the state takes what is left. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.top.bars import pool_bar
from kvwatch.top.cells import Line, Span, Style, clip, pad, width
from kvwatch.top.paper import percent
from kvwatch.top.views import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvwatch.top.paper import Paper
    from kvwatch.top.views import Server

MARKS = ("!", "*", " ", " ")
"""Beside a server, by the severity of its worst finding."""
_LEAST_STATE, _STATE = 16, 32
_BAR = (8, 30)
_NAME = (10, 15, 32)
_NARROW, _WIDE = 56, 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure of a server."""

    head: str
    long_head: str
    cells: int
    figure: Callable[[Server, Paper], str]


def _fit(field: str) -> Callable[[Server, Paper], str]:
    return lambda server, paper: paper.figure(server.fit(field))


def _total(field: str) -> Callable[[Server, Paper], str]:
    return lambda server, paper: paper.figure(server.total(field))


def _usage(server: Server, paper: Paper) -> str:
    return paper.figure(server.usage_ratio, percent)


def _suspected(server: Server, paper: Paper) -> str:
    # llama.cpp does not preempt: there is nothing that could be counted.
    if server.is_llama and server.total("suspected") is None:
        return "n/a"
    text = paper.figure(server.total("suspected"))
    return f"{text} +{server.redone_lately}" if server.redone_lately and paper.current else text


def _length(server: Server, paper: Paper) -> str:
    return paper.figure(server.full_length_tokens)


def _engine(server: Server, paper: Paper) -> str:
    return paper.shown(server.engine or "?")


_USED = Column(head="USED", long_head="USED", cells=6, figure=_usage)
_GUARANTEED = Column(head="GUAR", long_head="GUARANTEED", cells=4, figure=_fit("guaranteed"))
_NOW = Column(head="NOW", long_head="FITS NOW", cells=4, figure=_fit("now"))
_RUNNING = Column(head="RUN", long_head="RUNNING", cells=4, figure=_total("running"))
_WAITING = Column(head="WAIT", long_head="WAITING", cells=5, figure=_total("waiting"))
_RECOMPUTE = Column(head="REDO", long_head="RECOMPUTE", cells=7, figure=_suspected)
_LIMIT = Column(head="LIMIT", long_head="HELD AT MOST", cells=5, figure=_fit("resident_limit"))
_HEADROOM = Column(head="HEADROOM", long_head="HEADROOM", cells=8, figure=_fit("headroom"))
_LENGTH = Column(head="LENGTH", long_head="FULL LENGTH", cells=7, figure=_length)
_ENGINE = Column(head="ENGINE", long_head="ENGINE", cells=9, figure=_engine)

_ORDER = (_USED, _GUARANTEED, _NOW, _RUNNING, _WAITING, _RECOMPUTE, _LIMIT, _HEADROOM, _LENGTH, _ENGINE)
_FIRST = (_GUARANTEED, _WAITING, _USED, _RUNNING, _NOW, _RECOMPUTE)
"""In the order in which they come as the screen gets wider: before the bar."""
_THEN = (_LIMIT, _HEADROOM, _LENGTH, _ENGINE)
"""After the bar, where the state keeps room to say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which columns fit."""

    name: int
    bar: int
    """0: no bar."""
    columns: tuple[tuple[Column, int], ...]
    """Each with its cells."""
    long_heads: bool
    state: int


def plan(servers: Sequence[Server], paper: Paper) -> Plan:
    """Choose the columns for a width; a figure moves them only where it is longer than usual."""
    wide = paper.cells >= _WIDE
    longest = max((width(paper.shown(server.name)) for server in servers), default=0)
    most = _NAME[2] if wide else _NAME[1] if paper.cells > _NARROW else _NAME[0]
    name = min(max(_NAME[0], longest), most)
    widths = {
        column.head: max(
            column.cells,
            len(column.long_head if wide else column.head),
            *(width(column.figure(server, paper)) for server in servers),
        )
        for column in _ORDER
    }
    room = paper.cells - 2 - name - 1
    chosen: list[Column] = []

    def choose(columns: Sequence[Column], state: int) -> None:
        nonlocal room
        for column in columns:
            if room - widths[column.head] - 1 >= state:
                chosen.append(column)
                room -= widths[column.head] + 1

    choose(_FIRST, _LEAST_STATE if paper.cells > _NARROW else 0)
    bar = _BAR[0] if room - _BAR[0] - 1 >= _LEAST_STATE else 0
    room -= bar + 1 if bar else 0
    choose(_THEN, _STATE)
    grown = min(_BAR[1] - bar, max(0, room - _STATE)) if bar else 0
    return Plan(
        name=name,
        bar=bar + grown,
        columns=tuple((column, widths[column.head]) for column in _ORDER if column in chosen),
        long_heads=wide,
        state=max(0, room - grown),
    )


def heading(chosen: Plan) -> Line:
    """Return the heads of the columns."""
    heads = [pad("  SERVER", chosen.name + 2)]
    heads += [pad("POOL", chosen.bar)] if chosen.bar else []
    for column, cells in chosen.columns:
        heads.append(pad(column.long_head if chosen.long_heads else column.head, cells, right=True))
    return Line((Span(" ".join([*heads, "STATE"]), Style.TITLE),))


def row(server: Server, chosen: Plan, paper: Paper, *, selected: bool) -> Line:
    """Return a server."""
    glyphs = paper.glyphs
    mark = MARKS[server.severity]
    name = pad(clip(paper.shown(server.name), chosen.name, glyphs.cut), chosen.name)
    spans = [
        Span(">" if selected else " "),
        Span(mark, Style.BAD if mark == "!" else Style.WARN),
        Span(name, Style.TITLE),
    ]
    if chosen.bar:
        spans += [Span(" "), *pool_bar(server.usage_ratio, chosen.bar, glyphs, current=paper.current)]
    for column, cells in chosen.columns:
        text = column.figure(server, paper)
        spans.append(Span(" " + pad(text, cells, right=True), Style.UNKNOWN if text == "?" else Style.PLAIN))
    words, style = state_words(server)
    if not paper.current:
        words, style = f"was: {words}", Style.DIM
    spans.append(Span(" " + clip(paper.shown(words), chosen.state, glyphs.cut), style))
    return Line(tuple(spans), selected=selected)


def state_words(server: Server) -> tuple[str, Style]:
    """Return what a server can take, in words; what is bad begins with a capital word."""
    if server.kind is Kind.OPEN:
        least = "at least " if server.lower_bounds else ""
        return f"takes {least}{server.fit('guaranteed') or 0:,} more", Style.GOOD
    if server.full_if_all_grow:
        return "FULL IF ALL GROW", Style.WARN
    head, style = {
        Kind.SILENT: ("NO ANSWER", Style.BAD),
        Kind.FULL: ("FULL", Style.BAD),
        Kind.UNKNOWN: ("UNKNOWN", Style.UNKNOWN),
        Kind.ASLEEP: ("asleep", Style.DIM),
    }[server.kind]
    return f"{head}: {server.why}" if server.why else head, style
