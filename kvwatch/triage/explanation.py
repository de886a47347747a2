"""From a record to a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.triage.advice import DISPROOF, levers_of
from kvwatch.triage.changes import changes_of
from kvwatch.triage.comparison import compare
from kvwatch.triage.costs import cost_of
from kvwatch.triage.decomposition import Factors
from kvwatch.triage.evidence import evidence_of
from kvwatch.triage.headline import headline_of
from kvwatch.triage.judgement import judge
from kvwatch.triage.moment import moment_of
from kvwatch.triage.verdict import Cause, Confidence, Evidence, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvwatch.observation import Observation
    from kvwatch.triage.moment import Moment
    from kvwatch.triage.question import Record


def explain(record: Record) -> Verdict:
    """Return the verdict on one server against one baseline."""
    before = _enough(moment_of(record.baseline_observations), record.minimum_finished)
    after = _enough(moment_of(record.now_observations), record.minimum_finished)
    trend = tuple(_trend(record.timeline))
    if before is None or after is None or not before.pools or not after.pools:
        return _nothing(record, before, after, trend)
    comparison = compare(before, after)
    changes = changes_of(record, before, after)
    judgement = judge(record, before, after, comparison, changes)
    evidence = evidence_of(record, before, after, comparison, changes)
    return Verdict(
        server=record.server,
        baseline_window=record.baseline,
        now_window=record.now,
        baseline=before,
        now=after,
        comparison=comparison,
        factors=comparison.factors,
        cause=judgement.cause,
        confidence=judgement.confidence,
        headline=headline_of(record, before, after, comparison, judgement),
        evidence=(*_too_few(record, before, after), *evidence),
        disproof=DISPROOF.get(judgement.cause, ()),
        levers=levers_of(judgement.cause, before, after, comparison),
        trend=trend,
    )


def _enough(moment: Moment | None, minimum: float) -> Moment | None:
    """Return the moment without its lengths where too few requests finished to speak of a typical one."""
    if moment is None or (moment.finished is not None and moment.finished >= minimum):
        return moment
    return replace(moment, prompt_tokens=None, generation_tokens=None)


def _too_few(record: Record, before: Moment, after: Moment) -> Iterator[Evidence]:
    for name, moment in (("then", before), ("now", after)):
        if moment.finished is None or moment.finished < record.minimum_finished:
            if moment.finished is None:
                text = f"How long the requests of {name} were is not stated: there is no typical one."
                yield Evidence(kind="lengths_unknown", text=text)
                continue
            count = f"Only {moment.finished:.0f}"
            text = (
                f"{count} requests finished in the window of {name}: not enough traffic to say what a"
                f" typical one is (at least {record.minimum_finished:.0f})."
            )
            yield Evidence(kind="not_enough_traffic", text=text)


def _nothing(
    record: Record,
    before: Moment | None,
    after: Moment | None,
    trend: tuple[tuple[float, float | None], ...],
) -> Verdict:
    missing = [name for name, moment in (("then", before), ("now", after)) if not moment or not moment.pools]
    which = " or ".join(missing)
    return Verdict(
        server=record.server,
        baseline_window=record.baseline,
        now_window=record.now,
        baseline=before,
        now=after,
        comparison=None,
        factors=Factors(),
        cause=Cause.NOT_ENOUGH_DATA,
        confidence=Confidence.LOW,
        headline=f"{record.server}: cannot tell, nothing was watched {which}.",
        evidence=(Evidence(kind="gap", text=f"There is no observation of the window of {which}."),),
        trend=trend,
    )


def _trend(timeline: Sequence[Observation]) -> Iterator[tuple[float, float | None]]:
    """Yield the typical requests that an empty server takes, step by step, all ranks together."""
    steps: dict[float, list[Observation]] = {}
    for one in timeline:
        steps.setdefault(one.at, []).append(one)
    for at, ranks in sorted(steps.items()):
        values = [_fit_empty(one) for one in ranks]
        known = [value for value in values if value is not None]
        yield at, (float(sum(known)) if len(known) == len(values) else None)


def _fit_empty(one: Observation) -> float | None:
    tokens = _lengths(one)
    if tokens is None or one.usable_blocks is None or one.sleeping:
        return None
    cost = cost_of(one.setup)
    if cost is None:
        return one.typical_capacity
    return cost.fit_empty(one.usable_blocks, tokens, one.setup.request_limit)


def _lengths(one: Observation) -> float | None:
    if one.typical_prompt_tokens is not None and one.typical_generation_tokens is not None:
        return one.typical_prompt_tokens + one.typical_generation_tokens
    if one.finished and one.finished_prompt_tokens is not None and one.finished_generation_tokens is not None:
        return (one.finished_prompt_tokens + one.finished_generation_tokens) / one.finished
    return None
