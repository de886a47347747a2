"""What each server claims of a card before anything runs: a share, a pin with its weights, a measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.check.vllm_sizing import one_rank_a_card, share_bounds
from kvwatch.snapshot import ClaimBasis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.check.declaration import Card, DeclaredServer
    from kvwatch.check.slot_sizing import SlotSizing
    from kvwatch.check.vllm_sizing import BlockSizing


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One server's claim of one card, all its ranks and replicas there together.

    Attributes:
        ratio: of the card; the least that it takes where `exact` is false; None where not even that is known.
        workers: processes of it on the card; each claims the share for itself.
        words: the arithmetic, as `0.92` or `(6.26 GiB pin + 14.99 GiB weights) / 44.99 GiB = 0.47`.
        why: what is not known.

    """

    server: str
    basis: ClaimBasis
    ratio: float | None
    exact: bool
    workers: int
    words: str = ""
    why: str = ""


def claims_on(
    card: Card,
    servers: Sequence[DeclaredServer],
    blocks: Mapping[str, BlockSizing],
    slots: Mapping[str, SlotSizing],
) -> tuple[Claim, ...]:
    """Return the claims of the servers that have a rank on a card."""
    return tuple(
        _vllm(card, server, blocks[server.name])
        if server.name in blocks
        else _other(card, server, slots.get(server.name))
        for server in servers
    )


def known_sum(claims: Sequence[Claim]) -> float:
    """Add up what is known: the least that all take together."""
    return math.fsum(claim.ratio for claim in claims if claim.ratio is not None)


def sum_of_one_profile(claims: Sequence[Claim], servers: Mapping[str, DeclaredServer]) -> float:
    """Return the most that they claim while one compose profile runs at a time: what meets for certain."""
    profiles = {profile for claim in claims for profile in servers[claim.server].profiles}
    return max(
        known_sum(
            [
                claim
                for claim in claims
                if profile in servers[claim.server].profiles or not servers[claim.server].profiles
            ]
        )
        for profile in ("", *profiles)
    )


def is_whole(claims: Sequence[Claim]) -> bool:
    """Tell whether every claim is known exactly."""
    return all(claim.exact and claim.ratio is not None for claim in claims)


def workers_on(card: Card, server: DeclaredServer) -> int:
    """Return how many of a server's ranks, replicas included, are on a card."""
    return (server.cards or ()).count(card.name) * server.replicas


def _vllm(card: Card, server: DeclaredServer, sizing: BlockSizing) -> Claim:
    workers, launch = workers_on(card, server), server.launch
    if launch.pin_bytes is not None:
        return _pinned(card, server, sizing, workers)
    if "pin_bytes" in launch.stated:
        return _unknown(server, ClaimBasis.PIN, workers, "its pin could not be read")
    bounds = share_bounds(launch)
    if bounds is None:
        return _unknown(server, ClaimBasis.SHARE, workers, "its share could not be read")
    low, high = bounds
    each = f"{low:.2f}" if low == high else f"{low:.2f} or {high:.2f} by release, the default"
    if "share_ratio" in launch.defaulted:
        each += " by default"
    return Claim(
        server=server.name,
        basis=ClaimBasis.SHARE,
        ratio=low * workers,
        exact=low == high,
        workers=workers,
        words=each if workers == 1 else f"{workers} x {each}",
    )


def _pinned(card: Card, server: DeclaredServer, sizing: BlockSizing, workers: int) -> Claim:
    """Convert a pin: it sizes the pool alone, what stands beside it takes memory too."""
    pin = server.launch.pin_bytes or 0
    measured = server.measured_bytes if one_rank_a_card(server) else None
    beside, name = (sizing.weights_bytes, "weights") if measured is None else (measured, "measured")
    held = f"{size(pin)} pin" + (f" + {size(beside)} {name}" if beside is not None else "")
    if card.total_bytes is None:
        return _unknown(server, ClaimBasis.PIN, workers, "the card's memory is not known")
    ratio = (pin + (beside or 0)) / card.total_bytes * workers
    times = f"{workers} x " if workers > 1 else ""
    return Claim(
        server=server.name,
        basis=ClaimBasis.PIN,
        ratio=ratio,
        exact=measured is not None,
        workers=workers,
        words=f"{times}({held}) / {size(card.total_bytes)} = {ratio:.2f}",
        why="" if measured is not None else "what it holds beside its pool was not measured",
    )


def _other(card: Card, server: DeclaredServer, sizing: SlotSizing | None) -> Claim:
    """Return the claim of an engine without shares: what it is known to hold."""
    workers = workers_on(card, server)
    pool = None if sizing is None else sizing.pool
    if card.total_bytes is None or len(set(server.cards or ())) != 1:
        return _unknown(server, ClaimBasis.HELD, workers, "how its memory is divided is not known")
    device = None if sizing is None else sizing.device_bytes
    if server.measured_bytes is not None and pool is not None and pool.host_bytes is not None:
        held, exact = server.measured_bytes + pool.total_bytes - pool.host_bytes, not pool.fit_changes
        words = f"{size(held)} measured and pool"
    elif device is not None:
        held, exact = device, False
        words = f"{size(held)} of {'weights and ' if sizing and sizing.weights_bytes else ''}KV cache"
    else:
        why = "what its weights and its pool take is not settled by its files"
        return _unknown(server, ClaimBasis.HELD, workers, why)
    ratio = held / card.total_bytes * server.replicas
    return Claim(
        server=server.name,
        basis=ClaimBasis.HELD,
        ratio=ratio,
        exact=exact,
        workers=workers,
        words=f"{words} / {size(card.total_bytes)} = {ratio:.2f}",
    )


def _unknown(server: DeclaredServer, basis: ClaimBasis, workers: int, why: str) -> Claim:
    return Claim(server=server.name, basis=basis, ratio=None, exact=False, workers=workers, why=why)
