"""An answer as plain values for JSON; null is not known."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvwatch.planning.agreement import agreement_of
from kvwatch.planning.headroom import headroom_of
from kvwatch.planning.levers import levers_of
from kvwatch.planning.setting import setting_of

if TYPE_CHECKING:
    from kvwatch.planning.answer import Answer, CardAnswer
    from kvwatch.planning.question import Server


def plan_document(answer: Answer) -> dict[str, Any]:
    """Return verdict, cards and servers."""
    return {
        "verdict": _word(answer.verdict),
        "cards": [_card(card) for card in answer.cards],
        "servers": [_server(answer, server) for server in answer.question.servers],
    }


def _card(card: CardAnswer) -> dict[str, Any]:
    return {
        "name": card.card.name,
        "verdict": _word(card.verdict),
        "total_bytes": card.card.total_bytes,
        "ceiling_ratio": card.card.ceiling_ratio,
        "ceiling_bytes": card.card.ceiling_bytes,
        "known_bytes": card.known_bytes,
        "left_bytes": card.card.total_bytes - card.known_bytes,
        "left_under_ceiling_bytes": card.left_bytes,
        "rows": [
            {"server": row.server, "part": row.part, "bytes": row.size_bytes, "from": row.source or None}
            for row in card.rows
        ],
    }


def _server(answer: Answer, server: Server) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": server.name,
        "cards": list(server.cards),
        "length_tokens": server.length_tokens,
        "concurrency": server.concurrency,
        "headroom": _without_name(headroom_of(answer, server)),
    }
    pool = answer.pools.get(server.name)
    if pool is None:
        return document
    setting, agreement = setting_of(answer, server), agreement_of(server)
    return {
        **document,
        "pool_bytes": list(pool.rank_bytes),
        "bytes_per_token": pool.token_bytes,
        "blocks": None if pool.blocks is None else asdict(pool.blocks),
        "context_tokens": None if pool.slots is None else pool.slots.n_ctx,
        "pin_bytes": setting.pin_bytes,
        "share": setting.share_ratio,
        "most_share": setting.most_share_ratio,
        "lines": list(setting.lines),
        "measured_pool": None if agreement is None else _without_name(agreement),
        "levers": [
            {**_without_name(lever), "verdict": None if lever.verdict is None else _word(lever.verdict)}
            for lever in levers_of(answer, server)
        ],
    }


def _without_name(value: Any) -> dict[str, Any]:
    """Return a value's fields without the server's name, which stands above them."""
    fields = asdict(value)
    del fields["server"]
    return fields


def _word(verdict: str) -> str:
    """Return a verdict as one word: fits, does_not_fit, cannot_tell."""
    return str(verdict).replace(" ", "_")
