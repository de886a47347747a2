"""The ring of what processes held: changes only, bounded, and unknown where nobody looked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.memory_ring import RETENTION_SECONDS, SAMPLES, MemoryRing, Series
from kvwatch.readings import DeviceReading, ProcessIdentity, ProcessTable, Reason
from kvwatch.snapshot import DeviceState, Match, ProcessState

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Poll:
    """What one poll saw on the one device; `processes` is None where there was no device."""

    at: float
    processes: Mapping[int, int | None] | None
    ticks: Mapping[int, int] | None = None
    """Of those that /proc tells; all of them by default."""
    whole: bool = True
    free: int | None = 0


def ring_after(*polls: Poll) -> MemoryRing:
    """Return the ring after these polls."""
    ring = MemoryRing()
    for poll in polls:
        held = poll.processes or {}
        ticks = dict.fromkeys(held, 7) if poll.ticks is None else poll.ticks
        device = DeviceState(
            reading=DeviceReading(
                uuid="GPU-0", index=0, name="card", driver="1", free_bytes=poll.free,
                processes_reason=None if poll.whole else Reason.TIMEOUT,
            )
        )  # fmt: skip
        ring = ring.advance(
            poll.at,
            () if poll.processes is None else (device,),
            tuple(
                ProcessState(
                    device="GPU-0", pid=pid, used_bytes=used, name=f"p{pid}", server=None, match=Match.NONE
                )
                for pid, used in held.items()
            ),
            ProcessTable(
                processes={
                    pid: ProcessIdentity(pid=pid, start_ticks=own, parent_pid=1, name=f"p{pid}")
                    for pid, own in ticks.items()
                }
            ),
        )
    return ring


def held(ring: MemoryRing, pid: int, ticks: int | None = 7) -> list[tuple[float, int | None]]:
    """Return a process's samples."""
    return [
        (sample.at, sample.bytes) for sample in ring.tracks["GPU-0", pid, ticks].series.samples
    ]  # fmt: skip


HISTORIES: dict[str, tuple[MemoryRing, list[tuple[float, int | None]]]] = {
    "there from the start": (ring_after(Poll(at=0, processes={1: 5})), [(0, 5)]),
    "as before": (ring_after(Poll(at=0, processes={1: 5}), Poll(at=5, processes={1: 5})), [(0, 5)]),
    "grown": (ring_after(Poll(at=0, processes={1: 5}), Poll(at=5, processes={1: 9})), [(0, 5), (5, 9)]),
    "come later": (ring_after(Poll(at=0, processes={}), Poll(at=5, processes={1: 5})), [(0, 0), (5, 5)]),
    "come much later": (
        ring_after(Poll(at=0, processes={}), Poll(at=5, processes={}), Poll(at=10, processes={1: 5})),
        [(0, 0), (10, 5)]),
    "come later, and one list in between was cut": (
        ring_after(
            Poll(at=0, processes={}), Poll(at=5, processes={}, whole=False), Poll(at=10, processes={}),
            Poll(at=15, processes={1: 5}),
        ), [(10, 0), (15, 5)]),
    "come later, and the list before was cut": (
        ring_after(Poll(at=0, processes={}, whole=False), Poll(at=5, processes={1: 5})), [(5, 5)]),
    "gone": (ring_after(Poll(at=0, processes={1: 5}), Poll(at=5, processes={})), [(0, 5), (5, 0)]),
    "not in a list that is cut": (
        ring_after(Poll(at=0, processes={1: 5}), Poll(at=5, processes={}, whole=False)), [(0, 5), (5, None)]),
    "the device was lost": (
        ring_after(Poll(at=0, processes={1: 5}), Poll(at=5, processes=None)), [(0, 5), (5, None)]),
    "N/A for a while": (
        ring_after(*(Poll(at=at, processes={1: used}) for at, used in ((0, 5), (5, None), (10, 5)))),
        [(0, 5), (5, None), (10, 5)]),
    "/proc did not tell for a while": (
        ring_after(
            Poll(at=0, processes={1: 5}), Poll(at=5, processes={1: 6}, ticks={}), Poll(at=9, processes={1: 6})
        ), [(0, 5), (5, 6)]),
}  # fmt: skip


@pytest.mark.parametrize("situation", HISTORIES)
def test_what_a_process_held(situation: str) -> None:
    """Changes only; zero where it was certainly not there, unknown where nobody could see."""
    ring, expected = HISTORIES[situation]
    assert held(ring, 1) == expected


def test_a_pid_that_is_used_again_is_another_process() -> None:
    """The start time tells them apart; the first one is gone."""
    ring = ring_after(
        Poll(at=0, processes={1: 5}), Poll(at=5, processes={1: 8}, ticks={1: 99})
    )  # fmt: skip
    assert held(ring, 1) == [(0, 5), (5, 0)]
    assert held(ring, 1, 99) == [(0, 0), (5, 8)]


def test_what_is_long_over_is_forgotten() -> None:
    """A process that ended before the retention began leaves nothing; one that stands still stays."""
    late = RETENTION_SECONDS + 20
    ring = ring_after(
        Poll(at=0, processes={1: 5, 2: 5}),
        Poll(at=10, processes={2: 5}),
        Poll(at=late, processes={2: 5}, free=9),
    )
    assert [key[1] for key in ring.tracks] == [2]
    assert held(ring, 2) == [(0, 5)]
    assert ring.free["GPU-0"].value_at(late) == 9
    assert ring.began_at == 0


def test_a_process_that_never_rests_is_kept_in_bounds() -> None:
    """A training job that changes at every poll: bounded samples, and its peak survives."""
    polls = [Poll(at=5.0 * step, processes={1: 1000 + step % 50}) for step in range(1000)]
    polls[300] = Poll(at=1500.0, processes={1: 7777})
    ring = ring_after(*polls)
    series = ring.tracks["GPU-0", 1, 7].series
    assert len(series.samples) <= SAMPLES
    assert series.most_between(1400, 1600) == 7777
    assert series.value_at(4990) == polls[998].processes[1]  # type: ignore[index]


@given(st.lists(st.integers(0, 10**12) | st.none(), max_size=400), st.integers(0, 400), st.integers(0, 400))
def test_a_peak_is_never_lost_by_merging(values: list[int | None], first: int, length: int) -> None:
    """Over any stretch the most that was seen is at least the true one, and never more than ever was."""
    series = Series()
    for at, value in enumerate(values):
        series = series.add(float(at), value)
    inside = [value for value in values[first : first + length + 1] if value is not None]
    most = series.most_between(float(first), float(first + length))
    assert len(series.samples) <= SAMPLES
    if inside:
        assert most is not None
        assert max(inside) <= most <= max(value for value in values if value is not None)
