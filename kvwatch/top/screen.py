"""A feed and a reader's place in it as the lines of a screen of any size. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.top.cards_section import everything
from kvwatch.top.cells import Line, Span, Style, clip, fit_line, line, width, wrap
from kvwatch.top.help_page import help_page
from kvwatch.top.keys import Page
from kvwatch.top.lists import findings_page, gaps_page
from kvwatch.top.order import matches, sorted_servers
from kvwatch.top.overview import overview
from kvwatch.top.paper import Paper, short, span
from kvwatch.top.server_page import server_page
from kvwatch.top.summary import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.top.feed import Feed, Moment
    from kvwatch.top.glyphs import Glyphs
    from kvwatch.top.keys import State
    from kvwatch.top.views import Server, View

_SUMMARY_ROWS = 3
_LOW = 12
"""A screen of so few rows keeps one for the summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What is drawn, and what the next key needs to know of it."""

    lines: tuple[Line, ...]
    names: tuple[str, ...] = ()
    """The servers that are shown, in order."""
    page_rows: int = 1
    scroll_limit: int = 0


def screen_of(feed: Feed, state: State, now: Moment, glyphs: Glyphs, *, cells: int, rows: int) -> Screen:
    """Return the screen: never wider or higher than asked for, whatever the feed holds."""
    doubt = feed.doubt(now)
    paper = Paper(cells=cells, glyphs=glyphs, now=now, current=not doubt)
    head = [_title(feed, paper), *_summary(feed, doubt, paper, rows)]
    view = feed.view
    ordered = [] if view is None else sorted_servers(view.servers, state.sort, backwards=state.backwards)
    servers = [server for server in ordered if matches(server, state.filter)]
    if state.filter or state.typing:
        head.append(_filter(state, len(servers), len(ordered)))
    room = max(0, rows - len(head) - 1)
    body, scroll_limit = _body(view, servers, state, paper, room)
    body = [*body[:room], *[Line()] * (room - len(body))]
    lines = [*head, *body, _keys(state, paper)]
    if len(lines) > rows:
        lines = lines[:rows]
    return Screen(
        lines=tuple(fit_line(_in_glyphs(one, glyphs), cells, glyphs.cut) for one in lines),
        names=tuple(server.name for server in servers),
        page_rows=max(1, room - 1),
        scroll_limit=scroll_limit,
    )


def _in_glyphs(one: Line, glyphs: Glyphs) -> Line:
    """Return a line in characters that the terminal has, whoever wrote it."""
    if not glyphs.ascii_only or one.text.isascii():
        return one
    return replace(one, spans=tuple(replace(span, text=glyphs.shown(span.text)) for span in one.spans))


def _body(
    view: View | None, servers: Sequence[Server], state: State, paper: Paper, room: int
) -> tuple[list[Line], int]:
    """Return the lines of a page from where it is scrolled to, and how far it can be."""
    if state.page is Page.HELP:
        lines = help_page(paper)
    elif view is None:
        return [], 0
    elif state.page is Page.OVERVIEW:
        return overview(view, servers, state, paper, room), 0
    elif state.page is Page.SERVER:
        shown = next((server for server in view.servers if server.name == state.selected), None)
        lines = (
            paper.paragraph(f"{state.selected} is not watched any more.", Style.UNKNOWN)
            if shown is None
            else server_page(shown, view, paper)
        )
    elif state.page is Page.CARDS:
        lines = [one for card in view.cards for one in (*everything(card, paper), Line())]
        lines = lines or paper.paragraph(f"No card: {view.cards_why}.", Style.UNKNOWN)
    else:
        lines = (findings_page if state.page is Page.FINDINGS else gaps_page)(view, paper)
    if len(lines) <= room:
        return lines, 0
    # The last line says how much is hidden.
    shown_rows = max(1, room - 1)
    limit = len(lines) - shown_rows
    scroll = min(state.scroll, limit)
    below = limit - scroll
    mark = f"{paper.glyphs.cut} {below} more lines below" if below else f"{paper.glyphs.cut} the end"
    return [*lines[scroll : scroll + shown_rows], line((mark, Style.DIM))], limit


def _title(feed: Feed, paper: Paper) -> Line:
    age = feed.age_seconds(paper.now)
    view = feed.view
    every = (
        ""
        if view is None or view.interval_seconds is None
        else f", polled every {short(view.interval_seconds)} s"
    )
    # As seen here: the poll itself may be older by up to one interval.
    told = "no data yet" if age is None else f"data {span(age)} old{every}"
    right = f"{told}  {paper.now.clock(paper.now.unix)}"
    left = f"kvwatch top  {paper.shown(feed.origin)}"
    room = paper.cells - width(right) - 2
    if room < len("kvwatch top"):
        return line((right, Style.TITLE))
    left = clip(left, room, paper.glyphs.cut)
    return line((left, Style.TITLE), " " * (paper.cells - width(left) - width(right)), right)


def _summary(feed: Feed, doubt: str, paper: Paper, rows: int) -> list[Line]:
    most = 1 if rows < _LOW else _SUMMARY_ROWS
    if doubt:
        if feed.view is None:
            text = f"NO DATA: {doubt}."
        else:
            taken = feed.view.taken_at
            when = "an earlier moment" if taken is None else paper.now.clock(taken)
            text = f"STALE: {doubt}. Figures in (brackets) are of {when}, NOT current."
        return _block(text, Style.ALARM, paper, most)
    if feed.view is None:
        return _block("Waiting for the first data.", Style.UNKNOWN, paper, most)
    text, style = summary(feed.view)
    return _block(text, style, paper, most)


def _block(text: str, style: Style, paper: Paper, most: int) -> list[Line]:
    lines = wrap(paper.shown(text), max(1, paper.cells))
    if len(lines) > most:
        cut = clip(" ".join(lines[most - 1 :]), max(1, paper.cells - 1), "") + paper.glyphs.cut
        lines = [*lines[: most - 1], cut]
    return [line((one, style), filled=style is Style.ALARM) for one in lines]


def _filter(state: State, shown: int, all_of: int) -> Line:
    cursor = "_" if state.typing else ""
    hint = "  Enter keeps it, Esc clears it" if state.typing else "  Esc clears it"
    return line(
        ("filter: ", Style.KEYS), f"{state.filter}{cursor}  {shown} of {all_of} servers", (hint, Style.DIM)
    )


def _keys(state: State, paper: Paper) -> Line:
    if state.page is Page.OVERVIEW:
        direction = ", reversed" if state.backwards else ""
        text = (
            f"?:help q:quit Enter:open s:sort {state.sort}{direction} /:filter c:cards f:findings u:unknown"
        )
    elif state.page is Page.SERVER:
        text = "q:back up/down:scroll n:next p:previous ?:help Q:quit"
    else:
        text = "q:back up/down:scroll ?:help Q:quit"
    return replace(line(Span(clip(text, paper.cells, paper.glyphs.cut), Style.KEYS)), filled=True)
