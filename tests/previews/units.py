"""Numbers as Grafana prints them: three digits that mean something, and the unit's own steps."""

from __future__ import annotations

import math
import re

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ("", " K", " Mil", " Bil", " Tri")
_SECONDS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "mins"))


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a value with its unit. Raises ValueError for a unit that no dashboard has had so far."""
    match unit:
        case "none":
            return _digits(value, decimals)
        case "locale":
            return f"{value:,.{_decimals(value, decimals)}f}"
        case "short":
            return _stepped(value, 1000, _COUNTS, decimals)
        case "cpm":
            return f"{_stepped(value, 1000, _COUNTS, decimals)} c/m"
        case "bytes":
            return _stepped(value, 1024, tuple(f" {name}" for name in _BYTES), decimals)
        case "percentunit":
            return f"{_digits(round(100 * value, 9), decimals)}%"
        case "s":
            return _duration(value, decimals)
        case _:
            raise ValueError(f"no way to print {unit}")


def tick(value: float, unit: str) -> str:
    """Return a value beside an axis: without zeros that say nothing."""
    return re.sub(r"(\.\d*?)0+(?!\d)", lambda found: found[1].rstrip("."), shown(value, unit))


def _duration(value: float, decimals: int | None) -> str:
    for size, name in _SECONDS:
        if abs(value) >= size:
            return f"{_digits(value / size, decimals)} {name}"
    if value and abs(value) < 1:
        return f"{_digits(1000 * value, decimals)} ms"
    return f"{_digits(value, decimals)} s"


def _stepped(value: float, base: int, names: tuple[str, ...], decimals: int | None) -> str:
    step = 0
    while abs(value) >= base and step < len(names) - 1:
        value /= base
        step += 1
    return f"{_digits(value, decimals)}{names[step]}"


def _digits(value: float, decimals: int | None) -> str:
    return f"{value:.{_decimals(value, decimals)}f}"


def _decimals(value: float, decimals: int | None) -> int:
    if decimals is not None:
        return decimals
    if value == round(value):
        return 0
    return max(0, 2 - math.floor(math.log10(abs(value))))
