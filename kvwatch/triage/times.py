"""Moments as people write them: ISO 8601, `-2h`, `yesterday 14:00`, Unix seconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import tzinfo

_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AGO = re.compile(r"-?\s*(\d{1,9}(?:\.\d{1,6})?)\s*(s|m|min|h|d|w)(?:\s+ago)?", re.ASCII)
_UNIX = re.compile(r"\d{9,11}(?:\.\d{1,9})?", re.ASCII)
_DAY = re.compile(r"(today|yesterday)?(?:\s*(?:at\s+)?(\d{1,2}):(\d{2})(?::(\d{2}))?)?", re.ASCII)

ALLOWED = "write 2026-11-30T14:00, 'yesterday 14:00', 14:00, -2h, 3d, now, or Unix seconds"


class MomentError(ValueError):
    """A moment that is none, in a sentence."""


def parse_moment(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Return a moment in Unix seconds; times without a zone are in `zone`, None being the machine's own.

    A time of day alone is the last such time: 23:00, asked for in the morning, was yesterday.
    Raises MomentError.
    """
    words = " ".join(text.split()).lower()
    if words == "now":
        return now
    if _UNIX.fullmatch(words):
        return float(words)
    if ago := _AGO.fullmatch(words):
        return now - float(ago[1]) * _UNIT_SECONDS[ago[2]]
    try:
        if words and (day := _DAY.fullmatch(words)):
            return _of_day(day, now, zone)
        return _timestamp(datetime.fromisoformat(text.strip()), zone)
    except (ValueError, OverflowError):
        raise MomentError(f"{text!r} is not a moment; {ALLOWED}") from None


def _of_day(day: re.Match[str], now: float, zone: tzinfo | None) -> float:
    hour, minute, second = (int(part or 0) for part in day.group(2, 3, 4))
    midnight = datetime.fromtimestamp(now, zone).replace(tzinfo=None, microsecond=0)
    moment = midnight.replace(hour=hour, minute=minute, second=second)
    if day[1] == "yesterday" or (day[1] is None and _timestamp(moment, zone) > now):
        moment -= timedelta(days=1)
    return _timestamp(moment, zone)


def _timestamp(moment: datetime, zone: tzinfo | None) -> float:
    if moment.tzinfo is None and zone is not None:
        moment = moment.replace(tzinfo=zone)
    return moment.timestamp()
