"""The table of rules, and the check that runs them all over what files declare."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.check import (
    rules_flags,
    rules_llamacpp,
    rules_models,
    rules_pins,
    rules_pools,
    rules_shares,
    rules_slots,
    rules_unknowns,
)
from kvwatch.check.declaration import Card
from kvwatch.check.evidence import Evidence, gather
from kvwatch.check.ignores import UNUSED, WITHOUT_REASON, apply_ignores
from kvwatch.check.rule import Rule
from kvwatch.check.verdict import Finding, Severity
from kvwatch.findings.words import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvwatch.check.declaration import Declaration
    from kvwatch.check.rule import Hit

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def _by_ignores(_: Evidence) -> Iterator[Hit]:
    """Find nothing: these two are about the requests to ignore, which are seen after all others."""
    yield from ()


def _rule(name: str, severity: Severity, summary: str, judge: Callable[[Evidence], Iterator[Hit]]) -> Rule:
    return Rule(id=name, severity=severity, summary=summary, judge=judge)


RULES: tuple[Rule, ...] = (
    _rule(
        "shares-over-limit",
        _ERROR,
        "the servers on a card claim more of it than the limit",
        rules_shares.shares_over_limit,
    ),
    _rule(
        "default-share-twice",
        _WARNING,
        "two servers on a card take vLLM's default share",
        rules_shares.default_share_twice,
    ),
    _rule(
        "unpinned-neighbours",
        _WARNING,
        "two servers on a card size their pools by the memory that is free at start",
        rules_shares.unpinned_neighbours,
    ),
    _rule(
        "share-near-whole",
        _WARNING,
        "a share of 0.97 or more beside others or a display",
        rules_shares.share_near_whole,
    ),
    _rule(
        "pins-do-not-fit",
        _ERROR,
        "pinned pools, weights and headroom exceed the card",
        rules_pins.pins_do_not_fit,
    ),
    _rule(
        "pin-out-of-step",
        _WARNING,
        "a share stands beside a pin that makes the server hold something else",
        rules_pins.pin_out_of_step,
    ),
    _rule(
        "pin-share-not-free",
        _WARNING,
        "a pinned server waits for more free memory than its neighbours leave",
        rules_pins.pin_share_not_free,
    ),
    _rule(
        "pool-below-one-request",
        _ERROR,
        "the pool does not hold one request of full length",
        rules_pools.pool_below_one_request,
    ),
    _rule(
        "length-just-in-case",
        _WARNING,
        "one request of full length takes over half of the pool",
        rules_pools.length_just_in_case,
    ),
    _rule(
        "request-limit-beyond-pool",
        _WARNING,
        "the request limit is more than the pool ever holds",
        rules_pools.request_limit_beyond_pool,
    ),
    _rule(
        "worst-case-over-pool",
        _NOTE,
        "the admitted requests at full length exceed the pool",
        rules_pools.worst_case_over_pool,
    ),
    _rule(
        "length-over-model",
        _ERROR,
        "max_model_len is beyond the model's own length",
        rules_models.length_over_model,
    ),
    _rule(
        "ranks-replicate-cache",
        _WARNING,
        "more tensor-parallel ranks than KV heads",
        rules_models.ranks_replicate_cache,
    ),
    _rule(
        "small-weights-wide-cache",
        _NOTE,
        "4-bit weights with a 16-bit cache at long context",
        rules_models.small_weights_wide_cache,
    ),
    _rule(
        "window-kept-whole",
        _WARNING,
        "window layers keep every token",
        rules_models.window_kept_whole,
    ),
    _rule(
        "block-size-grows",
        _NOTE,
        "the engine makes larger blocks than were asked for",
        rules_models.block_size_grows,
    ),
    _rule(
        "quantised-cache-tensor-split",
        _WARNING,
        "a quantised cache with --split-mode tensor on builds that refuse it",
        rules_llamacpp.quantised_cache_tensor_split,
    ),
    _rule(
        "quantised-v-without-flash",
        _ERROR,
        "a quantised V cache without flash attention",
        rules_llamacpp.quantised_v_without_flash,
    ),
    _rule(
        "cache-refused",
        _ERROR,
        "the model does not allow the cache that is asked for",
        rules_llamacpp.cache_refused,
    ),
    _rule(
        "cache-in-host-memory",
        _NOTE,
        "the KV cache is kept in host memory",
        rules_llamacpp.cache_in_host_memory,
    ),
    _rule(
        "unified-pool-over-committed",
        _WARNING,
        "slots may claim more of their shared pool than it has",
        rules_slots.unified_pool_over_committed,
    ),
    _rule(
        "parallel-divides-context",
        _NOTE,
        "-np divides the context among the slots",
        rules_slots.parallel_divides_context,
    ),
    _rule(
        "context-zero",
        _WARNING,
        "--ctx-size 0 takes the training context, whatever fits",
        rules_slots.context_zero,
    ),
    _rule(
        "slots-cannot-reach",
        _WARNING,
        "part of the context can be used by no slot",
        rules_slots.slots_cannot_reach,
    ),
    _rule("flag-unknown", _WARNING, "an option that no known release has", rules_flags.flag_unknown),
    _rule(
        "flag-not-in-release",
        _ERROR,
        "an option that the release which is started does not have",
        rules_flags.flag_not_in_release,
    ),
    _rule(WITHOUT_REASON, _WARNING, "a request to ignore a rule gives no reason", _by_ignores),
    _rule(UNUSED, _NOTE, "a request to ignore a rule that finds nothing", _by_ignores),
    _rule(
        "unknown-placement",
        _NOTE,
        "on which card a server runs is not known",
        rules_unknowns.unknown_placement,
    ),
    _rule("unknown-card-size", _NOTE, "a card's memory is not known", rules_unknowns.unknown_card_size),
    _rule("unknown-model", _NOTE, "what a request costs is not known", rules_unknowns.unknown_model),
    _rule("unknown-claim", _NOTE, "what a server takes of a card is not known", rules_unknowns.unknown_claim),
)
"""In the order of the pages' index; ids never change their meaning."""


def _gathered(hits: Iterator[Hit]) -> list[Hit]:
    """Make one of the hits that differ in the card only: ranks of the same servers on several cards."""
    alike: dict[object, list[Hit]] = {}
    for number, hit in enumerate(hits):
        same = (hit.servers, hit.place, hit.severity, tuple(hit.numbers.items()))
        alike.setdefault(number if hit.card is None else same, []).append(hit)
    return [
        replace(first, message=f"{first.message} The same holds for {listed(others)}.") if others else first
        for first, *more in alike.values()
        for others in [[Card(name=hit.card).title for hit in more if hit.card is not None]]
    ]


_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def check(declaration: Declaration) -> tuple[Finding, ...]:
    """Return what is wrong with what the files declare, the worst first; ignored findings are marked.

    A rule whose inputs are not known finds nothing; what is missing is a note of its own.
    """
    evidence = gather(declaration)
    found = [
        Finding(
            rule=rule.id,
            severity=hit.severity or rule.severity,
            message=hit.message,
            place=hit.place,
            card=hit.card,
            servers=hit.servers,
            numbers=hit.numbers,
        )
        for rule in RULES
        for hit in _gathered(rule.judge(evidence))
    ]
    findings = apply_ignores(declaration, found, {rule.id: rule.severity for rule in RULES})
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.severity]))
