"""What the rules look at: what the files declare, and what follows of it by the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.check.claims import claims_on
from kvwatch.check.slot_sizing import size_slots
from kvwatch.check.vllm_sizing import size_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvwatch.check.claims import Claim
    from kvwatch.check.declaration import Card, Declaration, DeclaredServer
    from kvwatch.check.slot_sizing import SlotSizing
    from kvwatch.check.vllm_sizing import BlockSizing


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is known before a start; worked out once for all rules."""

    declaration: Declaration
    blocks: Mapping[str, BlockSizing]
    """vLLM servers by name."""
    slots: Mapping[str, SlotSizing]
    """llama-servers by name."""
    claims: Mapping[str, tuple[Claim, ...]]
    """By card."""

    def vllm(self) -> Iterator[tuple[DeclaredServer, BlockSizing]]:
        """Yield the vLLM servers in the order of the files."""
        for server in self.declaration.servers:
            if server.name in self.blocks:
                yield server, self.blocks[server.name]

    def llamacpp(self) -> Iterator[tuple[DeclaredServer, SlotSizing]]:
        """Yield the llama-servers in the order of the files."""
        for server in self.declaration.servers:
            if server.name in self.slots:
                yield server, self.slots[server.name]

    def cards_of(self, server: DeclaredServer) -> tuple[Card, ...]:
        """Return the cards of a server's ranks, each once."""
        wanted = server.cards or ()
        return tuple(card for card in self.declaration.cards if card.name in wanted)


def gather(declaration: Declaration) -> Evidence:
    """Work out what the rules need."""
    cards = {card.name: card for card in declaration.cards}
    blocks: dict[str, BlockSizing] = {}
    slots: dict[str, SlotSizing] = {}
    for server in declaration.servers:
        total = smallest_total([cards.get(name) for name in server.cards or ()])
        if server.launch.engine == "vllm":
            blocks[server.name] = size_blocks(server, total)
        elif server.launch.engine == "llamacpp":
            slots[server.name] = size_slots(server)
    return Evidence(
        declaration=declaration,
        blocks=blocks,
        slots=slots,
        claims={
            card.name: claims_on(card, declaration.on(card.name), blocks, slots) for card in declaration.cards
        },
    )


def smallest_total(cards: list[Card | None]) -> int | None:
    """Return the memory of the smallest card, by which all ranks size their pools; None if one is unknown."""
    totals = [None if card is None else card.total_bytes for card in cards]
    known = [total for total in totals if total is not None]
    return min(known) if known and len(known) == len(totals) else None
