"""A minute as a row of the file, and back. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.history import columns
from kvwatch.history.codec import bytes_from, bytes_text
from kvwatch.history.minute import Minute
from kvwatch.history.schema import MINUTE_COLUMNS
from kvwatch.observation import Observation
from kvwatch.readings import SumCount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.observation import Setup

_PLAIN = (*columns.LATEST, *columns.TYPICAL, *columns.GAINS, *columns.MEANS, *columns.MOST)
_PLACE = {name: index for index, name in enumerate(MINUTE_COLUMNS)}
_PLAIN_PLACES = tuple((name, _PLACE[name]) for name in _PLAIN if name != "sleeping")
_WAITING_PLACES = tuple(
    (reason, _PLACE[column]) for reason, column in zip(columns.WAITING, columns.WAITING_COLUMNS, strict=True)
)
_QUEUE_SUM, _QUEUE_COUNT = (_PLACE[name] for name in columns.QUEUE_COLUMNS)
_POLLS, _FIRST, _LAST = (_PLACE[name] for name in columns.PART_COLUMNS)
_AT, _SECONDS, _SETUP = _PLACE["at"], _PLACE["seconds"], _PLACE["setup"]
_SLEEPING, _DEVICE_BYTES = _PLACE["sleeping"], _PLACE["device_bytes"]


def row_of(minute: Minute, *, series: int, setup: int, devices: Mapping[str, int]) -> tuple[Any, ...]:
    """Return the values of MINUTE_COLUMNS; `devices` is UUID -> its number in the file."""
    observation = minute.observation
    queue = observation.queue_seconds
    values: dict[str, Any] = {name: getattr(observation, name) for name in _PLAIN}
    values |= {
        "series": series,
        "at": int(observation.at),
        "seconds": int(observation.seconds),
        "setup": setup,
        "polls": minute.polls,
        "first_ms": round((minute.first_at - observation.at) * 1000),
        "last_ms": round((minute.last_at - observation.at) * 1000),
        "queue_sum": None if queue is None else queue.sum,
        "queue_count": None if queue is None else queue.count,
        "device_bytes": bytes_text({devices[uuid]: used for uuid, used in observation.device_bytes.items()}),
    }
    for reason, column in zip(columns.WAITING, columns.WAITING_COLUMNS, strict=True):
        values[column] = observation.waiting_mean.get(reason)
    return tuple(values[name] for name in MINUTE_COLUMNS)


def observation_of(
    row: Sequence[Any], *, server: str, rank: str, setups: Mapping[int, Setup], devices: Mapping[int, str]
) -> Observation:
    """Return the observation that a row is of; `devices` is number in the file -> UUID."""
    queue_sum, queue_count = row[_QUEUE_SUM], row[_QUEUE_COUNT]
    sleeping = row[_SLEEPING]
    values = {name: row[place] for name, place in _PLAIN_PLACES}
    return Observation(
        server=server,
        rank=rank,
        at=float(row[_AT]),
        seconds=float(row[_SECONDS]),
        setup=setups[row[_SETUP]],
        sleeping=None if sleeping is None else bool(sleeping),
        waiting_mean={reason: row[place] for reason, place in _WAITING_PLACES if row[place] is not None},
        queue_seconds=None
        if queue_sum is None or queue_count is None
        else SumCount(sum=queue_sum, count=queue_count),
        device_bytes={devices[number]: used for number, used in bytes_from(row[_DEVICE_BYTES]).items()},
        **values,
    )


def minute_of(row: Sequence[Any], observation: Observation) -> Minute:
    """Return the minute of a row and the observation that was made of it."""
    return Minute(
        observation=observation,
        polls=row[_POLLS],
        first_at=observation.at + row[_FIRST] / 1000,
        last_at=observation.at + row[_LAST] / 1000,
    )
