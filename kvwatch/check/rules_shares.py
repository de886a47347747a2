"""Rules about the shares that servers claim of a card."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.check.claims import is_whole, known_sum, sum_of_one_profile
from kvwatch.check.rule import Hit
from kvwatch.check.verdict import Severity
from kvwatch.check.vllm_sizing import share_abbreviated
from kvwatch.findings.words import listed
from kvwatch.snapshot import ClaimBasis

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvwatch.check.claims import Claim
    from kvwatch.check.declaration import Card, DeclaredServer
    from kvwatch.check.evidence import Evidence

_ROUNDING = 1e-9
_ASKS_FIRST = (0, 9, 2)
_WHOLE = 0.97
"""A share from which nothing is left for contexts, a display or a neighbour."""


def shares_over_limit(evidence: Evidence) -> Iterator[Hit]:
    """Find cards of which the servers claim more than the limit, shares and pins together."""
    for card in evidence.declaration.cards:
        claims = evidence.claims[card.name]
        total = known_sum(claims)
        alone = sum(claim.workers for claim in claims) == 1
        if total <= card.share_limit_ratio + _ROUNDING or alone:
            continue
        if all(claim.basis is not ClaimBasis.SHARE for claim in claims if claim.ratio is not None):
            continue  # bytes alone: another rule
        servers = {server.name: server for server in evidence.declaration.on(card.name)}
        least = "" if is_whole(claims) else "at least "
        parts = " + ".join(f"{claim.server} {claim.words}" for claim in claims if claim.ratio is not None)
        meeting = sum_of_one_profile(claims, servers)
        profiles = (
            "" if meeting == total else f" With one compose profile at a time it is {least}{meeting:.2f}."
        )
        places = [servers[claim.server].where("share_ratio", "pin_bytes") for claim in claims]
        yield Hit(
            message=(
                f"the servers on {card.title} claim {least}{total:.2f} of it together, limit"
                f" {card.share_limit_ratio:.2f}: {parts}."
                f"{profiles}{_refused(servers, claims, meeting)} {_edit(evidence, card, claims, total)}"
            ),
            place=places[-1],
            severity=Severity.ERROR if meeting > 1 + _ROUNDING else Severity.WARNING,
            card=card.name,
            servers=tuple(claim.server for claim in claims),
            numbers={
                "share_sum_ratio": round(total, 6),
                "share_limit_ratio": card.share_limit_ratio,
                "over_ratio": round(total - card.share_limit_ratio, 6),
            }
            | ({} if card.total_bytes is None else {"total_bytes": card.total_bytes}),
        )


def _refused(servers: Mapping[str, DeclaredServer], claims: Sequence[Claim], total: float) -> str:
    """Say who is refused: a server with a share starts only while that share of the card is free (0.9.2)."""
    asking = [
        claim
        for claim in claims
        if claim.basis is ClaimBasis.SHARE and (servers[claim.server].version or _ASKS_FIRST) >= _ASKS_FIRST
    ]
    if total <= 1 + _ROUNDING or not asking:
        return ""
    return " Whichever comes last finds less free memory than it asks for and does not start."


def _edit(evidence: Evidence, card: Card, claims: Sequence[Claim], total: float) -> str:
    """Return the edits that mend it: one server alone, or all in proportion."""
    limit = card.share_limit_ratio
    adjustable = [claim for claim in claims if claim.basis is ClaimBasis.SHARE and claim.ratio]
    alone = []
    for claim in adjustable:
        most = _down((limit - (total - (claim.ratio or 0))) / claim.workers)
        if most > 0 and not _below_weights(evidence, card, claim.server, most):
            alone.append(f"{claim.server} to {most:.2f}")
    shared = math.fsum(claim.ratio or 0 for claim in adjustable)
    left = limit - (total - shared)
    edits = []
    if alone:
        edits.append(f"lower {' or '.join(alone)}")
    if len(adjustable) > 1 and left > 0:
        scaled = [
            (claim.server, _down((claim.ratio or 0) / claim.workers * left / shared)) for claim in adjustable
        ]
        if all(most > 0 and not _below_weights(evidence, card, name, most) for name, most in scaled):
            edits.append("all in proportion: " + listed([f"{name} {most:.2f}" for name, most in scaled]))
    if not edits:
        return f"No share of {card.title} is enough: move a server to another card."
    text = ", or ".join(edits)
    return f"Edit gpu_memory_utilization: {text}; else move a server to another card."


def _below_weights(evidence: Evidence, card: Card, name: str, share: float) -> bool:
    """Tell whether a share does not even hold the server's weights."""
    sizing = evidence.blocks.get(name)
    weights = None if sizing is None else sizing.weights_bytes
    return weights is not None and card.total_bytes is not None and share * card.total_bytes <= weights


def _down(value: float) -> float:
    return math.floor(value * 100 + _ROUNDING) / 100


def default_share_twice(evidence: Evidence) -> Iterator[Hit]:
    """Find cards on which two or more servers take the default share, which is meant for a card alone."""
    for card in evidence.declaration.cards:
        servers = [server for server in evidence.declaration.on(card.name) if _by_default(server)]
        copies = sum(server.replicas for server in servers)
        if copies < 2:  # noqa: PLR2004 - twice
            continue
        each = [claim for claim in evidence.claims[card.name] if claim.server in {s.name for s in servers}]
        total = math.fsum(claim.ratio or 0 for claim in each)
        yield Hit(
            message=(
                f"{_names(servers)} on {card.title} set no gpu_memory_utilization: each takes vLLM's default"
                f" (0.9, from 0.20.0 0.92), which is meant for a card of one server; together {total:.2f}."
                f" Set it in each: {_down(card.share_limit_ratio / copies):.2f} where they are alike."
            ),
            place=servers[-1].place,
            card=card.name,
            servers=tuple(server.name for server in servers),
            numbers={"share_sum_ratio": round(total, 6), "servers": copies},
        )


def _names(servers: Sequence[DeclaredServer]) -> str:
    return listed(
        [
            server.name if server.replicas == 1 else f"{server.name} ({server.replicas} x)"
            for server in servers
        ]
    )


def _by_default(server: DeclaredServer) -> bool:
    """Tell whether a server's share is the release's own."""
    launch = server.launch
    if launch.engine != "vllm" or launch.pin_bytes is not None or share_abbreviated(launch):
        return False
    return "share_ratio" not in launch.stated and "pin_bytes" in launch.defaulted


def unpinned_neighbours(evidence: Evidence) -> Iterator[Hit]:
    """Find cards on which two or more servers measure free memory when they start."""
    for card in evidence.declaration.cards:
        servers = [
            server
            for server in evidence.declaration.on(card.name)
            if server.launch.engine == "vllm"
            and "pin_bytes" in server.launch.defaulted
            and server.launch.num_gpu_blocks_override is None
        ]
        if sum(server.replicas for server in servers) < 2:  # noqa: PLR2004 - neighbours
            continue
        yield Hit(
            message=(
                f"{_names(servers)} share {card.title}, each with a share and none with a pin: when they"
                f" start together, each takes what the other loads meanwhile for its own and gets a smaller"
                f" pool with the same flags, or none. Pin each pool (--kv-cache-memory-bytes, by"
                f" `kvwatch log --pin` of a start alone), or start each when the one before is ready."
            ),
            place=servers[-1].place,
            card=card.name,
            servers=tuple(server.name for server in servers),
            numbers={"unpinned": sum(server.replicas for server in servers)},
        )


def share_near_whole(evidence: Evidence) -> Iterator[Hit]:
    """Find shares of 0.97 and more of a card that has others or a display."""
    for card in evidence.declaration.cards:
        here = evidence.declaration.on(card.name)
        for server in here:
            share = server.launch.share_ratio
            if share is None or share < _WHOLE or server.launch.pin_bytes is not None:
                continue
            others = [other.name for other in here if other is not server]
            if not others and card.display is not True:
                continue
            beside = listed(others) if others else "a display"
            left, rest = "", 1 - share
            if card.total_bytes is not None:
                left = f" = {size(round(rest * card.total_bytes))}"
            yield Hit(
                message=(
                    f"{server.name} claims {share:.2f} of {card.title} beside {beside}: {rest:.2f}{left} is"
                    f" left for all others, and CUDA contexts and graphs come on top of the share. It runs"
                    f" out of memory on the first neighbour that grows. Set gpu_memory_utilization to"
                    f" {card.share_limit_ratio:.2f} less what {beside} takes."
                ),
                place=server.where("share_ratio"),
                card=card.name,
                servers=(server.name, *others),
                numbers={"share_ratio": share, "left_ratio": round(rest, 6)},
            )
