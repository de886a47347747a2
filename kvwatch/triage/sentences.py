"""Figures in words, the same in every output."""

from __future__ import annotations

import math
import time

_MIB, _GIB = 1 << 20, 1 << 30
_HARDLY = 0.005
_UNCHANGED = 0.0005
_TIMES = 1.95


def size(count: float | None) -> str:
    """Return bytes in GiB or MiB."""
    if count is None:
        return "unknown"
    return f"{count / _GIB:.2f} GiB" if abs(count) >= _GIB else f"{count / _MIB:.0f} MiB"


def tokens(count: float | None) -> str:
    """Return a mean number of tokens."""
    return "unknown" if count is None else f"{count:,.0f}"


def number(value: float | None) -> str:
    """Return a number of requests."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def effect(log: float | None) -> str:
    """Return what a factor did to capacity: `-48 %`, `x 2.1`."""
    if log is None:
        return "unknown"
    ratio = math.exp(log)
    if abs(ratio - 1) < _UNCHANGED:
        return "no change"
    if ratio >= _TIMES:
        return f"x {ratio:.2f}"
    return f"{100 * (ratio - 1):+.1f} %" if abs(ratio - 1) < _HARDLY * 10 else f"{100 * (ratio - 1):+.0f} %"


def times_of(ratio: float | None) -> str:
    """Return a ratio of capacity in words."""
    if ratio is None:
        return "by an unknown factor"
    if abs(ratio - 1) < _HARDLY:
        return "not at all"
    return f"to {100 * ratio:.0f} % of what it was"


def moment(at: float) -> str:
    """Return a moment of local time with its zone."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(at))


def span(seconds: float) -> str:
    """Return a length of time."""
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.0f} days"
