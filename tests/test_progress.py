"""What happened to a server from poll to poll."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.progress import Progress, suspected_recomputes
from kvwatch.readings import EngineReading, RankReading, SumCount

if TYPE_CHECKING:
    from collections.abc import Mapping


def rank(
    running: int | None, waiting: int | None, finished: float | None, *, name: str = "0", **more: Any
) -> RankReading:
    """Return a rank's reading; finished requests are split over two reasons."""
    return replace(
        RankReading(
            rank=name,
            running=running,
            waiting={} if waiting is None else {"capacity": waiting, "deferred": 0},
            finished_total={} if finished is None else {"stop": finished, "abort": 0.0},
        ),
        **more,
    )


def engine(*ranks: RankReading, settings: Mapping[str, str] | None = None) -> EngineReading:
    """Return an engine's reading."""
    return EngineReading(engine="vllm", ranks=ranks, settings=tuple((settings or {}).items()))


SUSPECTED = {
    "the first poll": (None, rank(5, 0, 9), 0),
    "nothing happened": (rank(5, 2, 9), rank(5, 2, 9), 0),
    "six stopped running, six more wait": (rank(11, 13, 0), rank(5, 19, 0), 6),
    "six stopped running because they finished": (rank(11, 13, 0), rank(5, 13, 6), 0),
    "four of six finished": (rank(11, 13, 0), rank(5, 15, 4), 2),
    "four of six finished, and more came": (rank(11, 13, 0), rank(5, 23, 4), 2),
    "more wait because more came": (rank(5, 2, 9), rank(5, 8, 9), 0),
    "fewer wait than stopped running": (rank(11, 13, 0), rank(5, 15, 0), 2),
    "the queue shrank": (rank(11, 13, 0), rank(5, 10, 0), 0),
    "more run than before": (rank(5, 13, 0), rank(8, 16, 0), 0),
    "the server restarted": (rank(11, 0, 500), rank(0, 5, 0), 0),
    "unknown before": (rank(None, None, None), rank(5, 19, 0), 0),
    "the engine does not say what finished": (rank(11, 13, None), rank(5, 19, None), None),
    "the engine does not say what waits": (rank(11, None, 0), rank(5, None, 0), None),
    "the engine does not say what runs": (rank(None, 13, 0), rank(None, 19, 0), None),
}


@pytest.mark.parametrize("situation", SUSPECTED)
def test_requests_that_seem_to_have_been_preempted(situation: str) -> None:
    """Running lost without finishing while as many began to wait; where a part is unknown, no count."""
    before, now, expected = SUSPECTED[situation]
    counts = suspected_recomputes(None if before is None else engine(before), engine(now))
    assert counts == ({} if expected is None else {"0": expected})


def test_ranks_are_counted_apart() -> None:
    """One rank's preemptions are not hidden by another's new requests."""
    before = engine(rank(10, 0, 0, name="0"), rank(2, 0, 0, name="1"))
    now = engine(rank(7, 3, 0, name="0"), rank(9, 0, 0, name="1"), rank(1, 0, 0, name="2"))
    assert suspected_recomputes(before, now) == {"0": 3, "1": 0, "2": 0}


def advance(
    progress: Progress, reading: EngineReading | None, at: float, *, window_seconds: float = 900.0
) -> Progress:
    """Return the progress after a poll at this moment."""
    return progress.advance(reading, now=1000.0 + at, at=at, window_seconds=window_seconds)


def test_suspicions_add_up_and_survive_a_gap() -> None:
    """A counter only grows, and across polls without an answer nothing is concluded."""
    progress = Progress()
    for at, reading in enumerate(
        (
            engine(rank(11, 13, 0)),
            engine(rank(5, 19, 0)),
            None,
            engine(rank(1, 23, 0)),
            engine(rank(0, 24, 0)),
        )
    ):
        progress = advance(progress, reading, at)
    assert progress.suspected == {"0": 7}


def lengths(count: float, prompt: float, generation: float) -> dict[str, Any]:
    """Return the sums over finished requests."""
    return {
        "finished_prompt_tokens": SumCount(sum=prompt, count=count),
        "finished_generation_tokens": SumCount(sum=generation, count=count),
    }


def test_the_window_goes_on_over_a_gap_and_over_a_changed_length() -> None:
    """Cumulative sums need no answer in between; a reload of the window's length applies at once."""
    progress = Progress()
    for at, reading in (
        (0.0, engine(rank(1, 0, 0, **lengths(0, 0, 0)))),
        (5.0, None),
        (10.0, engine(rank(1, 0, 4, **lengths(4, 400, 40)))),
        (20.0, engine(rank(1, 0, 5, **lengths(5, 900, 90)))),
    ):
        progress = advance(progress, reading, at)
    typical = progress.windows["0"].typical()
    assert typical is not None
    assert (typical.prompt_tokens, typical.generation_tokens) == (180, 18)
    progress = advance(progress, engine(rank(1, 0, 6, **lengths(6, 1900, 290))), 30.0, window_seconds=10.0)
    typical = progress.windows["0"].typical()
    assert typical is not None
    assert (typical.prompt_tokens, typical.generation_tokens) == (1000, 200)


def test_without_sums_there_is_no_typical_request() -> None:
    """An engine that does not count finished requests, as llama-server, has no typical one."""
    progress = advance(advance(Progress(), engine(rank(1, 0, 0)), 0), engine(rank(1, 0, 4)), 5)
    assert progress.windows["0"].typical() is None


A = {"block_size": "16", "max_model_len": "1024"}
SETTINGS: dict[str, tuple[list[dict[str, str] | None], float | None]] = {
    "never changed": ([A, A, A], None),
    "one value changed": ([A, A, {**A, "block_size": "32"}], 1002.0),
    "the last change counts": ([A, {**A, "block_size": "32"}, A], 1002.0),
    "changed while the server was away": ([A, None, {**A, "max_model_len": "2048"}], 1002.0),
    "the page that states a setting was missing for a while": ([A, {"block_size": "16"}, A], None),
    "changed while the page that states it was missing": (
        [A, {"block_size": "16"}, {**A, "max_model_len": "2048"}], 1002.0),
    "a setting appeared with a new version": ([A, {**A, "kv_offloading_size": "None"}], None),
    "the server restarted as it was": ([A, None, A], None),
}  # fmt: skip


@pytest.mark.parametrize("situation", SETTINGS)
def test_a_change_of_settings_is_noticed_and_a_missing_page_is_none(situation: str) -> None:
    """Only a setting that was known before and is another now is a change."""
    polls, changed_at = SETTINGS[situation]
    progress = Progress()
    for at, settings in enumerate(polls):
        reading = None if settings is None else engine(rank(0, 0, 0), settings=settings)
        progress = advance(progress, reading, at)
    assert progress.config_changed_at == changed_at


def test_a_fingerprint_changes_with_a_setting_and_not_with_the_order() -> None:
    """Twelve hex digits of the settings; none before any was seen."""
    first = Progress(settings={"a": "1", "b": "2"}).fingerprint
    assert first == Progress(settings={"b": "2", "a": "1"}).fingerprint
    assert first != Progress(settings={"a": "1", "b": "3"}).fingerprint
    assert first is not None
    assert len(first) == 12
    assert Progress().fingerprint is None


def test_another_engine_at_the_address_leaves_no_settings_behind() -> None:
    """A server that was another engine for a while has its own fingerprint again, and both were changes."""
    own = engine(rank(0, 0, 0), settings={"slots": "4"})
    other = replace(engine(rank(0, 0, 0), settings={"block_size": "16"}), engine="llamacpp")
    progress = Progress()
    seen = []
    for at, reading in enumerate((own, other, None, own)):
        progress = progress.advance(reading, now=100.0 + at, at=float(at), window_seconds=900.0)
        seen.append((progress.fingerprint, progress.config_changed_at))
    first, changed, gap, again = seen
    assert first == (Progress(settings={"slots": "4"}).fingerprint, None)
    assert changed == gap == (Progress(settings={"block_size": "16"}).fingerprint, 101.0)
    assert again == (first[0], 103.0)
