"""Cards: as one line each, or with the legend of their ledger, or with all that is known. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.top.bars import ledger_bar, legend
from kvwatch.top.cells import Line, Span, Style, clip, line, pad, width
from kvwatch.top.paper import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.top.paper import Paper
    from kvwatch.top.views import Card

_BAR_AT_LEAST = 10
_WITHOUT_LEGEND = 2
"""Lines of a card: its name, its bar."""


def compact(card: Card, paper: Paper) -> Line:
    """Return a card as one line."""
    name = pad(card.label, 6)
    if card.divided:
        return line((name, Style.TITLE), "  divided by MIG: each instance is a card of its own")
    figures = _free(card, paper)
    bar = paper.cells - width(name) - width(figures) - 3
    if not card.parts or bar < _BAR_AT_LEAST:
        return line((name, Style.TITLE), f"  {figures}")
    return line(
        (name, Style.TITLE), " ", *ledger_bar(card, bar, paper.glyphs, current=paper.current), f"  {figures}"
    )


def _free(card: Card, paper: Paper) -> str:
    """Return what is free of a card; the same width whatever the figures are."""
    if card.total_bytes is None and card.free_bytes is None:
        return f"memory unknown: {paper.shown(card.why)}"
    return f"{paper.figure(card.free_bytes, size):>10} free of {paper.figure(card.total_bytes, size)}"


def full(card: Card, paper: Paper) -> list[Line]:
    """Return a card with its ledger's legend."""
    name = paper.shown(card.name) if card.name is not None else "name unknown"
    if card.divided:
        return [
            line(
                (card.label, Style.TITLE),
                f"  {name}  divided by MIG: each instance is a card of its own",
            )
        ]
    dot = f" {paper.glyphs.dot} "
    facts = [_free(card, paper).strip()]
    claim = _claimed(card, paper)
    lines = [line((card.label, Style.TITLE), f"  {name}{dot}", dot.join(facts), *claim)]
    if not card.parts:
        why = f"Where its memory went is unknown: {card.why}."
        return [*lines, *paper.paragraph(why, Style.UNKNOWN, indent="  ")]
    lines.append(Line(tuple(ledger_bar(card, paper.cells, paper.glyphs, current=paper.current))))
    lines += _flowed(legend(card, paper.glyphs, current=paper.current), paper.cells)
    if card.excess_bytes:
        text = (
            f"The parts exceed the card by {size(card.excess_bytes)}: shared memory counts for each process."
        )
        lines += paper.paragraph(text, Style.WARN, indent="  ")
    return lines


def _claimed(card: Card, paper: Paper) -> list[Span]:
    """Return what the card's servers claim together, beside the limit."""
    if card.claimed_ratio is None:
        return []
    limit = card.limit_ratio
    over = limit is not None and card.claimed_ratio > limit
    text = f" {paper.glyphs.dot} claims {paper.figure(card.claimed_ratio, percent)}"
    if limit is not None:
        text += f" of {percent(limit)}"
    return [Span(f"{text} OVER" if over else text, Style.BAD if over else Style.PLAIN)]


def _flowed(entries: Sequence[list[Span]], cells: int) -> list[Line]:
    """Return the entries of a legend side by side, as many as a line has room for."""
    lines: list[list[Span]] = [[]]
    for entry in entries:
        taken = sum(width(span.text) for span in lines[-1])
        needed = sum(width(span.text) for span in entry)
        if lines[-1] and taken + 2 + needed > cells:
            lines.append([])
        if lines[-1]:
            lines[-1].append(Span("  "))
        lines[-1] += entry
    return [Line(tuple(spans)) for spans in lines if spans]


def everything(card: Card, paper: Paper) -> list[Line]:
    """Return all that is known of a card."""
    lines = full(card, paper)
    lines.append(line((f"  {paper.shown(card.uuid)}", Style.DIM)))
    if card.divided:
        return lines
    if card.claimed_ratio is None and card.claims:
        lines += paper.paragraph("What its servers claim together is unknown.", Style.UNKNOWN, indent="  ")
    lines += [one for claim in card.claims for one in paper.paragraph(f"claim  {claim}", indent="  ")]
    lines += [one for process in card.processes for one in paper.paragraph(f"PID {process}", indent="  ")]
    if card.processes_why:
        lines += paper.paragraph(
            f"The list of processes is incomplete: {card.processes_why}.", Style.UNKNOWN, indent="  "
        )
    elif not card.processes:
        lines.append(line("  no process holds memory here"))
    return lines


def section(cards: Sequence[Card], why: str, paper: Paper, rows: int) -> list[Line]:
    """Return the cards in at most `rows` lines: with legends while there is room, then one line each."""
    if not cards:
        return paper.paragraph(f"No card: {why}.", Style.UNKNOWN)[:rows]
    details = [full(card, paper) for card in cards]
    # Legends from the first card on, as long as every later one keeps its line.
    lines: list[Line] = []
    for at, (card, detail) in enumerate(zip(cards, details, strict=True)):
        left = rows - len(lines)
        later = len(cards) - at - 1
        if left == 1 and later:
            lines.append(
                line((clip(f"{paper.glyphs.cut} {later + 1} more cards: c", paper.cells, ""), Style.DIM))
            )
            break
        if left <= 0:
            break
        fitting = (shape for shape in (detail, detail[:_WITHOUT_LEGEND]) if len(shape) + later <= left)
        lines += next(fitting, [compact(card, paper)])
    return lines


def wanted(cards: Sequence[Card], paper: Paper) -> int:
    """Return the lines that all cards take with their legends."""
    return sum(len(full(card, paper)) for card in cards) or 1
