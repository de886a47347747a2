"""The overview: servers, cards, findings and what is not known, in whatever room there is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.top import cards_section, lists
from kvwatch.top.cells import Line, Style, line
from kvwatch.top.server_table import heading, plan, row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvwatch.top.keys import State
    from kvwatch.top.paper import Paper
    from kvwatch.top.views import Server, View

_TURNS = (0, 0, 1, 2, 3)
"""Who gets the next line of the room that is left: servers twice as often as the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the overview that takes as many lines as it is given."""

    least: int
    want: int
    lines: Callable[[int], list[Line]]


def overview(view: View, servers: Sequence[Server], state: State, paper: Paper, rows: int) -> list[Line]:
    """Return the overview in at most `rows` lines; `servers` are those that are shown, in order."""
    sections = (
        Section(
            least=1 + min(len(servers), 3),
            want=1 + max(1, len(servers)),
            lines=lambda room: _servers(view, servers, state, paper, room),
        ),
        Section(
            least=2 if view.findings else 1,
            want=2 * len(view.findings) + 1,
            lines=lambda room: lists.findings_section(view, paper, room),
        ),
        Section(
            least=min(max(1, len(view.cards)), 2),
            want=cards_section.wanted(view.cards, paper),
            lines=lambda room: cards_section.section(view.cards, view.cards_why, paper, room),
        ),
        Section(
            least=1,
            want=1 + len(view.gaps),
            lines=lambda room: lists.gaps_section(view, paper, room),
        ),
    )
    heights = share_out(sections, rows)
    servers_lines, findings, cards, gaps = (
        section.lines(height) if height else [] for section, height in zip(sections, heights, strict=True)
    )
    blocks = [block for block in (servers_lines, cards, findings, gaps) if block]
    spare = rows - sum(map(len, blocks))
    lines: list[Line] = []
    for at, block in enumerate(blocks):
        # Air between the blocks, where there is some to spare.
        lines += [Line()] if at and at <= spare else []
        lines += block
    return lines[:rows]


def share_out(sections: Sequence[Section], rows: int) -> list[int]:
    """Return how many lines each section gets: first what it must have, then turn by turn."""
    heights = [0] * len(sections)
    for at, section in enumerate(sections):
        heights[at] = min(section.least, rows - sum(heights))
    while sum(heights) < rows:
        before = sum(heights)
        for at in _TURNS:
            if sum(heights) < rows and heights[at] < sections[at].want:
                heights[at] += 1
        if sum(heights) == before:
            break
    return heights


def _servers(view: View, servers: Sequence[Server], state: State, paper: Paper, rows: int) -> list[Line]:
    if not servers:
        words = "no server matches the filter" if view.servers else view.search or "no server"
        return [line(("SERVER", Style.TITLE)), *paper.paragraph(words, Style.UNKNOWN, indent="  ")][:rows]
    chosen = plan(servers, paper)
    names = [server.name for server in servers]
    selected = names.index(state.selected) if state.selected in names else 0
    room = rows - 1
    cut = len(servers) > room
    shown = max(1, room - 1) if cut else room
    # The selected one in view, the first ones as long as it is among them.
    first = min(max(0, selected - shown + 1), max(0, len(servers) - shown))
    lines = [heading(chosen)]
    lines += [
        row(server, chosen, paper, selected=first + at == selected)
        for at, server in enumerate(servers[first : first + shown])
    ]
    if cut:
        below = len(servers) - first - shown
        hidden = [f"{below} more below"] * (below > 0) + [f"{first} above"] * (first > 0)
        lines.append(line((f"  {paper.glyphs.cut} {', '.join(hidden)}", Style.DIM)))
    return lines[:rows]
