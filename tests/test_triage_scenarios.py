"""Scripted days through the real pipeline: each has one right verdict, and both paths give it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from tests.scenarios.days import DAYS
from tests.scenarios.prometheus_path import Backfill, exposition, serving
from tests.scenarios.rehearsal import by_prometheus, faults, rehearse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvwatch.triage.verdict import Verdict
    from tests.scenarios.rehearsal import Rehearsal
    from tests.scenarios.world import Day

SEEDS = range(int(os.environ.get("KVWATCH_SCENARIO_SEEDS", "2")))
"""`make test-scenarios` tries ten."""
EVERY_DAY = pytest.mark.parametrize("day", DAYS, ids=lambda day: day.name)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Servers that restart are the point here, not news."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def first_rehearsals() -> dict[str, Rehearsal]:
    """Return each day with the first seed: both paths are asked about these."""
    return {day.name: rehearse(day, 0) for day in DAYS}


@pytest.fixture(scope="module")
def verdicts_by_history(
    first_rehearsals: dict[str, Rehearsal], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Verdict]:
    """Return the first seed's verdicts from history."""
    folder = tmp_path_factory.mktemp("history")
    return {name: rehearsal.by_history(folder) for name, rehearsal in first_rehearsals.items()}


@pytest.fixture(scope="module")
def prometheus(
    first_rehearsals: dict[str, Rehearsal], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Run a Prometheus in which all days happened, each on a machine of its own."""
    folder = tmp_path_factory.mktemp("prometheus")
    backfill = Backfill()
    for name, rehearsal in first_rehearsals.items():
        for poll in rehearsal.published:
            backfill.add(exposition(poll.snapshot, poll.at, name), poll.at)
    backfill.write(folder)
    with serving(folder) as url:
        yield url


@EVERY_DAY
def test_a_day_has_one_right_verdict(
    day: Day, verdicts_by_history: dict[str, Verdict], tmp_path: Path
) -> None:
    """From history, whatever the noise."""
    wrong = {0: faults(day, verdicts_by_history[day.name])}
    for seed in SEEDS[1:]:
        wrong[seed] = faults(day, rehearse(day, seed).by_history(tmp_path))
    assert not any(wrong.values()), {seed: told for seed, told in wrong.items() if told}


@pytest.mark.prometheus
@EVERY_DAY
def test_prometheus_gives_the_same_verdict(
    day: Day, prometheus: str, verdicts_by_history: dict[str, Verdict]
) -> None:
    """From exported series alone."""
    verdict = by_prometheus(day, prometheus)
    assert not faults(day, verdict)
    assert verdict.cause == verdicts_by_history[day.name].cause


def test_there_are_enough_days() -> None:
    """Two dozen at least, under names of their own, and every cause among them."""
    from kvwatch.triage.verdict import Cause  # noqa: PLC0415

    assert len({day.name for day in DAYS}) == len(DAYS) >= 24
    assert {day.cause for day in DAYS} == {str(cause) for cause in Cause}
