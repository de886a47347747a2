"""Proofs that "so many fit" is true: send that many, and one more."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from verdict import Verdict, judge

if TYPE_CHECKING:
    from collections import Counter

    from crowd import Crowd, Shape
    from watched import Sample, Watched

MOST_ERROR_RATIO = 0.01
ATTEMPTS = 8  # a fast engine may be done with the first request before the last is in, or before it is seen


class Course:
    """What a series of samples says about one load."""

    def __init__(self, before: Sample, samples: list[Sample], outcomes: Counter[str]) -> None:
        self.blind = sum(sample.blind for sample in samples)
        self.count = len(samples)
        self.gap = max(after.second - sample.second for sample, after in pairwise(samples))
        samples = [sample for sample in samples if not sample.blind]
        self.together = max(sample["run"] for sample in samples)
        self.waited = max(sample["wait"] for sample in samples)
        self.usage = max(sample["usage"] for sample in samples)
        self.preempted = samples[-1]["preempt"] - before["preempt"]
        self.suspected = samples[-1]["suspect"] - before["suspect"]
        self.all_answered = set(outcomes) == {"200"}
        self.overpromised = [
            sample
            for sample in samples
            if sample["sure"] > max(0, sample["held"] - sample["run"] - sample["wait"])
        ]

    def __str__(self) -> str:
        return (
            f"{self.together:.0f} ran together, at most {self.waited:.0f} waited, "
            f"{self.preempted:.0f} preemptions, peak usage {self.usage:.3f} "
            f"({self.count} samples, {self.blind} without data, at most {self.gap:.1f} s apart)"
        )


def prove_model(watched: Watched, name: str) -> Verdict:
    """Compare the planner's charge for one request in the cost model with the engine's own."""
    watched.idle()
    error = watched.value("kvwatch_kv_model_error_ratio")
    printed = watched.value("kvwatch_engine_max_concurrency")
    limit = watched.value("kvwatch_full_length_requests_resident_limit")
    return judge(
        f"{name}, model against engine",
        {"the error ratio is there": error is not None, "within 1 %": abs(error or 0.0) <= MOST_ERROR_RATIO},
        f"kvwatch_kv_model_error_ratio {error}; the engine prints {printed:.2f}, resident_limit {limit:.0f}",
    )


def prove_fit_now(watched: Watched, crowd: Crowd, name: str, shape: Shape, *, slowly: bool) -> list[Verdict]:
    """Send `fit_now` requests to an empty pool: they run together untouched; one more waits or is preempted.

    Windows and states are promised for one prefill at a time (`slowly`): each is sent when the one before
    has been read.
    """
    before = watched.idle()
    count = int(before["now"])
    for _ in range(ATTEMPTS):
        course = run(watched, crowd, count, shape, slowly=slowly)
        if course.together == count or course.preempted or course.waited:
            break
    enough = judge(
        f"{name}, fit_now of {shape}",
        {
            "fit_now = fit_guaranteed": before["now"] == before["sure"] > 0,
            "all answered 200": course.all_answered,
            "they ran together": course.together == count,
            "nobody waited": course.waited == 0,
            "no preemption": course.preempted == course.suspected == 0,
        },
        f"fit_now {count}: {course}",
    )
    return [enough, *([prove_one_more(watched, crowd, name, count, shape)] if is_exact(before) else [])]


def is_exact(sample: Sample) -> bool:
    """Tell whether one more than `fit_now` must fail: where as many enter as can be held."""
    return sample["now"] == sample["held"]


def prove_one_more(watched: Watched, crowd: Crowd, name: str, count: int, shape: Shape) -> Verdict:
    """Send one more than `count`: somebody waits or is preempted."""
    watched.idle()
    course = run(watched, crowd, count + 1, shape)
    return judge(
        f"{name}, one more of {shape}",
        {
            "all answered 200": course.all_answered,
            "waited or preempted": course.waited + course.preempted > 0,
        },
        f"{count + 1} sent: {course}",
    )


def prove_resident_limit(watched: Watched, crowd: Crowd, name: str, shape: Shape) -> list[Verdict]:
    """Grow `resident_limit` requests to full length: they run together; one more makes the engine preempt."""
    limit = int(watched.idle()["held"])
    course = run(watched, crowd, limit, shape)
    held = judge(
        f"{name}, resident_limit of {shape}",
        {
            "all answered 200": course.all_answered,
            "they ran together": course.together == limit,
            "no preemption": course.preempted == course.suspected == 0,
        },
        f"resident_limit {limit}: {course}",
    )
    watched.idle()
    course = run(watched, crowd, limit + 1, shape)
    more = judge(
        f"{name}, resident_limit and one of {shape}",
        {
            "all answered 200": course.all_answered,
            "they ran together": course.together == limit + 1,
            "the engine preempted": course.preempted > 0,
        },
        f"{limit + 1} sent: {course}",
    )
    return [held, more]


def prove_promise(
    watched: Watched, crowd: Crowd, name: str, shape: Shape, *, first: int, at_usage: float, slowly: bool
) -> Verdict:
    """Call in the promise while `first` run: it never exceeds what can be held, and is kept.

    Windows and states are promised for one prefill at a time (`slowly`); with full attention alone, prompts
    may be read together, and the first request does not end meanwhile.
    """
    send = crowd.send_slowly if slowly else crowd.send
    for _ in range(ATTEMPTS):
        before = watched.idle()
        print(f"\n{first} requests of {shape} tokens, then as many as are promised")
        with watched.recording() as samples:
            send(first, shape)
            reached = watched.until(
                lambda sample: (sample["run"] == first and sample["usage"] >= at_usage) or crowd.done
            )
            promised = int(reached["sure"])
            if not crowd.done:
                send(promised, shape)
            outcomes = crowd.outcomes()
        course = Course(before, samples, outcomes)
        if course.together == first + promised or course.preempted or course.overpromised:
            break
    return judge(
        f"{name}, {first} run and fit_guaranteed more of {shape}",
        {
            "running + fit_guaranteed <= resident_limit at every poll": not course.overpromised,
            "all answered 200": course.all_answered,
            "they ran together": course.together == first + promised,
            "no preemption": course.preempted == course.suspected == 0,
        },
        f"{first} ran at usage {reached['usage']:.3f}, fit_now {reached['now']:.0f}, "
        f"fit_guaranteed {promised}: {course}",
    )


def run(watched: Watched, crowd: Crowd, count: int, shape: Shape, *, slowly: bool = False) -> Course:
    """Send so many requests to an idle engine and record until all are answered."""
    before = watched.idle()
    print(f"\n{count} requests of {shape} tokens")
    with watched.recording() as samples:
        (crowd.send_slowly if slowly else crowd.send)(count, shape)
        outcomes = crowd.outcomes()
    return Course(before, samples, outcomes)
