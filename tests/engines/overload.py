"""Proof that preemption is told early: before the engine's own counter moves, and by the counter after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verdict import Verdict, judge

if TYPE_CHECKING:
    from crowd import Crowd, Shape
    from watched import Sample, Watched


def prove_early_signal(watched: Watched, crowd: Crowd, name: str, count: int, shape: Shape) -> Verdict:
    """Overload the engine: suspected recomputes are counted while its own counter still stands."""
    before = watched.idle()
    print(f"\n{count} requests of {shape} tokens at once")
    with watched.recording() as samples:
        crowd.send(count, shape, gap=0.0)
        outcomes = crowd.outcomes()
    samples = [sample for sample in samples if not sample.blind]
    suspected = first_rise(samples, before, "suspect")
    counted = first_rise(samples, before, "preempt")
    told = f"{samples[-1]['suspect'] - before['suspect']:.0f} suspected"
    told += f", {samples[-1]['preempt'] - before['preempt']:.0f} counted"
    if suspected and counted:
        told += f"; first suspected after {suspected.second - samples[0].second:.1f} s"
        told += f" (the counter stood at +{suspected['preempt'] - before['preempt']:.0f})"
        told += f", counted after {counted.second - samples[0].second:.1f} s"
    return judge(
        f"{name}, early signal",
        {
            "all answered 200": set(outcomes) == {"200"},
            "suspected": suspected is not None,
            "counted": counted is not None,
            "suspected before counted": bool(suspected and counted and suspected.second < counted.second),
            "nothing promised while anybody waits": all(s["sure"] == 0 for s in samples if s["wait"] > 0),
        },
        told,
    )


def first_rise(samples: list[Sample], before: Sample, column: str) -> Sample | None:
    """Return the first sample whose column is above what it was before."""
    return next((sample for sample in samples if sample[column] > before[column]), None)
