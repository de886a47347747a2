"""From a question to records: which windows are compared, and what is read of them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.observation import distinct_starts
from kvwatch.triage.coverage import is_watched, nearest_watched
from kvwatch.triage.question import Record, Window
from kvwatch.triage.source import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.observation import Observation
    from kvwatch.triage.source import Source

STEP_SECONDS = 60.0
"""Of the windows."""
_NEAR_SECONDS, _NEAR_STEP_SECONDS = 6 * 3600.0, 300.0
"""How far from the hour asked for another one may stand for it, and how finely it is looked for."""
_MOST_POINTS, _FEWEST_POINTS = 400, 48
"""Of one server's timeline."""
_FLEET_POINTS = 6000
"""Of all servers' timelines together."""
_STEPS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_MOST_STARTS = 6
_UNIT_SECONDS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_SHIFT = re.compile(r"(\d{1,4})([hdw])", re.ASCII)
START = "start"


class QuestionError(ValueError):
    """A question that cannot be asked, or has nobody to be asked about, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What somebody asks; moments in Unix seconds."""

    server: str | None
    """All servers where none is named."""
    end_at: float
    """Where the window of now ends."""
    baseline: str | float
    """`start`, a shift such as `1d`, `7d` or `30d`, or the moment at which the baseline's window begins."""
    baseline_name: str
    """As it is told."""
    window_seconds: float
    points: int = _MOST_POINTS
    """Of one server's timeline."""

    @property
    def now(self) -> Window:
        """Return the window of now."""
        return Window(start_at=self.end_at - self.window_seconds, end_at=self.end_at, name="now")


def read_records(source: Source, question: Question) -> list[Record]:
    """Return what is known of each server asked about, by name."""
    if question.server is None:
        count = max(1, len(source.servers(question.end_at)))
        points = min(_MOST_POINTS, max(_FEWEST_POINTS, _FLEET_POINTS // count))
        question = replace(question, points=points)
    if question.baseline == START:
        return _since_start(source, question)
    question = _halved(question)
    baseline = _baseline(question)
    read = _read(source, question, baseline)
    names = sorted({name for part in read for name in part})
    return [_best_record(source, question, name, baseline, read) for name in names]


def _best_record(
    source: Source,
    question: Question,
    name: str,
    baseline: Window,
    read: Sequence[Mapping[str, list[Observation]]],
) -> Record:
    """Return the record; where that hour was not watched, with the nearest one that was."""
    then, now, _ = (part.get(name, ()) for part in read)
    if isinstance(question.baseline, str) and now and not is_watched(then, baseline):
        around = Span(
            start_at=baseline.start_at - _NEAR_SECONDS,
            end_at=min(baseline.end_at + _NEAR_SECONDS, question.now.start_at),
            step_seconds=_NEAR_STEP_SECONDS,
        )
        (seen,) = source.read([around], name)
        nearest = nearest_watched(seen.get(name, ()), baseline, around)
        if nearest is not None:
            baseline = nearest
            read = _read(source, question, baseline, server=name)
    return _record(source, question, name, baseline, read)


def _halved(question: Question) -> Question:
    """Return the question with windows short enough for both of them between its two moments."""
    if isinstance(question.baseline, str):
        return question
    length = min(question.window_seconds, _floor((question.end_at - question.baseline) / 2))
    if length < STEP_SECONDS:
        raise QuestionError("the baseline is not before what is compared with it: give an earlier moment")
    return replace(question, window_seconds=length)


def _baseline(question: Question) -> Window:
    now, baseline = question.now, question.baseline
    start = now.start_at - (shift_seconds(baseline) or 0.0) if isinstance(baseline, str) else baseline
    if start + now.seconds > now.start_at:
        raise QuestionError("the baseline is not before what is compared with it: give an earlier moment")
    return Window(start_at=start, end_at=start + now.seconds, name=question.baseline_name)


def _since_start(source: Source, question: Question) -> list[Record]:
    """Return records that compare each server with the hour after its last start."""
    now = question.now
    (present,) = source.read([Span(start_at=now.start_at, end_at=now.end_at)], question.server)
    records = []
    for name, observations in sorted(present.items()):
        starts = [one.started_at for one in observations if one.started_at is not None]
        begin = _floor(max(starts)) if starts else now.start_at - now.seconds
        # So soon after a start, the window of now is what is left.
        end = min(begin + now.seconds, (begin + now.end_at) / 2, now.end_at)
        baseline = Window(start_at=begin, end_at=_floor(end), name=question.baseline_name)
        if not starts:
            baseline = Window(start_at=now.start_at, end_at=now.start_at, name=question.baseline_name)
        late = Window(start_at=max(now.start_at, baseline.end_at), end_at=now.end_at, name=now.name)
        read = _read(source, question, baseline, server=name)
        records.append(_record(source, question, name, baseline, read, now=late))
    return records


def _read(
    source: Source, question: Question, baseline: Window, *, server: str | None = None
) -> list[Mapping[str, list[Observation]]]:
    now = question.now
    return source.read(
        [
            Span(start_at=baseline.start_at, end_at=baseline.end_at, step_seconds=STEP_SECONDS),
            Span(start_at=now.start_at, end_at=now.end_at, step_seconds=STEP_SECONDS),
            Span(
                start_at=baseline.start_at,
                end_at=now.end_at,
                step_seconds=timeline_step(now.end_at - baseline.start_at, question.points),
            ),
        ],
        server or question.server,
    )


def shift_seconds(text: str) -> float | None:
    """Return the seconds of a baseline such as `7d`, the same hours so long before; None where it is none."""
    found = _SHIFT.fullmatch(text)
    return None if found is None else int(found[1]) * _UNIT_SECONDS[found[2]]


def timeline_step(seconds: float, points: int) -> float:
    """Return the step of a timeline of so many seconds and at most so many points."""
    return float(next((step for step in _STEPS if seconds / step <= points), _STEPS[-1]))


def _record(
    source: Source,
    question: Question,
    name: str,
    baseline: Window,
    read: Sequence[Mapping[str, list[Observation]]],
    *,
    now: Window | None = None,
) -> Record:
    now = now or question.now
    then_observations, now_observations, timeline = (tuple(part.get(name, ())) for part in read)
    now_observations = tuple(one for one in now_observations if one.at >= now.start_at)
    everything = (*then_observations, *timeline, *now_observations)
    devices = sorted({device for one in everything for device in (*one.setup.devices, *one.device_bytes)})
    spans = [Span(start_at=window.start_at, end_at=window.end_at) for window in (baseline, now)]
    return Record(
        server=name,
        baseline=baseline,
        now=now,
        baseline_observations=then_observations,
        now_observations=now_observations,
        timeline=timeline,
        start_windows=tuple(source.starts(name, _starts(everything), devices)),
        others=tuple(
            one for one in source.device_bytes(spans, devices) if one.server != name.partition("@")[0]
        ),
    )


def _starts(observations: Sequence[Observation]) -> list[float]:
    """Return the last few starts, oldest first, and the first of all: the baseline's."""
    starts = distinct_starts(one.started_at for one in observations if one.started_at is not None)
    return starts if len(starts) <= _MOST_STARTS else [starts[0], *starts[1 - _MOST_STARTS :]]


def _floor(moment: float) -> float:
    return math.floor(moment / STEP_SECONDS) * STEP_SECONDS
