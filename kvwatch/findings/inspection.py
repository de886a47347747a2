"""From poll to poll: which conditions hold, since when, and which of them have become findings."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.finding import Finding, RuleId, Unjudged
from kvwatch.findings.activity import Activity
from kvwatch.findings.rule import Condition, Evidence, Unknown
from kvwatch.findings.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.findings.rule import Rule, Verdict
    from kvwatch.lives import Poolsize
    from kvwatch.snapshot import Snapshot

UNKNOWN_SECONDS = 60.0
"""So long a condition that cannot be judged keeps its age; afterwards it begins anew."""

Key = tuple[RuleId, str, str]
"""Rule, server, device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A condition that holds."""

    first_at: float
    """Monotonic seconds; so is the next."""
    seen_at: float
    since: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The findings of one poll and what they need of the polls before; replaced whole at each poll.

    A finding ends as soon as it is certain that its condition does not hold. While that is not known the
    finding is not shown, since its figures would be stale, and the rule stands among the unjudged.
    """

    held: Mapping[Key, Held] = field(default_factory=dict)
    activity: Mapping[tuple[str, str], Activity] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()

    def advance(
        self,
        snapshot: Snapshot,
        *,
        pools: Mapping[str, tuple[Poolsize, ...]] | None = None,
        driver_needed: bool = False,
        pace: float = 1.0,
    ) -> Inspection:
        """Judge one more poll.

        `pace` is how many seconds of the rules pass in one: the demo's day is short.
        """
        at = snapshot.monotonic_at * pace
        activity = _activity(self.activity, snapshot, at)
        evidence = Evidence(
            snapshot=snapshot, activity=activity, pools=pools or {}, driver_needed=driver_needed
        )
        held: dict[Key, Held] = {}
        findings: list[Finding] = []
        unjudged: list[Unjudged] = []
        for rule in RULES:
            conditions, unknowns, why = _judge(rule, evidence)
            for key, condition in conditions.items():
                before = self.held.get(key)
                held[key] = (
                    Held(first_at=at, seen_at=at, since=snapshot.taken_at)
                    if before is None
                    else replace(before, seen_at=at)
                )
                if at - held[key].first_at >= rule.hold_seconds:
                    findings.append(_finding(rule, condition, held[key].since))
            for key, before in self.held.items():
                doubtful = key in unknowns or why
                if (
                    key[0] is rule.id
                    and key not in held
                    and doubtful
                    and at - before.seen_at <= UNKNOWN_SECONDS
                ):
                    held[key] = before
            if why:
                unjudged.append(Unjudged(rule=rule.id, why=why))
            unjudged += [
                Unjudged(rule=rule.id, server=unknown.server, device=unknown.device, why=unknown.why)
                for key, unknown in unknowns.items()
                if key not in conditions
            ]
        return Inspection(held=held, activity=activity, findings=tuple(findings), unjudged=tuple(unjudged))


def _judge(rule: Rule, evidence: Evidence) -> tuple[dict[Key, Condition], dict[Key, Unknown], str]:
    """Return what a rule says, one verdict for each subject, and what went wrong with it itself."""
    verdicts: list[Verdict] = []
    why = ""
    try:
        verdicts += rule.judge(evidence)
    except Exception:  # noqa: BLE001 - a bug in one rule must not blind the others
        why = traceback.format_exc()
    conditions: dict[Key, Condition] = {}
    unknowns: dict[Key, Unknown] = {}
    for verdict in verdicts:
        key = (rule.id, verdict.server, verdict.device)
        if isinstance(verdict, Condition):
            conditions.setdefault(key, verdict)
        else:
            unknowns.setdefault(key, verdict)
    return conditions, unknowns, why


def _activity(
    before: Mapping[tuple[str, str], Activity], snapshot: Snapshot, at: float
) -> dict[tuple[str, str], Activity]:
    """Return each rank's activity; that of a server that does not answer now goes on later."""
    names = {server.target.name for server in snapshot.servers}
    activity = {key: own for key, own in before.items() if key[0] in names}
    for server in snapshot.servers:
        for rank in server.ranks:
            key = (server.target.name, rank.reading.rank)
            activity[key] = activity.get(key, Activity()).advance(
                rank, snapshot.recompute_suspected.get(key), at=at
            )
    return activity


def _finding(rule: Rule, condition: Condition, since: float) -> Finding:
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        server=condition.server,
        device=condition.device,
        summary=condition.summary,
        detail=condition.detail,
        next_step=condition.next_step,
        since=since,
    )
