"""The benchmark's figures, and the table that sets them beside their budgets."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import figures
from crowd import SCRAPERS
from subjects import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ALL = 100.0
GROWTH = "a server among many / among few, CPU"


class Results:
    """Figures by name, each measured once or more."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        """Keep one more value."""
        self._values[name].append(value)

    def get(self, name: str) -> float | None:
        """Return the median; None where nothing was measured."""
        values = self._values.get(name)
        return figures.median(values) if values else None

    def row(
        self, name: str, unit: str, budget: str = "", *, met: Callable[[float], bool] | None = None
    ) -> str:
        """Return one line of the table."""
        values = self._values.get(name)
        if not values:
            return f"| {name} | not run | | {budget} | |"
        verdict = "" if met is None else ("yes" if met(figures.median(values)) else "NO")
        spread = f"{min(values):.3g} to {max(values):.3g}" if len(values) > 1 else ""
        return f"| {name} | {figures.median(values):.3g} {unit} | {spread} | {budget} | {verdict} |"


def table(results: Results, growth: Sequence[int], devices: Sequence[int]) -> list[str]:
    """Return the table: what was measured, its range, the budget."""
    row = results.row
    lines = ["| figure | median | range | budget | met |", "|---|---|---|---|---|"]
    core = "2 % of a core"
    lines += [
        row("share of a core at 5 s", "%", core, met=lambda value: value <= 2),
        row("share of a core at 5 s, watched", "%", core, met=lambda value: value <= 2),
        row("share of a core at 5 s, with a scrape a poll", "%"),
        row("poll, CPU of the daemon", "ms"),
        row("poll, CPU of the NVML child", "ms"),
    ]
    for which in ("again", "first after a poll"):
        name = f"/metrics {which}, p50 / nvitop-exporter's"
        lines.append(row(name, "", "1/5", met=lambda value: value <= 0.2))
    lines += [row("nvitop-exporter, /metrics, p50", "ms"), row("nvitop-exporter, series", "")]
    lines.append(row("first scrape after a poll, CPU", "ms"))
    lines.append(row("first scrape after a poll, OpenMetrics", "ms"))
    for label in ("/metrics", "/metrics while a server and the driver hang"):
        for kind in FORMATS:
            lines += [row(f"{label}, {kind}, p{percent}", "ms") for percent in (50, 99)]
    lines += [
        row("one scraper alone, p50", "ms"),
        row(f"{SCRAPERS} scrapers at once, p50", "ms"),
        row(f"{SCRAPERS} scrapers at once, the last", "ms"),
        row(f"{SCRAPERS} scrapers at once, answered", "%", "100 %", met=lambda value: value == ALL),
        row("resident memory of the daemon", "MiB", "70 MiB", met=lambda value: value <= 70),
        row("proportional memory of the daemon", "MiB"),
        row("resident memory of the NVML child", "MiB", "20 MiB", met=lambda value: value <= 20),
        row("proportional memory of the NVML child", "MiB"),
        row("start to ready", "s", "1.5 s", met=lambda value: value <= 1.5),
        row("start to ready, CPU of the daemon", "s"),
        row("kvwatch --help", "s"),
        row("kvwatch --help, CPU", "s"),
        row("kvwatch cost", "s"),
        row("kvwatch cost, CPU", "s"),
        row("python -c pass, CPU", "s"),
        row("bytes of a scrape, plain", "KiB"),
        row("bytes of a scrape, gzip", "KiB"),
        row("series of a scrape", ""),
    ]
    sizes = [f"{count} servers" for count in growth] + [f"{count} devices" for count in devices]
    units = {
        "CPU": "ms",
        "CPU of the NVML child": "ms",
        "slowest source": "ms",
        "series": "",
        "resident memory": "MiB",
    }
    lines += [row(f"poll of {size}, {what}", unit) for size in sizes for what, unit in units.items()]
    steps = list(pairwise(growth))
    lines += [row(f"each server from {few} to {many}, CPU", "ms") for few, many in steps]
    lines.append(row(GROWTH, "", "1, or 1.15 for noise", met=lambda value: value <= 1.15))
    return lines
