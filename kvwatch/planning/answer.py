"""Whether the servers fit: each card as a column that sums to it, each server's pool and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvwatch.cost.weights import rank_weight_bytes
from kvwatch.planning.errors import PlanError
from kvwatch.planning.footprint import Part
from kvwatch.planning.pool import Pool, needed_pool
from kvwatch.planning.question import GgufFile, VllmModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.planning.question import Card, Question, Server

KV_CACHE = "KV cache"
WORKING = "activation, graphs, context"


class Verdict(StrEnum):
    """The answer; nothing is said to fit while a part of it is not known."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one server takes of a card for one thing; None where it is not known."""

    server: str
    part: str
    size_bytes: int | None
    source: str
    """computed, measured, log, files or stated; empty where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAnswer:
    """One card: its rows, with `left_bytes` and `beyond_ceiling_bytes`, sum to its total."""

    card: Card
    rows: tuple[Row, ...]

    @property
    def known_bytes(self) -> int:
        """Return what is known to be taken."""
        return sum(row.size_bytes for row in self.rows if row.size_bytes is not None)

    @property
    def unknown(self) -> tuple[Row, ...]:
        """Return the parts that are not known."""
        return tuple(row for row in self.rows if row.size_bytes is None)

    @property
    def left_bytes(self) -> int:
        """Return what is left under the ceiling, for unknown parts too; negative: so much is missing."""
        return self.card.ceiling_bytes - self.known_bytes

    @property
    def beyond_ceiling_bytes(self) -> int:
        """Return what the ceiling keeps free."""
        return self.card.total_bytes - self.card.ceiling_bytes

    @property
    def verdict(self) -> Verdict:
        """Say whether the card holds all of it."""
        if self.left_bytes < 0:
            return Verdict.DOES_NOT_FIT
        return Verdict.CANNOT_TELL if self.unknown else Verdict.FITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The whole answer; `pools` has one of each server that was asked for."""

    question: Question
    cards: tuple[CardAnswer, ...]
    pools: dict[str, Pool]

    @property
    def verdict(self) -> Verdict:
        """Return the worst verdict of all cards."""
        verdicts = {card.verdict for card in self.cards}
        for verdict in (Verdict.DOES_NOT_FIT, Verdict.CANNOT_TELL):
            if verdict in verdicts:
                return verdict
        return Verdict.FITS

    def card(self, name: str) -> CardAnswer:
        """Return the answer of one card."""
        return next(card for card in self.cards if card.card.name == name)

    def room_bytes(self, server: Server) -> tuple[int, ...]:
        """Return the most that a server's pool may take of each of its cards; 0 where there is no room.

        Parts that are not known need a place in it too. Ranks that share a card share what it leaves.
        """
        pool = self.pools[server.name]
        return tuple(
            max(0, own + self.card(name).left_bytes // server.cards.count(name))
            for own, name in zip(pool.rank_bytes, server.cards, strict=True)
        )


def answer(question: Question) -> Answer:
    """Answer a question; raises PlanError where a part of it contradicts another."""
    pools: dict[str, Pool] = {}
    for server in question.servers:
        if server.asked:
            try:
                pools[server.name] = needed_pool(server)
            except PlanError as error:
                raise PlanError(f"{server.name}: {error}") from error
    rows: dict[str, list[Row]] = {card.name: [] for card in question.cards}
    for server in question.servers:
        pool = pools.get(server.name)
        for rank, card in enumerate(server.cards):
            held = _measured(server) if pool is None else _planned(server, pool.rank_bytes[rank])
            rows[card] += held
    cards = tuple(CardAnswer(card=card, rows=tuple(rows[card.name])) for card in question.cards)
    return Answer(question=question, cards=cards, pools=pools)


def _measured(server: Server) -> Iterator[Row]:
    """Yield what a server holds that stays as it is."""
    footprint = server.footprint
    if footprint is None:
        raise PlanError(f"{server.name}: neither a model with length and concurrency nor a measurement")
    if footprint.kv_bytes is not None:
        yield Row(server=server.name, part=KV_CACHE, size_bytes=footprint.kv_bytes, source=footprint.source)
    parts = footprint.beside_pool() or (
        Part(name="all that it holds", size_bytes=footprint.total_bytes, source=footprint.source),
    )
    for part in parts:
        yield _row(server, part)


def _planned(server: Server, pool_bytes: int) -> Iterator[Row]:
    """Yield the pool that is asked for, and what was measured beside an earlier one, if it was."""
    yield Row(server=server.name, part=KV_CACHE, size_bytes=pool_bytes, source="computed")
    measured = None if server.footprint is None else server.footprint.beside_pool()
    if measured is not None:
        for part in measured:
            yield _row(server, part)
        return
    weights, source = weights_of(server)
    yield _row(server, Part(name="weights", size_bytes=weights, source=source))
    yield _row(server, Part(name=WORKING, size_bytes=server.working_bytes, source="stated"))


def _row(server: Server, part: Part) -> Row:
    source = "" if part.size_bytes is None else part.source
    return Row(server=server.name, part=part.name, size_bytes=part.size_bytes, source=source)


def weights_of(server: Server) -> tuple[int | None, str]:
    """Return the weights of one rank and where the figure is from; None where the files do not settle it."""
    if server.weights_bytes is not None:
        return server.weights_bytes, "stated"
    model = server.model
    if isinstance(model, GgufFile):
        return _gguf_weights(model), "files"
    if not isinstance(model, VllmModel) or model.weights is None:
        return None, ""
    options = model.options
    weights = rank_weight_bytes(
        model.weights,
        tensor_parallel=options.tensor_parallel,
        pipeline_parallel=options.pipeline_parallel,
        engine_dtype=_engine_dtype(model),
    )
    return weights, "files"


def _engine_dtype(model: VllmModel) -> str | None:
    """Return the dtype that the weights are loaded in; None where that is not the one they are stored in."""
    if model.options.dtype != "auto":
        return model.options.dtype
    # `auto` serves a float32 checkpoint in 16 bits (`model_element_bytes`).
    return None if model.spec.dtype in ("float32", "float") else model.spec.dtype


def _gguf_weights(model: GgufFile) -> int | None:
    """Return what goes onto the card with all layers: all but the inputs, and a copy of a tied embedding."""
    weights = model.weights
    if weights is None or (weights.tied_output and model.embedding_bytes is None):
        return None
    copy = (model.embedding_bytes or 0) if weights.tied_output else 0
    return weights.total_bytes - weights.input_bytes + copy
