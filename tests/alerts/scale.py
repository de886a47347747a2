"""Rules and Alertmanager's configuration with all their times made shorter by one factor.

Days stay days: a rule that looks back a day or a week asks for what happened then, by the calendar and by the
daemon's own history, and no faster clock brings that nearer.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_DAY_SECONDS = 86_400
_DURATION = re.compile(r"(\d+)(ms|[smhdwy])")
_RANGE = re.compile(r"(?<=\[)[0-9a-z]+(?=\])")
_OFFSET = re.compile(r"(?<=\boffset )[0-9a-z]+")
_AGE = re.compile(r"(?<=[<>] )\d{2,}\b|(?<=[<>]= )\d{2,}\b")
"""What an age is compared with; counts and ratios of the rules have one digit before the point."""


def seconds_of(duration: str) -> float:
    """Return the seconds of a Prometheus duration, such as 1h30m. Raises ValueError."""
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise ValueError(f"not a duration: {duration}")
    return sum(int(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def duration(text: str, factor: float) -> str:
    """Return a duration so many times as long, in whole milliseconds; a day or more stays as it is."""
    seconds = seconds_of(text)
    return text if seconds >= _DAY_SECONDS else f"{round(seconds * factor * 1000)}ms"


def expression(expr: str, factor: float) -> str:
    """Return a query with its ranges, its offsets and the ages that it compares with made shorter."""
    expr = _RANGE.sub(lambda found: duration(found[0], factor), expr)
    expr = _OFFSET.sub(lambda found: duration(found[0], factor), expr)
    return _AGE.sub(lambda found: _age(found[0], factor), expr) if "time()" in expr else expr


def _age(text: str, factor: float) -> str:
    seconds = int(text)
    return text if seconds >= _DAY_SECONDS else f"{seconds * factor:.3f}"


def rules(document: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return a rules file's content with every time in it scaled."""
    scaled = copy.deepcopy(dict(document))
    for group in scaled["groups"]:
        if "interval" in group:
            group["interval"] = duration(group["interval"], factor)
        for rule in group["rules"]:
            rule["expr"] = expression(rule["expr"], factor)
            for key in ("for", "keep_firing_for"):
                if key in rule:
                    rule[key] = duration(rule[key], factor)
    return scaled


def alertmanager(document: Mapping[str, Any], factor: float, webhook: str) -> dict[str, Any]:
    """Return Alertmanager's configuration with its waits scaled; every receiver tells one webhook."""
    scaled = copy.deepcopy(dict(document))
    scaled["route"] = _route(scaled["route"], factor)
    told = [{"url": webhook, "send_resolved": True, "max_alerts": 0}]
    scaled["receivers"] = [
        {"name": receiver["name"], "webhook_configs": told} for receiver in scaled["receivers"]
    ]
    return scaled


def _route(route: Mapping[str, Any], factor: float) -> dict[str, Any]:
    scaled = {
        key: duration(value, factor) if key in {"group_wait", "group_interval", "repeat_interval"} else value
        for key, value in route.items()
    }
    if "routes" in route:
        scaled["routes"] = [_route(one, factor) for one in route["routes"]]
    return scaled
