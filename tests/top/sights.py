"""Feeds and screens for the tests of the layout: real documents, fixed clocks."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvwatch.document import snapshot_document
from kvwatch.top.feed import Feed, Moment
from kvwatch.top.glyphs import UNICODE
from kvwatch.top.keys import State, press
from kvwatch.top.screen import Screen, screen_of
from kvwatch.top.snapshot_view import view_of
from tests import snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.top.glyphs import Glyphs

_DOCUMENTS = Path(__file__).parent / "documents"


def rush() -> dict[str, Any]:
    """Return what `kvwatch demo` answered in the middle of its noon."""
    document: dict[str, Any] = json.loads((_DOCUMENTS / "rush.json").read_text(encoding="utf-8"))
    return document


def unknown() -> dict[str, Any]:
    """Return a snapshot of sources that answered and said nothing, and of one that did not answer."""
    return snapshot_document(snapshots.unknown())


def fleet(servers: int = 64, cards: int = 8) -> dict[str, Any]:
    """Return a snapshot of many servers, all with room but the fifth by name, whose queue is long."""
    known = snapshots.known()
    chat, card = known.servers[0], known.devices[0]
    calm = snapshots.FIT
    ranks = [
        replace(rank, full=replace(calm, now=2, guaranteed=2, headroom=1, bound_by=None))
        for rank in chat.ranks
    ]
    names = [f"chat-{number:02}" for number in range(servers)]
    return snapshot_document(
        replace(
            known,
            servers=tuple(
                replace(
                    chat,
                    target=replace(chat.target, name=name),
                    ranks=chat.ranks if name == "chat-05" else tuple(ranks),
                )
                for name in names
            ),
            devices=tuple(
                replace(card, reading=replace(card.reading, uuid=f"GPU-{number}", index=number))
                for number in range(cards)
            ),
            findings=tuple(replace(finding, server="chat-05") for finding in known.findings),
        )
    )


def feed_of(document: dict[str, Any]) -> tuple[Feed, Moment]:
    """Return a feed with one fresh snapshot, and the moment after it."""
    now = Moment(monotonic=100.0, unix=document.get("taken_at", 5000.0) + 1, zone=UTC)
    feed = Feed(origin="http://127.0.0.1:9836", refresh_seconds=1.0).with_view(view_of(document), now)
    return feed, replace(now, monotonic=101.0)


def screen(
    document: dict[str, Any],
    *,
    cells: int = 80,
    rows: int = 24,
    keys: Sequence[str] = (),
    glyphs: Glyphs = UNICODE,
    silent: bool = False,
) -> Screen:
    """Return the screen of a document after some keys; `silent`: 40 s after the daemon has gone."""
    feed, now = feed_of(document)
    if silent:
        gone = replace(now, unix=now.unix + 2, monotonic=now.monotonic + 2)
        feed = feed.with_failure("kvwatch does not answer (unreachable: Connection refused)", gone)
        now = replace(gone, unix=gone.unix + 38, monotonic=gone.monotonic + 38)
    state = State()
    for key in keys:
        state = press(state, key, screen_of(feed, state, now, glyphs, cells=cells, rows=rows))
    return screen_of(feed, state, now, glyphs, cells=cells, rows=rows)


def text_of(shown: Screen) -> str:
    """Return a screen as text, without the spaces at the ends of its lines."""
    return "".join(f"{line.text.rstrip()}\n" for line in shown.lines)
