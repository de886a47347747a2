"""What a server was made of, step by step, from its exported `*_info` series and gauges. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch import metrics
from kvwatch.observation import Setup
from kvwatch.snapshot import KvGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvwatch.triage.prometheus_series import Series

_WHOLE = 1e-6

Labels = dict[int, "Mapping[str, str]"]
"""Step -> the labels that a family had there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What one rank's gauges say of its blocks at one step; None where they do not."""

    usable_blocks: int | None
    usable_bytes: int | None
    bytes_per_block: int | None
    resident_blocks: int | None
    """R at full length."""


def blocks_of(
    *,
    usable_blocks: float | None,
    usable_bytes: float | None,
    capacity_tokens: float | None,
    full_length: float | None,
) -> Blocks:
    """Return a rank's blocks from its gauges: capacity_tokens is usable blocks / R x full length."""
    tokens = None if usable_blocks is None or full_length is None else usable_blocks * full_length
    return Blocks(
        usable_blocks=None if usable_blocks is None else round(usable_blocks),
        usable_bytes=None if usable_bytes is None else round(usable_bytes),
        bytes_per_block=_quotient(usable_bytes, usable_blocks),
        resident_blocks=_quotient(tokens, capacity_tokens),
    )


class Setups:
    """The setups of one server by step; steps that are alike share one value."""

    def __init__(
        self, series: Sequence[Series], drivers: Mapping[str, str], index: Callable[[float], int]
    ) -> None:
        self._index = index
        self._drivers = drivers
        by_name: dict[str, list[Series]] = {}
        for one in series:
            by_name.setdefault(one.name, []).append(one)
        self._info = self._labels(by_name.get(metrics.SERVER_INFO.name, ()))
        self._config = self._labels(by_name.get(metrics.SERVER_CONFIG_INFO.name, ()))
        self._groups = self._group_labels(by_name.get(metrics.KV_GROUP_INFO.name, ()))
        self._values = {
            metric.name: self._numbers(by_name.get(metric.name, ()))
            for metric in (metrics.SERVER_SHARE, metrics.SERVER_PIN, metrics.FULL_LENGTH)
        }
        self._devices = [
            (one.labels.get("device", ""), {index(at) for at, _ in one.samples})
            for one in by_name.get(metrics.SERVER_DEVICE_MEMORY.name, ())
        ]
        self._made: dict[object, Setup] = {}

    def at(self, step: int, *, request_limit: float | None, blocks: Blocks) -> Setup:
        """Return the setup of a step, with what its rank says of the pool."""
        info, config = self._info.get(step, {}), self._config.get(step, {})
        groups = _current(self._groups, step)
        share, pin, full = (values.get(step) for values in self._values.values())
        devices = tuple(sorted(device for device, steps in self._devices if step in steps))
        key = (
            tuple(info.items()), tuple(config.items()), groups, share, pin, full, devices, request_limit,
            blocks.bytes_per_block, blocks.resident_blocks,
        )  # fmt: skip
        if key not in self._made:
            self._made[key] = Setup(
                engine=info.get("engine") or None,
                model=info.get("model") or None,
                version=info.get("version") or None,
                model_hash=config.get("model_hash") or None,
                fingerprint=info.get("fingerprint") or None,
                cache_dtype=config.get("cache_dtype") or None,
                tensor_parallel=_whole(config.get("tensor_parallel")),
                pipeline_parallel=_whole(config.get("pipeline_parallel")),
                block_size=_whole(config.get("block_size")),
                max_num_batched_tokens=_whole(config.get("max_num_batched_tokens")),
                share_ratio=share,
                pin_bytes=None if pin is None else round(pin),
                full_length_tokens=None if full is None else round(full),
                request_limit=None if request_limit is None else round(request_limit),
                bytes_per_block=blocks.bytes_per_block,
                resident_blocks=blocks.resident_blocks,
                groups=_kv_groups(groups),
                devices=devices,
                driver=next((own for device in devices if (own := self._drivers.get(device))), None),
            )
        return self._made[key]

    def full_length_tokens(self, step: int) -> float | None:
        """Return the longest request that the server admitted at a step."""
        return self._values[metrics.FULL_LENGTH.name].get(step)

    def _labels(self, series: Iterable[Series]) -> Labels:
        """Return the labels by step; where two series meet in one, those of the one that began later."""
        result: Labels = {}
        for one in sorted(series, key=lambda one: one.samples[0][0]):
            result.update(dict.fromkeys(map(self._index, (at for at, _ in one.samples)), one.labels))
        return result

    def _numbers(self, series: Iterable[Series]) -> dict[int, float]:
        return {self._index(at): value for one in series for at, value in one.samples}

    def _group_labels(self, series: Iterable[Series]) -> dict[str, Labels]:
        by_group: dict[str, list[Series]] = {}
        for one in series:
            by_group.setdefault(one.labels.get("group", ""), []).append(one)
        return {group: self._labels(own) for group, own in by_group.items()}


def _quotient(above: float | None, below: float | None) -> int | None:
    """Return a quotient that has to be whole; None where it is not."""
    if not above or not below:
        return None
    quotient = above / below
    whole = round(quotient)
    return whole if whole and abs(quotient - whole) <= _WHOLE * whole else None


def _current(groups: Mapping[str, Labels], step: int) -> tuple[tuple[tuple[str, str], ...], ...]:
    return tuple(
        tuple(sorted(labels[step].items()))
        for _, labels in sorted(groups.items(), key=lambda entry: (len(entry[0]), entry[0]))
        if step in labels
    )


def _kv_groups(groups: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[KvGroup, ...]:
    """Return the cost function; empty where one of its groups cannot be read: part of it would be another."""
    result: list[KvGroup] = []
    for labels in map(dict, groups):
        layers, block_size = _whole(labels.get("layers")), _whole(labels.get("block_size"))
        page_bytes, window = _whole(labels.get("page_bytes")), labels.get("window") or None
        if not layers or not block_size or not page_bytes or (window and not _whole(window)):
            return ()
        result.append(
            KvGroup(
                kind=labels.get("kind", ""),
                layers=layers,
                block_size=block_size,
                page_bytes=page_bytes,
                window=_whole(window),
            )
        )
    return tuple(result)


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
