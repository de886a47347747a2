"""Rules about pinned pools: what a pin overrides, what stands beside it, what must be free at its start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.check.claims import is_whole, known_sum, sum_of_one_profile
from kvwatch.check.rule import Hit
from kvwatch.check.verdict import Severity
from kvwatch.check.vllm_sizing import share_bounds
from kvwatch.findings.words import listed
from kvwatch.snapshot import ClaimBasis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.check.claims import Claim
    from kvwatch.check.declaration import Card, DeclaredServer
    from kvwatch.check.evidence import Evidence

_ROUNDING = 1e-9
_OUT_OF_STEP = 0.02
"""Of the card: less is the rounding of a share to two decimals, and what a context takes."""


def pins_do_not_fit(evidence: Evidence) -> Iterator[Hit]:
    """Find cards whose pins and other fixed memory leave less than the headroom."""
    for card in evidence.declaration.cards:
        claims = evidence.claims[card.name]
        known = [claim for claim in claims if claim.ratio is not None]
        shares = [claim for claim in claims if claim.basis is ClaimBasis.SHARE]
        total = known_sum(claims)
        if not known or shares or card.total_bytes is None or total <= card.share_limit_ratio + _ROUNDING:
            continue
        servers = {server.name: server for server in evidence.declaration.on(card.name)}
        asked = round(total * card.total_bytes)
        most = math.floor(card.share_limit_ratio * card.total_bytes)
        last = servers[known[-1].server]
        least = "" if is_whole(claims) else "at least "
        parts = " + ".join(f"{claim.server} {claim.words}" for claim in known)
        meeting = sum_of_one_profile(claims, servers)
        profiles = (
            "" if meeting == total else f" With one compose profile at a time it is {least}{meeting:.2f}."
        )
        yield Hit(
            message=(
                f"what is fixed on {card.title} does not fit it: {least}{total:.2f} = {parts}, limit"
                f" {card.share_limit_ratio:.2f}. {size(asked)} are asked for; of {size(card.total_bytes)}"
                f" {size(card.total_bytes - most)} must stay free,"
                f" so {size(asked - most)} are too much.{profiles}"
                f" {_lower(card, known, servers, asked - most)}"
            ),
            place=last.where("pin_bytes", "ctx_size"),
            severity=Severity.ERROR if meeting > 1 + _ROUNDING else Severity.WARNING,
            card=card.name,
            servers=tuple(claim.server for claim in claims),
            numbers={
                "claimed_bytes": asked,
                "total_bytes": card.total_bytes,
                "over_bytes": asked - most,
                "share_sum_ratio": round(total, 6),
            },
        )


def _lower(card: Card, claims: list[Claim], servers: dict[str, DeclaredServer], over: int) -> str:
    edits = []
    for claim in claims:
        if claim.basis is not ClaimBasis.PIN:
            continue
        pin = (servers[claim.server].launch.pin_bytes or 0) - -(-over // claim.workers)
        if pin > 0:
            edits.append(f"{claim.server} to {pin}")
    if not edits:
        return f"No single pin can be lowered by that: make a pool smaller or move a server off {card.title}."
    return f"Lower kv_cache_memory_bytes: {' or '.join(edits)}."


def pin_out_of_step(evidence: Evidence) -> Iterator[Hit]:
    """Find servers whose stated share is not what their pin makes them hold."""
    for card, server, claim in _pins(evidence):
        share = server.launch.share_ratio
        if "share_ratio" not in server.launch.stated or share is None or claim.ratio is None:
            continue
        stated = share * claim.workers
        below = claim.exact and claim.ratio < stated - _OUT_OF_STEP
        if not below and claim.ratio <= stated + _OUT_OF_STEP:
            continue
        true = math.ceil(claim.ratio / claim.workers * 100 - _ROUNDING) / 100
        least = "" if claim.exact else "at least "
        consequence = (
            "whoever adds up the shares of the card reckons too high, and the server does not start while"
            f" less than {share:.2f} is free"
            if below
            else "whoever adds up the shares of the card reckons too low"
        )
        total, workers = card.total_bytes or 0, claim.workers
        pin = (server.launch.pin_bytes or 0) + math.floor(stated * total / workers) - _held(claim, total)
        other = f", or the pin to {pin}" if claim.exact and pin > 0 else ""
        yield Hit(
            message=(
                f"{server.name} has both a share of {share:.2f} and a pin, which overrides it: it will hold"
                f" {least}{claim.words} of {card.title}. Out of step by"
                f" {abs(claim.ratio - stated):.2f}: {consequence}."
                f" Set gpu_memory_utilization to {true:.2f}{other}."
            ),
            place=server.where("share_ratio", "pin_bytes"),
            card=card.name,
            servers=(server.name,),
            numbers={
                "share_ratio": share,
                "held_ratio": round(claim.ratio, 6),
                "pin_bytes": server.launch.pin_bytes or 0,
            },
        )


def _held(claim: Claim, total: int) -> int:
    return round((claim.ratio or 0) / claim.workers * total)


def pin_share_not_free(evidence: Evidence) -> Iterator[Hit]:
    """Find pinned servers that wait for more free memory than their neighbours leave.

    The pin sizes the pool, the share still must be free at start (0.32.0, v1/worker/gpu_worker.py,
    `request_memory` before any profiling; the check exists since 0.9.2).
    """
    for card, server, claim in _pins(evidence):
        bounds = share_bounds(server.launch)
        others = [other for other in evidence.claims[card.name] if other.server != server.name]
        if bounds is None or not others:
            continue
        share, taken = bounds[0], known_sum(others)
        if share + taken <= 1 + _ROUNDING:
            continue
        known = [other.server for other in others if other.ratio is not None]
        default = "share_ratio" not in server.launch.stated
        origin = "vLLM's default, as none is set" if default else "as it is set"
        fits = math.floor((1 - taken) * 100 + _ROUNDING) / 100
        needs = math.ceil((claim.ratio or 0) / claim.workers * 100 - _ROUNDING) / 100
        if fits < needs:
            edit = "Move it to another card"
        elif claim.exact:
            edit = f"Set gpu_memory_utilization to {needs:.2f}, what the pin makes it hold"
        else:
            edit = (
                f"Set gpu_memory_utilization to what it holds in all, {max(needs, 0.01):.2f} or more"
                f" ({_parts(claim)}), and at most {fits:.2f}"
            )
        yield Hit(
            message=(
                f"{server.name} is pinned, but still does not start while less than its share of {share:.2f}"
                f" ({origin}) of {card.title} is free: {listed(known)}"
                f" {'take' if len(known) > 1 else 'takes'}"
                f" {'' if is_whole(others) else 'at least '}{taken:.2f}, {1 - taken:.2f} is left. It comes up"
                f" when it is the first, and not when it is restarted. {edit}."
            ),
            place=server.where("share_ratio", "pin_bytes"),
            card=card.name,
            servers=(server.name, *(other.server for other in others)),
            numbers={"share_ratio": share, "free_ratio": round(1 - taken, 6)},
        )


def _parts(claim: Claim) -> str:
    """Return a pinned server's parts without the division by the card."""
    return claim.words.partition(") / ")[0].lstrip("(") or "its pin"


def _pins(evidence: Evidence) -> Iterator[tuple[Card, DeclaredServer, Claim]]:
    for card in evidence.declaration.cards:
        servers = {server.name: server for server in evidence.declaration.on(card.name)}
        for claim in evidence.claims[card.name]:
            if claim.basis is ClaimBasis.PIN:
                yield card, servers[claim.server], claim
