"""What was seen to change between two moments: starts, settings, neighbours, sleep, ranks, gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.observation import is_same_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvwatch.observation import Neighbour, Observation, Setup, StartWindow
    from kvwatch.triage.moment import Moment
    from kvwatch.triage.question import Record, Window

_LEAST_GAP_SECONDS = 900.0
_APPEARED_BYTES = 256 << 20
"""Smaller processes come and go on every card."""

_FIELDS = {
    "engine": "engine",
    "version": "engine version",
    "model": "model",
    "model_hash": "model configuration",
    "cache_dtype": "cache dtype",
    "tensor_parallel": "tensor parallel",
    "pipeline_parallel": "pipeline parallel",
    "block_size": "block size",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "share_ratio": "gpu_memory_utilization",
    "pin_bytes": "kv_cache_memory_bytes",
    "full_length_tokens": "max_model_len",
    "request_limit": "request limit",
    "driver": "driver",
    "devices": "device",
}
SERVED_NAME = "served_name"
"""The model's name where its configuration is the same: a name, and not another model."""
# The settings of the page that say the same as a field.
_ALIASES = {
    "gpu_memory_utilization": "share_ratio",
    "kv_cache_memory_bytes": "pin_bytes",
    "cache_dtype": "cache_dtype",
    "block_size": "block_size",
    "max_model_len": "full_length_tokens",
    "max_num_seqs": "request_limit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that is another now; `field` is of Setup, or a setting's own name."""

    field: str
    before: str
    after: str

    @property
    def words(self) -> str:
        """Return the setting as people know it."""
        return _FIELDS.get(
            self.field, self.field.replace("_", " ") if self.field == SERVED_NAME else self.field
        )

    @property
    def is_raised(self) -> bool:
        """Tell whether a number became a larger one."""
        try:
            return float(self.after) > float(self.before)
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A neighbour that took memory while the server started."""

    device: str
    neighbour: Neighbour
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All that was seen between two moments."""

    restarted_at: float | None
    """The last start between them, Unix seconds; None where it did not start again, or that is not known."""
    settings: Mapping[str, Change]
    growths: tuple[Growth, ...]
    """Of the start of now, largest first."""
    start_watched: bool
    """Whether the start of now was watched, so that a neighbour's growth would have been seen."""
    slept: tuple[float, float] | None
    """When it last slept between them and since its start, Unix seconds."""
    ranks_lost: tuple[str, ...]
    gap_seconds: float
    """In which nothing was watched between the two windows."""

    @property
    def grown_bytes(self) -> int:
        """Return what neighbours took during the start, on the device where they took most."""
        by_device: dict[str, int] = {}
        for growth in self.growths:
            by_device[growth.device] = by_device.get(growth.device, 0) + growth.bytes
        return max(by_device.values(), default=0)


def changes_of(record: Record, before: Moment, after: Moment) -> Changes:
    """Return what was seen to change."""
    restarted_at = _restart(before, after)
    windows = [one for one in record.start_windows if _is_of(one, after.started_at)]
    growths = [growth for window in windows for growth in _growths(window)] if restarted_at else []
    return Changes(
        restarted_at=restarted_at,
        settings={change.field: change for change in _setting_changes(before.setup, after.setup)},
        growths=tuple(sorted(growths, key=lambda one: -one.bytes)),
        start_watched=any(window.seen_from <= _middle(window) for window in windows),
        slept=_sleep(record, since=max(record.baseline.end_at, after.started_at or 0.0)),
        ranks_lost=tuple(rank for rank in before.ranks if rank not in after.ranks),
        gap_seconds=_gap(record.timeline, record.baseline, record.now),
    )


def _middle(window: StartWindow) -> float:
    return (window.started_at + window.ready_at) / 2


def _restart(before: Moment, after: Moment) -> float | None:
    if before.started_at is None or after.started_at is None:
        return None
    later = after.started_at > before.started_at
    return after.started_at if later and not is_same_start(before.started_at, after.started_at) else None


def _is_of(window: StartWindow, started_at: float | None) -> bool:
    return started_at is not None and is_same_start(window.started_at, started_at) and not window.woke


def _growths(window: StartWindow) -> Iterator[Growth]:
    """Yield who took memory: vLLM takes what others took while it measures for its own."""
    for neighbour in window.neighbours:
        if neighbour.first_bytes is None or neighbour.most_bytes is None:
            continue
        grown = neighbour.most_bytes - neighbour.first_bytes
        if grown > 0:
            yield Growth(device=window.device, neighbour=neighbour, bytes=grown)


def _setting_changes(before: Setup, after: Setup) -> Iterator[Change]:
    told: set[str] = set()
    same_model = before.model_hash is not None and before.model_hash == after.model_hash
    for name in _FIELDS:
        old, new = getattr(before, name), getattr(after, name)
        if name in ("share_ratio", "pin_bytes"):
            # One is absent where the other holds; both absent is unknown.
            known = all(one.share_ratio is not None or one.pin_bytes is not None for one in (before, after))
        else:
            known = old not in (None, ()) and new not in (None, ())
        if known and old != new:
            told.add(name)
            field = SERVED_NAME if name == "model" and same_model else name
            yield Change(field=field, before=_text(old), after=_text(new))
    old_settings, new_settings = dict(before.settings), dict(after.settings)
    for key in sorted(old_settings.keys() & new_settings.keys()):
        if old_settings[key] != new_settings[key] and _ALIASES.get(key) not in told:
            told.add(key)
            yield Change(field=key, before=old_settings[key], after=new_settings[key])
    prints = before.fingerprint, after.fingerprint
    if None not in prints and prints[0] != prints[1] and not told - {"version", "driver", "engine"}:
        yield Change(field="fingerprint", before=str(prints[0]), after=str(prints[1]))


def _text(value: object) -> str:
    if value is None:
        return "not set"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _sleep(record: Record, *, since: float) -> tuple[float, float] | None:
    """Return the last stretch of sleep that ended before now's end."""
    found: tuple[float, float] | None = None
    begin: float | None = None
    for one in sorted(record.timeline, key=lambda step: step.at):
        if one.sleeping:
            begin = one.at if begin is None else begin
        elif begin is not None and one.sleeping is False:
            if one.at > since:
                found = (begin, one.at)
            begin = None
    return found


def _gap(timeline: Sequence[Observation], baseline: Window, now: Window) -> float:
    """Return how long nothing was watched between the windows, short gaps aside."""
    spans = sorted((one.at, one.at + one.seconds) for one in timeline)
    total, reached = 0.0, baseline.end_at
    for start, end in [*spans, (now.start_at, now.start_at)]:
        if start - reached > _LEAST_GAP_SECONDS and start <= now.start_at:
            total += start - reached
        reached = max(reached, end)
    return total


def appeared(record: Record, devices: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Yield (server, device, bytes) of others that are on the devices now and were not then."""
    then = _held(record.others, record.baseline)
    now = _held(record.others, record.now)
    for (server, device), held in sorted(now.items()):
        if device in devices and held - then.get((server, device), 0) > _APPEARED_BYTES:
            yield server, device, held - then.get((server, device), 0)


def _held(others: Sequence[Observation], window: Window) -> dict[tuple[str, str], int]:
    held: dict[tuple[str, str], int] = {}
    for one in sorted(others, key=lambda step: step.at):
        if window.start_at - one.seconds <= one.at < window.end_at:
            for device, used in one.device_bytes.items():
                held[one.server, device] = used
    return held
