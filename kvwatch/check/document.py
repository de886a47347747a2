"""A check as JSON: a contract, its keys are added to and never change their meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.check.claims import is_whole, known_sum
from kvwatch.check.evidence import gather
from kvwatch.check.slot_sizing import context_may_shrink
from kvwatch.check.vllm_sizing import length_is_certain
from kvwatch.cost_report import vllm_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.declaration import Declaration, DeclaredServer
    from kvwatch.check.evidence import Evidence
    from kvwatch.check.verdict import Finding
    from kvwatch.check.vllm_sizing import BlockSizing


def document(declaration: Declaration, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings that count, those that are ignored, what could not be read, cards and servers."""
    evidence = gather(declaration)
    return {
        "findings": [_finding(one) for one in findings if one.ignored is None],
        "ignored": [_finding(one) | {"reason": one.ignored} for one in findings if one.ignored is not None],
        "problems": [
            {"message": problem.message, "file": problem.place.file, "line": problem.place.line}
            for problem in declaration.problems
        ],
        "cards": cards(evidence),
        "servers": [
            {
                "name": server.name,
                "engine": server.launch.engine,
                "version": None if server.version is None else ".".join(map(str, server.version)),
                "file": server.place.file,
                "line": server.place.line,
                "cards": None if server.cards is None else list(server.cards),
                "pool": pool_of(evidence, server.name),
            }
            for server in declaration.servers
        ],
    }


def cards(evidence: Evidence) -> list[dict[str, Any]]:
    """Return what the servers of each card claim of it; `share_sum` is null where one claim is not known.

    `share_sum_at_least` adds up what is known.
    """
    claims, declaration = evidence.claims, evidence.declaration
    return [
        {
            "name": card.name,
            "total_bytes": card.total_bytes,
            "share_sum": round(known_sum(claims[card.name]), 6) if is_whole(claims[card.name]) else None,
            "share_sum_at_least": round(known_sum(claims[card.name]), 6),
            "share_limit": card.share_limit_ratio,
            "servers": [server.name for server in declaration.on(card.name)],
        }
        for card in declaration.cards
    ]


def pool_of(evidence: Evidence, name: str) -> dict[str, Any] | None:
    """Return what is known of a server's pool, of one rank; None where its cost is not known.

    Where `exact` is false, `size_bytes` is an upper bound, and so is all that follows of it.
    """
    if name in evidence.blocks:
        server = next(one for one in evidence.declaration.servers if one.name == name)
        return _blocks(evidence.blocks[name], server)
    sizing = evidence.slots.get(name)
    pool = None if sizing is None else sizing.pool
    if sizing is None or pool is None or not pool.pool_tokens:
        return None
    limit = pool.slot_limit_tokens
    held = min(pool.slots, pool.pool_tokens // limit) if pool.unified else pool.slots
    return {
        "size_bytes": pool.total_bytes,
        "exact": not context_may_shrink(sizing),
        "bytes_per_token": pool.bytes_per_token,
        "full_length_tokens": limit,
        "pool_tokens": pool.pool_tokens,
        "slots": pool.slots,
        "resident_limit": held,
    }


def _blocks(sizing: BlockSizing, server: DeclaredServer) -> dict[str, Any] | None:
    if sizing.plan is None or sizing.spec is None or not sizing.plan.groups:
        return None
    pool = sizing.pool
    report = vllm_report(
        sizing.spec,
        sizing.plan,
        pool_bytes=None if pool is None else pool.size_bytes,
        lengths=[],
        request_limit=server.launch.request_limit,
    )
    # A length that no file settles is not the model's own.
    certain = length_is_certain(server, sizing.spec)
    whole = report["lengths"][-1] if report["lengths"] and certain else {}
    names = ("bytes_per_token", "usable_blocks")
    of_length = ("full_length_tokens", "minimum_pool_bytes", "max_concurrency")
    return {
        "size_bytes": None if pool is None else pool.size_bytes,
        "exact": pool is not None and pool.exact,
        **{name: report[name] for name in names},
        **{name: report[name] if certain else None for name in of_length},
        "resident_limit": whole.get("resident_limit"),
        "fit_empty": whole.get("fit_empty"),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": str(finding.severity),
        "message": finding.message,
        "file": finding.place.file,
        "line": finding.place.line,
        "card": finding.card,
        "servers": list(finding.servers),
        "numbers": dict(finding.numbers),
    }
