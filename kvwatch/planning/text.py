"""An answer as text that teaches: the card as a column, each pool as arithmetic, what to put, the levers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.planning.agreement import agreement_of
from kvwatch.planning.answer import Verdict
from kvwatch.planning.headroom import headroom_of
from kvwatch.planning.levers import levers_of
from kvwatch.planning.pool_text import agreement_sentences, pool_sentences
from kvwatch.planning.question import VllmModel
from kvwatch.planning.setting import setting_of
from kvwatch.startup_log.paragraphs import block, printable, wrapped
from kvwatch.table import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvwatch.planning.answer import Answer, CardAnswer
    from kvwatch.planning.headroom import Headroom
    from kvwatch.planning.levers import Lever
    from kvwatch.planning.question import Server

_MIB = 1 << 20
_UNKNOWN = "?"


def render_plan(answer: Answer) -> str:
    """Return the whole answer; `?` stands for what is not known, never for zero."""
    paragraphs = [_headline(answer)]
    paragraphs += [_card(cards) for cards in _alike(answer.cards)]
    for server in answer.question.servers:
        paragraphs += _server(answer, server)
    rest = [headroom_of(answer, server) for server in answer.question.servers if not server.asked]
    paragraphs += _rest(rest)
    return "\n\n".join(paragraphs) + "\n"


def _alike(cards: Sequence[CardAnswer]) -> list[list[CardAnswer]]:
    """Return the cards in groups of the same size with the same on them: they are told once."""
    groups: list[list[CardAnswer]] = []
    for card in cards:
        for group in groups:
            if replace(card.card, name="") == replace(group[0].card, name="") and card.rows == group[0].rows:
                group.append(card)
                break
        else:
            groups.append([card])
    return groups


def _names(cards: Sequence[CardAnswer]) -> str:
    return ", ".join(card.card.name for card in cards) + (", each" if len(cards) > 1 else "")


def mebibytes(number: int) -> str:
    """Return bytes as nvidia-smi counts them, to a tenth of a MiB."""
    return f"{number / _MIB:,.1f}"


def _headline(answer: Answer) -> str:
    sentences = []
    for cards in _alike(answer.cards):
        card, name, left = cards[0], _names(cards), abs(cards[0].left_bytes)
        if card.verdict is Verdict.FITS:
            sentences.append(f"{name}: fits, {mebibytes(left)} MiB are left under the ceiling.")
        elif card.verdict is Verdict.DOES_NOT_FIT:
            what = "what is known alone is" if card.unknown else "it is"
            sentences.append(f"{name}: does not fit, {what} {mebibytes(left)} MiB more than the ceiling.")
        else:
            parts = "; ".join(dict.fromkeys(f"{row.part} of {row.server}" for row in card.unknown))
            sentences.append(
                f"{name}: cannot tell. At most {mebibytes(left)} MiB are left for what is not known: {parts}."
            )
    title = {
        Verdict.FITS: "It fits.",
        Verdict.DOES_NOT_FIT: "It does not fit.",
        Verdict.CANNOT_TELL: "Cannot tell: start each server once, and name its log (--log) or what it"
        " holds (--measured).",
    }
    return block(title[answer.verdict], sentences)


def _card(cards: Sequence[CardAnswer]) -> str:
    """Return the column of cards that are alike; its figures are rounded so that they add up."""
    card = cards[0]
    total = card.card.total_bytes
    ends = [
        ("", "left under the ceiling" if card.left_bytes >= 0 else "missing", card.left_bytes, ""),
        ("", f"above the ceiling of {card.card.ceiling_ratio:g}", card.beyond_ceiling_bytes, ""),
    ]
    entries = [*((row.server, row.part, row.size_bytes, row.source) for row in card.rows), *ends]
    figures = summing([number for _, _, number, _ in entries])
    rows = [("SERVER", "PART", "MIB", "OF CARD", "FROM")]
    for (server, part, number, source), figure in zip(entries, figures, strict=True):
        share = _UNKNOWN if number is None else f"{100 * number / total:.1f} %"
        rows.append((server, part, figure, share, source))
    rows.append(("", "the card", mebibytes(total), "100.0 %", ""))
    taken = card.known_bytes
    head = (
        f"{'Card' if len(cards) == 1 else 'Cards'} {_names(cards)} of {mebibytes(total)} MiB,"
        f" ceiling {mebibytes(card.card.ceiling_bytes)} MiB"
    )
    known = " that are known" if card.unknown else ""
    note = (
        f"{mebibytes(total)} - {mebibytes(taken)}{known} = {mebibytes(total - taken)} MiB;"
        f" under the ceiling {mebibytes(card.card.ceiling_bytes)} - {mebibytes(taken)} ="
        f" {mebibytes(card.left_bytes)}."
    )
    return "\n".join([head, *columns(rows), *wrapped([note])])


def summing(numbers: Sequence[int | None]) -> list[str]:
    """Return figures in tenths of MiB whose sum is that of the bytes, each within a tenth of its own."""
    figures: list[str] = []
    exact = shown = 0
    for number in numbers:
        if number is None:
            figures.append(_UNKNOWN)
            continue
        exact += number
        upto = round(exact * 10 / _MIB)
        figures.append(f"{(upto - shown) / 10:,.1f}")
        shown = upto
    return figures


def _server(answer: Answer, server: Server) -> Iterator[str]:
    if not server.asked:
        return
    model = printable(server.model_name or "")
    title = f"{server.name}: {_asked(server)}" + (f" of {model}" if model else "")
    yield block(title, list(pool_sentences(answer, server)))
    agreement = agreement_of(server)
    if agreement is not None:
        yield block("The measured pool, by the model's files", list(agreement_sentences(agreement)))
    setting = setting_of(answer, server)
    if setting.lines:
        what = "Put into its configuration" if isinstance(server.model, VllmModel) else "Start it with"
        lines = [f"  {line}" for line in setting.lines]
        yield "\n".join([what, *lines, *wrapped(setting.remarks)])
    yield block("Headroom", list(_headroom(headroom_of(answer, server), server)))
    levers = levers_of(answer, server)
    if levers:
        yield _levers(levers)


def _asked(server: Server) -> str:
    count = server.concurrency or 0
    requests = "1 request" if count == 1 else f"{count:,} requests"
    return f"{requests} of {server.length_tokens or 0:,} tokens"


def _headroom(found: Headroom, server: Server) -> Iterator[str]:
    at_most = "" if found.exact else "at most "
    most, asked = found.most_requests, server.concurrency or 0
    if most is None:
        yield "A model without a KV cache: memory bounds no number of requests."
        return
    length, amount = f"{server.length_tokens or 0:,} tokens", f"{mebibytes(abs(found.bytes))} MiB"
    if found.bytes >= 0:
        yield f"{amount} are left: {at_most}{most - asked:,} more requests of {length}, {most:,} in all."
    else:
        yield f"{amount} are missing: {at_most}{most:,} requests of {length} fit, not {asked:,}."
    if found.longest_tokens:
        yield f"{asked:,} at once may be {at_most}{found.longest_tokens:,} tokens long."
    elif found.longest_tokens == 0:
        yield f"{asked:,} at once fit at no length."
    if not found.exact:
        yield "What is not known yet takes its part of that."


def _levers(levers: Sequence[Lever]) -> str:
    rows = [("LEVER", "SETTING", "POOL MIB", "SAVES MIB", "SAME BYTES HOLD", "THEN")]
    notes = []
    for lever in levers:
        if lever.refusal is not None:
            rows.append((lever.name, lever.setting, "-", "-", "-", "refused"))
            notes.append(f"{lever.setting}: {lever.refusal}.")
            continue
        rows.append(
            (
                lever.name,
                lever.setting,
                mebibytes(lever.pool_bytes or 0),
                mebibytes(lever.saved_bytes or 0),
                "-" if lever.held is None else f"{lever.held:,} requests",
                str(lever.verdict),
            )
        )
        if lever.remark is not None:
            notes.append(f"{lever.setting}: {lever.remark}.")
    title = "Levers, each alone; pools are of one card, and what they save is left on it"
    return "\n".join([title, *columns(rows), *wrapped(notes)])


def _rest(found: Sequence[Headroom]) -> Iterator[str]:
    """Say what the rest would buy the servers that stay as they were measured."""
    rows: list[tuple[str, ...]] = [("SERVER", "LEFT MIB", "BYTES A TOKEN", "MORE TOKENS", "MORE REQUESTS")]
    for one in found:
        if one.token_bytes is None or one.tokens is None:
            continue
        tokens = ("" if one.exact else "<= ") + f"{one.tokens:,}"
        requests = _UNKNOWN if one.requests is None else f"{one.requests:,}"
        rows.append((one.server, mebibytes(one.bytes), f"{one.token_bytes:,.0f}", tokens, requests))
    if len(rows) > 1:
        yield "\n".join(
            [
                "What the rest under the ceiling would buy, each alone",
                *columns(rows),
                *wrapped(
                    ["Bytes a token are the measured cache over its tokens: as exact as they were printed."]
                ),
            ]
        )
