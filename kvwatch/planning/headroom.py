"""What the rest of the cards would buy: requests, tokens, lengths of each server, each alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.planning.pool import held_by, longest_length

if TYPE_CHECKING:
    from kvwatch.planning.answer import Answer
    from kvwatch.planning.question import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What one server could take of what is left; negative figures say what is too much.

    Attributes:
        exact: False: parts that are not known need some of it, so these are upper bounds.
        bytes: left for it on its fullest card, under the ceiling.
        token_bytes: what one more token takes, by its files or, for one that was only measured, as printed.
        tokens: how many that buys.
        requests: of its length, as many more.
        most_requests: of its length, altogether.
        longest_tokens: the greatest length of which the requests asked for fit.

    """

    server: str
    exact: bool
    bytes: int
    token_bytes: float | None = None
    tokens: int | None = None
    requests: int | None = None
    most_requests: int | None = None
    longest_tokens: int | None = None


def headroom_of(answer: Answer, server: Server) -> Headroom:
    """Return what the rest buys a server."""
    cards = [answer.card(name) for name in server.cards]
    left = min(card.left_bytes for card in cards)
    exact = not any(card.unknown for card in cards)
    if not server.asked:
        return _of_measured(server, left, exact=exact)
    pool = answer.pools[server.name]
    if not pool.pin_bytes:
        return Headroom(server=server.name, exact=exact, bytes=left)
    room = answer.room_bytes(server)
    most = held_by(server, room)
    return Headroom(
        server=server.name,
        exact=exact,
        bytes=left,
        token_bytes=pool.token_bytes or None,
        tokens=int(left / pool.token_bytes) if pool.token_bytes and left > 0 else None,
        requests=most - (server.concurrency or 0),
        most_requests=most,
        longest_tokens=longest_length(server, room),
    )


def _of_measured(server: Server, left: int, *, exact: bool) -> Headroom:
    token_bytes = None if server.footprint is None else server.footprint.token_bytes
    tokens = None if token_bytes is None or left < 0 else int(left / token_bytes)
    length = server.length_tokens
    return Headroom(
        server=server.name,
        exact=exact,
        bytes=left,
        token_bytes=token_bytes,
        tokens=tokens,
        requests=None if tokens is None or length is None else tokens // length,
    )
