"""Polls become minutes."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvwatch.history import columns
from kvwatch.history.recorder import Recorder, step_seconds
from kvwatch.observation import Observation
from kvwatch.readings import SumCount
from tests.history.made import AT, rank, server, silent, snapshot

if TYPE_CHECKING:
    from kvwatch.history.minute import Minute
    from kvwatch.snapshot import Snapshot


def recorded(*snapshots: Snapshot, recorder: Recorder | None = None) -> list[Minute]:
    """Return all minutes of some polls, the open one included."""
    recorder = recorder or Recorder()
    minutes: list[Minute] = []
    for one in snapshots:
        minutes += recorder.record(one)
    return minutes + list(recorder.flush())


def test_every_field_of_an_observation_is_kept() -> None:
    """A field that is added to Observation has to be given a column and a way of joining."""
    kept = {*columns.LATEST, *columns.TYPICAL, *columns.GAINS, *columns.MEANS, *columns.MOST}
    others = {"server", "rank", "at", "seconds", "setup", "waiting_mean", "queue_seconds", "device_bytes"}
    assert {field.name for field in fields(Observation)} == kept | others


def test_a_minute_holds_gains_means_and_the_last_state() -> None:
    """Three polls: counters as gained, gauges as mean and most, the rest as last known."""
    polls = [
        snapshot(
            AT + 5, server(rank(finished=10, running=2, usage=0.2, waiting={"capacity": 0, "deferred": 1}))
        ),
        snapshot(
            AT + 10, server(rank(finished=12, running=4, usage=0.6, waiting={"capacity": 3, "deferred": 1}))
        ),
        snapshot(AT + 15, server(rank(finished=15, running=3, usage=None, capacity=None))),
    ]
    (minute,) = recorded(*polls)
    own = minute.observation
    assert (own.server, own.rank, own.at, own.seconds) == ("chat", "0", AT, 60)
    assert (minute.polls, minute.first_at, minute.last_at) == (3, AT + 5, AT + 15)
    assert (own.finished, own.finished_prompt_tokens, own.finished_generation_tokens) == (5, 1000, 3500)
    assert own.queue_seconds == SumCount(sum=2.5, count=5)
    assert own.generation_tokens == 3550
    assert own.preemptions == 0
    assert (own.running_mean, own.running_max) == (3, 4)
    assert (own.usage_mean, own.usage_max) == (pytest.approx(0.4), 0.6)
    assert own.waiting_mean == {"capacity": pytest.approx(4 / 3), "deferred": pytest.approx(2 / 3)}
    assert own.waiting_max == 4
    assert (own.typical_prompt_tokens, own.typical_generation_tokens, own.typical_capacity) == (200, 700, 3.4)
    assert (own.usable_blocks, own.usable_bytes, own.started_at) == (99, 99 * 32768, 1000)
    assert own.device_bytes == {"GPU-0": 700}
    setup = own.setup
    assert (setup.engine, setup.model, setup.version, setup.fingerprint) == (
        "vllm", "tiny", "0.32.0", "0123456789ab",
    )  # fmt: skip
    assert setup.settings == (("block_size", "32"), ("model_len", "1024"))
    assert (setup.devices, setup.driver, setup.request_limit) == (("GPU-0",), "580.1", 16)
    assert (setup.block_size, setup.resident_blocks, setup.full_length_tokens) == (32, 32, 1024)


def test_what_is_unknown_stays_unknown_and_a_measured_zero_zero() -> None:
    """A page without counters gives None; a counter that stands still gives 0; one poll gives no gain."""
    (minute,) = recorded(
        snapshot(
            AT + 5,
            server(rank("0", finished=7), rank("1", finished=None, running=None, usage=None, waiting={})),
        ),
    )[:1]
    assert minute.observation.finished is None
    _, unknown = recorded(
        *(
            snapshot(
                AT + seconds,
                server(rank("0", finished=7), rank("1", finished=None, running=None, usage=None, waiting={})),
            )
            for seconds in (5, 10)
        )
    )
    own = unknown.observation
    assert (own.finished, own.queue_seconds, own.running_mean, own.usage_max) == (None, None, None, None)
    assert (own.waiting_mean, own.waiting_max, own.suspected) == ({}, None, None)
    (still,) = recorded(*(snapshot(AT + seconds, server(rank(finished=7))) for seconds in (5, 10)))
    assert (still.observation.finished, still.observation.queue_seconds) == (0, SumCount(sum=0, count=0))


def test_a_gain_across_the_boundary_counts_in_the_later_minute() -> None:
    """So that nothing between two minutes is lost."""
    first, second = recorded(
        snapshot(AT + 50, server(rank(finished=10))),
        snapshot(AT + 58, server(rank(finished=11))),
        snapshot(AT + 63, server(rank(finished=14))),
    )
    assert (first.observation.at, first.observation.finished) == (AT, 1)
    assert (second.observation.at, second.observation.finished) == (AT + 60, 3)


RESTARTS = {
    "the counter fell": (
        server(rank(finished=100), started_at=None), server(rank(finished=3), started_at=None), 3,
    ),
    "the start time moved and the counter fell": (
        server(rank(finished=100)), server(rank(finished=3), started_at=2000.0), 3,
    ),
    "the start time moved and the counter is higher": (
        server(rank(finished=3)), server(rank(finished=5), started_at=2000.0), 5,
    ),
    "the start time flickers by a second": (
        server(rank(finished=3)), server(rank(finished=5), started_at=1001.0), 2,
    ),
    "the start time is not known any more": (
        server(rank(finished=3)), server(rank(finished=5), started_at=None), 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("situation", RESTARTS)
def test_a_restart_gives_what_was_counted_since(situation: str) -> None:
    """Never a negative gain, never the whole counter where the server went on."""
    before, after, gained = RESTARTS[situation]
    (minute,) = recorded(snapshot(AT + 5, before), snapshot(AT + 10, after))
    assert minute.observation.finished == gained


def test_one_counter_that_fell_speaks_for_all_of_its_rank() -> None:
    """The queue's sum grew past its old value, but the engine began anew: it gained all of what it has."""
    before = rank(finished=100)
    after = replace(
        rank(finished=3),
        reading=replace(rank(finished=3).reading, queue_seconds=SumCount(sum=90.0, count=120.0)),
    )
    (minute,) = recorded(
        snapshot(AT + 5, server(before, started_at=None)), snapshot(AT + 10, server(after, started_at=None))
    )
    assert minute.observation.queue_seconds == SumCount(sum=90, count=120)


@pytest.mark.parametrize("answers", [True, False], ids=["seen failing", "not seen at all"])
def test_after_a_long_load_a_restarted_server_counts_from_zero(answers: bool) -> None:  # noqa: FBT001 - a situation
    """It was tried all the while, so what it has counted is new; where nobody looked, nothing is known."""
    tries = [snapshot(AT + 10 + 60 * number, silent()) for number in range(20)] if answers else []
    minutes = recorded(
        snapshot(AT + 5, server(rank(finished=100))),
        *tries,
        snapshot(AT + 1215, server(rank(finished=4), started_at=2000.0)),
    )
    assert minutes[-1].observation.finished == (4 if answers else None)


def test_over_a_long_gap_nothing_is_said() -> None:
    """Six minutes without an answer belong to no minute; four are counted when they are over."""
    for gap, gained in ((240, 90), (360, None)):
        tries = [snapshot(AT + 10 + 5 * number, silent()) for number in range(gap // 5 - 2)]
        last = recorded(
            snapshot(AT, server(rank(finished=10))), *tries, snapshot(AT + gap, server(rank(finished=100)))
        )[-1]
        assert last.observation.finished == gained
    with_long_interval = recorded(
        snapshot(AT, server(rank(finished=10)), interval=600),
        snapshot(AT + 600, server(rank(finished=100)), interval=600),
        recorder=Recorder(step=step_seconds(600)),
    )
    assert [minute.observation.seconds for minute in with_long_interval] == [600] * len(with_long_interval)
    assert with_long_interval[-1].observation.finished == 90


def test_a_minute_without_an_answer_has_no_row() -> None:
    """Nothing is carried over."""
    minutes = recorded(
        snapshot(AT + 5, server(rank())), snapshot(AT + 65, silent()), snapshot(AT + 125, server(rank()))
    )
    assert [minute.observation.at for minute in minutes] == [AT, AT + 120]


def test_own_counter_does_not_begin_anew_with_the_engine() -> None:
    """Suspected recomputes are kvwatch's count."""
    (minute,) = recorded(
        snapshot(AT + 5, server(rank(finished=100)), suspected={("chat", "0"): 6}),
        snapshot(AT + 10, server(rank(finished=3), started_at=2000.0), suspected={("chat", "0"): 8}),
    )
    assert minute.observation.suspected == 2


def test_after_a_restart_in_the_minute_only_the_new_life_is_told() -> None:
    """The old life's typical lengths are not the new one's; its gains stay."""
    (minute,) = recorded(
        snapshot(AT + 5, server(rank(finished=10))),
        snapshot(AT + 10, server(rank(finished=14))),
        snapshot(AT + 30, server(rank(finished=1, capacity=None), started_at=2000.0, fingerprint="other")),
    )
    own = minute.observation
    assert (own.started_at, own.typical_capacity, own.setup.fingerprint) == (2000, None, "other")
    assert own.finished == 5


def test_a_page_that_is_missing_once_changes_no_setup() -> None:
    """Less known is no news; something else is."""
    whole = server(rank())
    less = replace(whole, fingerprint=None, share_ratio=None)
    (minute,) = recorded(snapshot(AT + 5, whole), snapshot(AT + 10, less))
    assert minute.observation.setup.fingerprint == "0123456789ab"
    (minute,) = recorded(snapshot(AT + 5, whole), snapshot(AT + 10, replace(less, fingerprint="other")))
    assert (minute.observation.setup.fingerprint, minute.observation.setup.share_ratio) == ("other", None)


def test_a_forward_jump_of_the_clock_leaves_a_hole_and_no_garbage() -> None:
    """An hour passes on the wall in five seconds: two rows, the gain is that of five seconds."""
    minutes = recorded(
        snapshot(AT + 5, server(rank(finished=10)), monotonic=5),
        snapshot(AT + 3610, server(rank(finished=12), started_at=4600.0), monotonic=10),
    )
    assert [minute.observation.at for minute in minutes] == [AT, AT + 3600]
    assert minutes[1].observation.finished == 2, "a start time of /proc moves along with the clock"


def test_a_backward_jump_ends_the_minute_and_goes_on_from_there() -> None:
    """The same minutes come again: the store decides. Gains go on by the monotonic clock."""
    minutes = recorded(
        snapshot(AT + 5, server(rank(finished=10)), monotonic=5),
        snapshot(AT + 65, server(rank(finished=11)), monotonic=65),
        snapshot(AT + 10, server(rank(finished=13)), monotonic=70),
    )
    assert [minute.observation.at for minute in minutes] == [AT, AT + 60, AT]
    assert [minute.observation.finished for minute in minutes] == [None, 1, 2]


def test_an_unknown_word_of_waiting_is_unspecified() -> None:
    """Nothing that waits is lost."""
    (minute,) = recorded(snapshot(AT, server(rank(waiting={"capacity": 1, "weather": 2, "unspecified": 4}))))
    assert set(minute.observation.waiting_mean) == {"capacity", "unspecified"}
    assert minute.observation.waiting_max == 7


def test_servers_that_are_no_longer_watched_are_forgotten() -> None:
    """Memory does not grow with servers that came and went."""
    recorder = Recorder()
    for number in range(50):
        recorder.record(snapshot(AT + 400 * number, server(rank(), name=f"s{number}")))
    assert len(recorder._servers) == 1


POLLS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 50), st.booleans(), st.booleans()), min_size=2, max_size=60
)


@pytest.mark.parametrize("start_known", [True, False])
@given(polls=POLLS)
def test_gains_add_up_to_what_was_counted(
    start_known: bool,  # noqa: FBT001 - a situation
    polls: list[tuple[int, int, bool, bool]],
) -> None:
    """Whatever restarts and failed polls: the gains of all minutes are what each life counted, exactly."""
    seconds, total, start = 0, 100, 1000.0
    seen: list[tuple[int, float, int]] = []
    snapshots = []
    for step, gained, restarts, fails in polls:
        seconds += step
        if restarts:
            total, start = 0, start + 100
        total += gained
        if fails:
            snapshots.append(snapshot(AT + seconds, silent()))
            continue
        seen.append((seconds, start, total))
        own = server(rank(finished=float(total)), started_at=start if start_known else None)
        snapshots.append(snapshot(AT + seconds, own))
    assume(all(later[0] - before[0] <= 300 for before, later in pairwise(seen)))
    expected = 0
    for (_, start_before, before), (_, start, now) in pairwise(seen):
        anew = start != start_before if start_known else now < before
        expected += now if anew else now - before
    observations = [minute.observation for minute in recorded(*snapshots)]
    assert math.fsum(own.finished or 0 for own in observations) == expected
    assert all(own.finished is None or own.finished >= 0 for own in observations)
    moments = [own.at for own in observations]
    assert moments == sorted(set(moments))
