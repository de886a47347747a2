"""One day, one seed: simulated once, then asked about by both paths; and what is wrong with an answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.history.reader import HistoryReader
from kvwatch.triage.explanation import explain
from kvwatch.triage.history_source import HistorySource
from kvwatch.triage.prometheus import PrometheusSource
from kvwatch.triage.prometheus_api import Access, PrometheusApi
from kvwatch.triage.reading import Question, read_records
from kvwatch.triage.verdict import Confidence
from tests.scenarios.history_path import write_history
from tests.scenarios.pipeline import play
from tests.scenarios.prometheus_path import selector
from tests.scenarios.world import HOUR, NOW

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.triage.question import Record
    from kvwatch.triage.source import Source
    from kvwatch.triage.verdict import Verdict
    from tests.scenarios.pipeline import Published
    from tests.scenarios.world import Day

_RISING = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
_ADDS_UP = 1e-9


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """One day as one seed has it: when what was published."""

    day: Day
    seed: int
    published: tuple[Published, ...]

    def by_history(self, folder: Path) -> Verdict:
        """Return the verdict from kvwatch's own file."""
        path = folder / f"{self.day.name}-{self.seed}.db"
        write_history(path, self.published)
        with HistoryReader(path) as reader:
            return explain(_record(HistorySource(reader), self.day))


def rehearse(day: Day, seed: int) -> Rehearsal:
    """Let a day happen."""
    return Rehearsal(day=day, seed=seed, published=tuple(play(day, seed)))


def by_prometheus(day: Day, url: str) -> Verdict:
    """Return the verdict from the series of a day that are in a Prometheus."""
    with PrometheusApi(Access(url=url)) as api:
        return explain(_record(PrometheusSource(api, selector=selector(day.name)), day))


def question(day: Day) -> Question:
    """Return what is asked at the end of a day."""
    return Question(
        server=day.about,
        end_at=NOW,
        baseline=day.baseline,
        baseline_name=day.baseline,
        window_seconds=HOUR,
    )


def _record(source: Source, day: Day) -> Record:
    (record,) = read_records(source, question(day))
    return record


def faults(day: Day, verdict: Verdict) -> list[str]:
    """Return what is wrong with an answer; nothing is wrong with a right one."""
    wrong = []
    if verdict.cause != day.cause:
        wrong.append(f"says {verdict.cause}, it was {day.cause}")
    if _RISING.index(verdict.confidence) > [str(one) for one in _RISING].index(day.at_most):
        wrong.append(f"is {verdict.confidence} where {day.at_most} is the most that was seen")
    if verdict.exit_code != day.exit_code:
        wrong.append(f"exits with {verdict.exit_code} instead of {day.exit_code}")
    known = dict(verdict.factors.items())
    for name, (low, high) in day.factors.items():
        value = known[name]
        if value is None or not low - _ADDS_UP <= value <= high + _ADDS_UP:
            wrong.append(f"has {name} {value}, outside {low} to {high}")
    if day.ratio is not None and (verdict.ratio is None or not day.ratio[0] <= verdict.ratio <= day.ratio[1]):
        wrong.append(f"has the ratio {verdict.ratio}, outside {day.ratio}")
    if verdict.ratio is not None:
        total = verdict.factors.log_ratio
        if total is None or not math.isclose(total, math.log(verdict.ratio), abs_tol=_ADDS_UP):
            wrong.append(f"adds up to {total} instead of ln {verdict.ratio}")
    missing = set(day.evidence) - {one.kind for one in verdict.evidence}
    return wrong + [f"does not tell of {kind}" for kind in sorted(missing)]
