"""What files declare: servers, and the cards they are meant to run on. Pure values, None = not stated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.flags.launch import Launch
    from kvwatch.plan import GgufModel, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something stands; `line` starts at 1 and is None where the format keeps no lines."""

    file: str
    """As it was given on the command line."""
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """A rule that the file asks to leave out for what stands near it, with the reason it gives."""

    rule: str
    reason: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredServer:
    """One server that a file would start.

    Attributes:
        name: unique in a run; a compose service, a manifest's `name/container`, a unit, else the file's stem.
        place: where its command starts.
        places: field of `Launch` -> where it is set; a field that is not here is not set in any file. An
            option that no field stands for is there by its name: `--max-lora-rank`.
        version: the engine's release, as an image's tag or a pinned requirement states it: (0, 11, 0) for
            vLLM, (11434,) for a llama.cpp build.
        model: its model file, where it is on this machine and can be read; else `model_detail` says why not.
        cards: names of cards, one for each rank; None where nothing says which.
        replicas: how many such servers start on the same cards; 1 where each has its own node.
        profiles: compose's: it starts only where one of them is asked for; without any it always does.
        unresolved: variables and templates that no file settles, `${MODEL_LEN}`: what they set is unknown.
        measured_bytes: what the server's processes hold besides its pool, where a measurement says so.

    """

    name: str
    place: Place
    launch: Launch
    places: Mapping[str, Place] = field(default_factory=dict)
    version: tuple[int, ...] | None = None
    model: Model | GgufModel | None = None
    model_detail: str | None = None
    cards: tuple[str, ...] | None = None
    replicas: int = 1
    profiles: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    measured_bytes: int | None = None
    ignores: tuple[Ignore, ...] = ()

    def where(self, *fields: str) -> Place:
        """Return where the first of the fields is set, else where the command starts."""
        return next((self.places[name] for name in fields if name in self.places), self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU or MIG instance; servers refer to it by name.

    Attributes:
        name: `host/0`, a UUID, or as `--card` calls it.
        total_bytes: its memory; None where no option and no daemon says it.
        display: whether something draws on it; None = unknown.
        share_limit_ratio: the part of it that all servers together may claim.

    """

    name: str
    total_bytes: int | None = None
    display: bool | None = None
    share_limit_ratio: float = 0.95

    @property
    def title(self) -> str:
        """Return its name for a sentence: an index alone says too little."""
        return f"GPU {self.name}" if self.name.isdecimal() else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a file says and could not be read: a template, a document of no known kind, a broken line."""

    place: Place
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Everything that the files of one run declare."""

    servers: tuple[DeclaredServer, ...]
    cards: tuple[Card, ...]
    problems: tuple[Problem, ...] = ()

    def on(self, card: str) -> tuple[DeclaredServer, ...]:
        """Return the servers that have a rank on a card, in the order of the files."""
        return tuple(server for server in self.servers if server.cards is not None and card in server.cards)
