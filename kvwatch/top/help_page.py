"""What the keys, columns and marks mean. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.top.cells import Line, Style, line

if TYPE_CHECKING:
    from kvwatch.top.paper import Paper

_KEYS = (
    ("up down j k", "select a server, or scroll"),
    ("Enter, right", "open the server: pools, groups, engine's figures, reasons"),
    ("Esc, left, q", "back; q on the overview ends"),
    ("n p", "next, previous server, in an open one"),
    ("s r", "sort by: worst, name, pool, fits, waiting, recompute; r reverses"),
    ("/", "filter by name, model, engine, address or state; Esc clears"),
    ("c f u", "cards, findings, unknowns in full"),
    ("Home End", "first (the worst), last; PgUp PgDn by a screen"),
    ("Q, Ctrl-C", "end from anywhere; Ctrl-Z suspends; Ctrl-L draws anew"),
)
_COLUMNS = (
    ("USED", "of the usable pool; of a server with several, of its fullest"),
    (
        "GUAR",
        "full-length requests that can be added now and still be held when all have grown to full length",
    ),
    ("NOW", "what the free part takes if the running requests do not grow"),
    ("RUN WAIT", "requests that run, that wait"),
    (
        "REDO",
        "requests that stopped without finishing since kvwatch started (+N: in the last minute): done twice",
    ),
    (
        "LIMIT",
        "HELD AT MOST: so many can be at full length together; HEADROOM: that minus running and waiting",
    ),
    ("STATE", "FULL IF ALL GROW: nothing waits, some would fit now, but those that run may fill the pool"),
)
_MARKS = (
    ("! *", "beside a server: it has a critical finding, a warning"),
    ("?", "unknown: neither zero nor calm. Open the server, or press u, for the reason"),
    ("(7)", "round brackets: a figure of an earlier moment, not current"),
    ("a b c", "letters in a card's bar: its parts, in the order of the legend below it"),
)


def help_page(paper: Paper) -> list[Line]:
    """Return the help."""
    lines: list[Line] = []
    fills = paper.glyphs.fills
    bars = (
        (fills["kv_cache"], "KV cache: the pool, used or not"),
        (fills["weights"], "weights, or weights and working memory where the two cannot be told apart"),
        (fills["working"], "working memory: activations, CUDA graphs, context"),
        (fills["other"], "other processes"),
        (fills["unattributed"], "in use, but held by no process that the driver lists"),
        (fills["orphan"], "orphan: an engine's process whose server is gone"),
        (fills["reserved"], "held back by the driver"),
        (fills["free"], "free"),
        (fills["unknown"], "unknown"),
    )
    for title, rows in (("KEYS", _KEYS), ("COLUMNS", _COLUMNS), ("MARKS", _MARKS), ("BARS", bars)):
        lines += [Line()] if lines else []
        lines.append(line((title, Style.TITLE)))
        for term, text in rows:
            first, *more = paper.paragraph(text, indent=" " * 16)
            lines += [line(f"  {term:13} ", first.text[16:]), *more]
    return lines
