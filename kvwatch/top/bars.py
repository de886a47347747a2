"""Bars: a pool's use, and a card's ledger whose cells sum to the bar. Pure."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.top.cells import Span, Style
from kvwatch.top.glyphs import STYLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.top.glyphs import Glyphs
    from kvwatch.top.views import Card, Part

_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_ALMOST = 0.9


def pool_bar(usage_ratio: float | None, cells: int, glyphs: Glyphs, *, current: bool) -> list[Span]:
    """Return a bar with its ends, `cells` wide; all question marks where the use is not known.

    What is no longer current stands between round brackets, as every such figure does.
    """
    inner = max(0, cells - 2)
    left, right = ("[", "]") if current else ("(", ")")
    if usage_ratio is None:
        return [Span(left), Span("?" * inner, Style.UNKNOWN), Span(right)]
    used = _used_cells(usage_ratio, inner)
    style = Style.PLAIN if not current else Style.WARN if usage_ratio >= _ALMOST else Style.KV_CACHE
    return [
        Span(left),
        Span(glyphs.used * used, style),
        Span(glyphs.rest * (inner - used), Style.FREE),
        Span(right),
    ]


def _used_cells(ratio: float, cells: int) -> int:
    """Return the used cells: none is empty only where nothing is used, all are full only where all is."""
    if ratio <= 0 or cells == 0:
        return 0
    if ratio >= 1:
        return cells
    return min(max(1, round(ratio * cells)), max(1, cells - 1))


def shown_parts(card: Card) -> tuple[Part, ...]:
    """Return the parts that hold something."""
    return tuple(part for part in card.parts if part.bytes > 0)


def apportion(amounts: Sequence[int], cells: int) -> list[int]:
    """Share out cells in proportion to amounts, to the last cell; whoever has anything gets one if there is.

    The largest remainders get what rounding down leaves over, as seats are shared out.
    """
    total = sum(amounts)
    if total <= 0 or cells <= 0:
        return [0] * len(amounts)
    least = 1 if sum(amount > 0 for amount in amounts) <= cells else 0
    shares = [max(least if amount > 0 else 0, amount * cells // total) for amount in amounts]
    while sum(shares) > cells:
        # The minimum of the small ones is taken from the largest.
        shares[max(range(len(shares)), key=shares.__getitem__)] -= 1
    order = sorted(range(len(shares)), key=lambda at: amounts[at] * cells / total - shares[at], reverse=True)
    for at in order:
        if sum(shares) >= cells:
            break
        shares[at] += 1
    shares[order[0]] += cells - sum(shares)
    return shares


def ledger_bar(card: Card, cells: int, glyphs: Glyphs, *, current: bool) -> list[Span]:
    """Return a card's ledger as a bar with its ends, `cells` wide; each part begins with its letter."""
    inner = max(0, cells - 2)
    left, right = ("[", "]") if current else ("(", ")")
    parts = shown_parts(card)
    if not parts:
        return [Span(left), Span("?" * inner, Style.UNKNOWN), Span(right)]
    spans = [Span(left)]
    for at, (part, share) in enumerate(
        zip(parts, apportion([part.bytes for part in parts], inner), strict=True)
    ):
        text = (letter(at) + glyphs.fill(part.component) * share)[:share]
        spans.append(Span(text, STYLES.get(part.component, Style.OTHER)))
    return [*spans, Span(right)]


def letter(at: int) -> str:
    """Return the letter of a part, by its place in the ledger."""
    return _LETTERS[at] if at < len(_LETTERS) else "*"


def legend(card: Card, glyphs: Glyphs, *, current: bool) -> list[list[Span]]:
    """Return the parts in words, each with its letter and fill."""
    entries = []
    for at, part in enumerate(shown_parts(card)):
        figure = size(part.bytes) if current else f"({size(part.bytes)})"
        key = Span(f"{letter(at)}{glyphs.fill(part.component)}", STYLES.get(part.component, Style.OTHER))
        entries.append([key, Span(f" {glyphs.shown(part.name)} {figure}")])
    return entries
