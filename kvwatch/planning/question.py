"""What is asked: cards, and the servers that are or shall be on them. Pure values, None = not known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.cost.llamacpp import LlamaModel, LlamaOptions
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm import VllmOptions
    from kvwatch.cost.weights import GgufWeights, WeightBytes
    from kvwatch.planning.footprint import Footprint

DEFAULT_CEILING = 0.95
"""The part of a card that all its servers together may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU or MIG instance."""

    name: str
    total_bytes: int
    ceiling_ratio: float = DEFAULT_CEILING

    @property
    def ceiling_bytes(self) -> int:
        """Return what all servers together may take."""
        return int(self.total_bytes * self.ceiling_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmModel:
    """A model that vLLM shall serve; `options.max_model_len` and `max_num_seqs` are set by the question."""

    spec: ModelSpec
    options: VllmOptions
    weights: WeightBytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A model that llama-server shall serve, all its layers on one card."""

    llama: LlamaModel
    options: LlamaOptions
    weights: GgufWeights | None = None
    embedding_bytes: int | None = None
    """Of its token embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that is on the cards (measured), shall be (a model with length and concurrency), or both.

    Attributes:
        cards: one for each rank, in their order.
        length_tokens: the longest request, prompt and answer together.
        concurrency: requests of that length that shall be held at once.
        weights_bytes: of one rank, where the question states them; `working_bytes`: activations, graphs and
            context likewise.
        footprint: what it held when it was measured, of one rank.

    """

    name: str
    cards: tuple[str, ...]
    model: VllmModel | GgufFile | None = None
    model_name: str | None = None
    length_tokens: int | None = None
    concurrency: int | None = None
    weights_bytes: int | None = None
    working_bytes: int | None = None
    footprint: Footprint | None = None

    @property
    def asked(self) -> bool:
        """Say whether a pool is to be found for it; otherwise it stays as it was measured."""
        return self.model is not None and self.length_tokens is not None and self.concurrency is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whether these servers fit these cards."""

    cards: tuple[Card, ...]
    servers: tuple[Server, ...]
