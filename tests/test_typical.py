"""The typical request: a window over an engine's cumulative sums."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.typical import FinishedTotals, LengthWindow, TypicalLength


def totals(at: float, requests: float, prompt: float, generation: float) -> FinishedTotals:
    """Return the sums at one moment."""
    return FinishedTotals(at=at, requests=requests, prompt_tokens=prompt, generation_tokens=generation)


def length(prompt: float, generation: float, requests: float) -> TypicalLength:
    """Return a typical length."""
    return TypicalLength(prompt_tokens=prompt, generation_tokens=generation, requests=requests)


def window_over(*samples: FinishedTotals, seconds: float = 900.0) -> LengthWindow:
    """Return the window after these samples."""
    window = LengthWindow(window_seconds=seconds)
    for sample in samples:
        window = window.add(sample)
    return window


SITUATIONS = {
    "never asked": ((), None),
    "asked once: what finished before is not of this window": ((totals(0, 50, 5000, 500),), None),
    "nothing finished since": ((totals(0, 50, 5000, 500), totals(5, 50, 5000, 500)), None),
    "two finished": ((totals(0, 0, 0, 0), totals(5, 2, 300, 100)), length(150, 50, 2)),
    "one finished that generated nothing": ((totals(0, 0, 0, 0), totals(5, 1, 300, 0)), length(300, 0, 1)),
    "old lengths leave the window": (
        (totals(0, 0, 0, 0), totals(500, 10, 1000, 100), totals(1000, 10, 1000, 100),
         totals(1500, 12, 9000, 300)),
        length(4000, 100, 2)),
    "the counters started anew": (
        (totals(0, 90, 9000, 900), totals(5, 0, 0, 0), totals(10, 1, 700, 70)), length(700, 70, 1)),
    "the counters started anew and nothing finished since": (
        (totals(0, 90, 9000, 900), totals(5, 100, 9900, 990), totals(10, 1, 700, 70)), None),
    "only the prompts' tokens fell": (
        (totals(0, 5, 9000, 900), totals(5, 6, 100, 910), totals(10, 8, 300, 930)), length(100, 10, 2)),
    "only the generated tokens fell": (
        (totals(0, 5, 9000, 900), totals(5, 6, 9100, 10), totals(10, 8, 9300, 30)), length(100, 10, 2)),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_typical_request(situation: str) -> None:
    """The mean is of the requests that finished in the window, and unknown when none did."""
    samples, expected = SITUATIONS[situation]
    assert window_over(*samples).typical() == expected


def test_a_window_of_a_day_of_polls_keeps_only_its_own() -> None:
    """What left the window is not kept, apart from the one sample that the difference needs."""
    window = window_over(*(totals(5 * poll, poll, 100 * poll, poll) for poll in range(2000)))
    assert [sample.at for sample in window.samples] == [5 * poll for poll in range(1819, 2000)]


@st.composite
def histories(draw: st.DrawFn) -> list[FinishedTotals]:
    """Return an engine's sums at growing moments, with restarts in between."""
    moments = accumulate(draw(st.lists(st.integers(1, 400), min_size=1, max_size=25)))
    history: list[FinishedTotals] = []
    requests = prompt = generation = 0
    for at in moments:
        if draw(st.integers(0, 7)) == 0:
            requests = prompt = generation = 0
        for _ in range(draw(st.integers(0, 3))):
            requests += 1
            prompt += draw(st.integers(1, 5000))
            generation += draw(st.integers(1, 5000))
        history.append(totals(at, requests, prompt, generation))
    return history


@settings(max_examples=50, deadline=None)
@given(histories())
def test_the_window_equals_a_recomputation_from_the_whole_history(history: list[FinishedTotals]) -> None:
    """Adding sample by sample gives what looking at all of them at once gives."""
    last = history[-1]
    since_restart = [last]
    for earlier, later in zip(reversed(history[:-1]), reversed(history), strict=False):
        if later.requests < earlier.requests or later.prompt_tokens < earlier.prompt_tokens or (
            later.generation_tokens < earlier.generation_tokens
        ):  # fmt: skip
            break
        since_restart.insert(0, earlier)
    outside = [sample for sample in since_restart if sample.at <= last.at - 900]
    first = outside[-1] if outside else since_restart[0]
    requests = last.requests - first.requests
    expected = (
        length(
            (last.prompt_tokens - first.prompt_tokens) / requests,
            (last.generation_tokens - first.generation_tokens) / requests,
            requests,
        )
        if requests
        else None
    )
    assert window_over(*history).typical() == expected
