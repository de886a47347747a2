"""Notes on what is not known, and which option would settle it: at most one for each kind of gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.check.rule import Hit
from kvwatch.findings.words import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.check.declaration import DeclaredServer
    from kvwatch.check.evidence import Evidence


def unknown_placement(evidence: Evidence) -> Iterator[Hit]:
    """Find servers of which nothing says on which card they run."""
    servers = [
        server
        for server in evidence.declaration.servers
        if server.cards is None and server.launch.device != "none"
    ]
    if servers:
        yield _note(
            servers,
            f"on which card {_are(servers, 'runs')} is not known, so nothing is said about the card: its"
            f" shares, its pins, its neighbours. Say it with --card NAME=SIZE:{servers[0].name}.",
        )


def unknown_card_size(evidence: Evidence) -> Iterator[Hit]:
    """Find cards whose memory is not known."""
    cards = [
        card
        for card in evidence.declaration.cards
        if card.total_bytes is None and evidence.declaration.on(card.name)
    ]
    if not cards:
        return
    servers = list(evidence.declaration.on(cards[0].name))
    names = listed([card.title for card in cards])
    yield Hit(
        message=(
            f"the memory of {names} is not known, so pins are not compared with it and no pool is worked out"
            f" from a share. Say it with --card {cards[0].name}=SIZE, as in 80GiB or 46068MiB."
        ),
        place=servers[0].place,
        card=cards[0].name if len(cards) == 1 else None,
        servers=tuple(server.name for server in servers),
    )


def unknown_model(evidence: Evidence) -> Iterator[Hit]:
    """Find servers whose model file was not read, or whose cost no rule knows."""
    servers = [(server, sizing.why) for server, sizing in evidence.vllm() if sizing.why is not None]
    servers += [(server, sizing.why) for server, sizing in evidence.llamacpp() if sizing.why is not None]
    if not servers:
        return
    named: dict[str, list[str]] = {}
    for server, why in servers:
        named.setdefault(why, []).append(server.name)
    whys = "; ".join(f"{listed(names)}: {why}" for why, names in named.items())
    missing = [server for server, _ in servers if server.model is None]
    told = not missing or "--model" in whys
    settle = "" if told else f" Give its files with --model {missing[0].name}=PATH."
    yield _note(
        [server for server, _ in servers],
        f"what a request costs is not known of {listed([server.name for server, _ in servers])} ({whys}), so"
        f" nothing is said about the smallest pool, the longest request or the worst case.{settle}",
    )


def unknown_claim(evidence: Evidence) -> Iterator[Hit]:
    """Find cards of which a server's claim is not even bounded, though others stand beside it."""
    for card in evidence.declaration.cards:
        claims = evidence.claims[card.name]
        missing = [claim for claim in claims if claim.ratio is None]
        if not missing or len(claims) < 2 or card.total_bytes is None:  # noqa: PLR2004 - others beside it
            continue
        servers = {server.name: server for server in evidence.declaration.on(card.name)}
        whys = "; ".join(f"{claim.server}: {claim.why}" for claim in missing)
        yield Hit(
            message=(
                f"what {_are([servers[claim.server] for claim in missing], 'takes')}"
                f" of {card.title} is not known ({whys}), so its sum is a lower bound."
            ),
            place=servers[missing[0].server].place,
            card=card.name,
            servers=tuple(claim.server for claim in missing),
        )


def _are(servers: list[DeclaredServer], verb: str) -> str:
    names = listed([server.name for server in servers])
    return f"{names} {verb if len(servers) == 1 else verb.removesuffix('s')}"


def _note(servers: list[DeclaredServer], message: str) -> Hit:
    return Hit(message=message, place=servers[0].place, servers=tuple(server.name for server in servers))
