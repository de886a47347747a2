"""Tell the cards of a run from what files say, `--card` and a running daemon. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Card, DeclaredServer, Place, Problem
from kvwatch.check.reading.cards import world_size
from kvwatch.flags import vllm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.check.reading.live import LiveCard
    from kvwatch.check.reading.settle import Settled

_OPTION = Place(file="--card")
_DEFAULT_LIMIT = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOption:
    """`--card NAME=SIZE[:server,...]`; `servers` empty where none are named."""

    name: str
    total_bytes: int
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Servers on their cards, the cards, and what could not be told."""

    servers: tuple[DeclaredServer, ...]
    cards: tuple[Card, ...]
    problems: tuple[Problem, ...]


def lay_out(
    settled: Sequence[Settled],
    options: Sequence[CardOption],
    live: Sequence[LiveCard],
    share_limit_ratio: float | None,
) -> Board:
    """Place every server that something places; the others have no cards."""
    layout = _Layout(settled, options, live)
    servers = layout.servers()
    names = dict.fromkeys([name for server in servers for name in server.cards or ()])
    names |= dict.fromkeys(option.name for option in options)
    names |= dict.fromkeys(card.name for card in live)
    sizes: dict[str, int | None] = {card.name: card.total_bytes for card in live}
    sizes |= {option.name: option.total_bytes for option in options}
    limit = _DEFAULT_LIMIT if share_limit_ratio is None else share_limit_ratio
    cards = tuple(Card(name=name, total_bytes=sizes.get(name), share_limit_ratio=limit) for name in names)
    return Board(servers=tuple(servers), cards=cards, problems=tuple(layout.problems))


class _Layout:
    def __init__(
        self, settled: Sequence[Settled], options: Sequence[CardOption], live: Sequence[LiveCard]
    ) -> None:
        self.settled = settled
        self.options = options
        self.problems: list[Problem] = []
        self.uuids: Mapping[str, str] = {card.uuid: card.name for card in live}
        self.listed = self._listed()
        self.only = self._only(live)
        self.renamed = self._renamed()

    def servers(self) -> list[DeclaredServer]:
        """Return the servers with their cards."""
        return [replace(one.server, cards=self._cards(one)) for one in self.settled]

    def _listed(self) -> dict[str, tuple[str, ...]]:
        """Return the cards of the servers that `--card` names."""
        found: dict[str, tuple[str, ...]] = {}
        for option in self.options:
            for wanted in option.servers:
                names = [one.server.name for one in self.settled if _is_called(one, wanted)]
                if len(names) != 1:
                    what = "several servers are" if names else "no server is"
                    known = ", ".join(one.server.name for one in self.settled[:8]) or "none"
                    message = f"{what} called {wanted!r:.60}; the files have {known}"
                    self.problems.append(Problem(place=_OPTION, message=message))
                    continue
                found[names[0]] = (*found.get(names[0], ()), option.name)
        return found

    def _only(self, live: Sequence[LiveCard]) -> str | None:
        """Return the one card that there is; None where there are several or none."""
        if len(self.options) == 1 and not self.options[0].servers:
            return self.options[0].name
        return live[0].name if not self.options and len(live) == 1 else None

    def _renamed(self) -> dict[str, str]:
        """Return the name of the only card for the one index that the files call it by."""
        names = {name for one in self.settled for name in one.placement.cards or ()}
        if self.only is None or not names or self.only in names:
            return {}
        if len(names) == 1:
            return {names.pop(): self.only}
        shown = ", ".join(sorted(names)[:8])
        example = min(names)
        message = f"the files name several cards ({shown}); give each its own, such as --card {example}=SIZE"
        self.problems.append(Problem(place=_OPTION, message=message))
        return {}

    def _cards(self, one: Settled) -> tuple[str, ...] | None:
        server, placement = one.server, one.placement
        if server.name in self.listed:
            return self.listed[server.name]
        if placement.cards is not None:
            named = (self.uuids.get(name, name) for name in placement.cards)
            return tuple(self.renamed.get(name, name) for name in named)
        if placement.own:
            owners = [other for other in self.settled if other.placement.own]
            if placement.own == 1 and self.only is not None and len(owners) == 1:
                return (self.only,)
            return tuple(f"{server.name}/gpu{index}" for index in range(placement.own))
        ranks = world_size(server.launch) if server.launch.engine == vllm.ENGINE else 1
        if placement.why is None and self.only is not None and ranks in (1, None):
            return (self.only,)
        if self.only is not None and server.launch.engine != vllm.ENGINE:
            # It uses every device, and there is one.
            return (self.only,)
        why = placement.why
        if self.only is not None and why is None:
            why = f"it has {ranks} ranks, and there is one card"
        if why is not None:
            message = f"the cards of {server.name} are not known: {why}"
            self.problems.append(Problem(place=server.place, message=message))
        return None


def _is_called(one: Settled, wanted: str) -> bool:
    """Say whether a server has a name: its own, a part of it (`chat` of `chat/vllm`), or a model's."""
    own = one.server.name
    served = one.server.launch.served_names or ()
    return wanted == own or wanted in own.split("/") or wanted in served
