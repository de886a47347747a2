"""Which hours stand for which, and how far chance moves a mean."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from kvwatch.observation import Observation, Setup
from kvwatch.triage.coverage import is_watched, nearest_watched
from kvwatch.triage.question import Window
from kvwatch.triage.reading import shift_seconds, timeline_step
from kvwatch.triage.source import Span
from kvwatch.triage.spread import standard_error

HOUR = Window(start_at=36_000, end_at=39_600, name="1d")
AROUND = Span(start_at=0, end_at=72_000, step_seconds=300)


def watched(*spans: tuple[float, float]) -> list[Observation]:
    """Return observations of two ranks, in steps of five minutes, over spans of Unix seconds."""
    return [
        Observation(server="s", rank=rank, at=at, seconds=300, setup=Setup())
        for start, end in spans
        for at in range(int(start), int(end), 300)
        for rank in "01"
    ]


def test_a_quarter_of_an_hour_is_enough_to_speak_of_it() -> None:
    """Ranks that were watched at once count once."""
    assert is_watched(watched((36_000, 36_900)), HOUR)
    assert not is_watched(watched((36_000, 36_600), (39_600, 42_000)), HOUR)


@pytest.mark.parametrize(
    "spans, start",
    [
        ([(0, 20_000), (50_000, 60_000)], 50_000),
        ([(0, 30_000), (50_000, 60_000)], 27_300),
        ([(20_000, 21_000), (50_000, 51_000)], None),
        ([], None),
        ([(71_000, 80_000)], None),
    ],
)
def test_the_nearest_hour_that_was_watched_stands_for_one_that_was_not(
    spans: list[tuple[float, float]], start: float | None
) -> None:
    """Three quarters of it were, and it lies in the span that may be used; else there is none."""
    found = nearest_watched(watched(*spans), HOUR, AROUND)
    assert (None if found is None else found.start_at) == start
    if found is not None:
        assert (found.seconds, found.name) == (3600, "near 1d")


def test_the_error_of_a_mean_is_what_chance_makes_of_it() -> None:
    """Over many hours of unequal requests the means scatter as the error of each says."""
    source = random.Random(5)  # noqa: S311 - no secret
    means, errors = [], []
    for _ in range(400):
        steps = []
        for _ in range(60):
            lengths = [source.lognormvariate(7, 1) for _ in range(source.randint(0, 12))]
            steps.append((float(len(lengths)), math.fsum(lengths)))
        error = standard_error(steps)
        assert error is not None
        errors.append(error)
        means.append(math.fsum(tokens for _, tokens in steps) / math.fsum(count for count, _ in steps))
    assert statistics.fmean(errors) == pytest.approx(statistics.stdev(means), rel=0.15)


def test_a_few_steps_tell_no_error() -> None:
    """Steps without a request are none."""
    assert standard_error([(3.0, 10.0)] * 7 + [(0.0, 0.0), (None, None)]) is None
    assert standard_error([(3.0, 10.0)] * 8) == pytest.approx(0.0, abs=1e-9)


def test_a_shift_is_a_number_of_hours_days_or_weeks() -> None:
    """Anything else is a moment."""
    assert [shift_seconds(text) for text in ("2h", "1d", "30d", "2w")] == [7200, 86_400, 2_592_000, 1_209_600]
    assert [shift_seconds(text) for text in ("-2h", "start", "1m", "d", "1.5d")] == [None] * 5


def test_a_timeline_has_no_more_points_than_are_shown() -> None:
    """Its step is a round one."""
    assert [timeline_step(span, 400) for span in (3600, 90_000, 30 * 86_400)] == [60, 300, 7200]
    assert timeline_step(1e12, 400) == 86_400
