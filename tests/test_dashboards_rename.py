"""A family that is renamed breaks a panel or a line of NOT_SHOWN, and the complaint says which."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvwatch import metrics
from tests.test_dashboards import DASHBOARDS, NOT_SHOWN, SCRAPE_LABELS, catalogue_series, strange_names
from tests.test_metrics import exposition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.metrics import Metric

GOLDEN = Path(__file__).parent / "golden"
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)


@pytest.fixture(scope="module")
def pages() -> str:
    """Return what the daemon exports: the golden pages of captures, and a page on which all is known."""
    everything, _ = exposition().render(openmetrics=False, compressed=False)
    golden = [file.read_text(encoding="utf-8") for file in sorted(GOLDEN.glob("*.prom"))]
    return "\n".join([*golden, everything.decode()])


def series_of(pages: str) -> dict[str, set[str]]:
    """Return the labels of each series name on the pages."""
    series: dict[str, set[str]] = defaultdict(set)
    for name, labels in set(_SAMPLE.findall(pages)):
        series[name] |= {*re.findall(r'(\w+)="', labels), *SCRAPE_LABELS}
    return dict(series)


def asked() -> Iterator[tuple[str, str]]:
    """Yield who asks, and the query: panels, marks and variables of the committed dashboards."""
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield f"{name}: {panel['title']}", target["expr"]
        for mark in dashboard["annotations"]["list"]:
            yield f"{name}: marks: {mark['name']}", mark["target"]["expr"]
        for variable in dashboard["templating"]["list"]:
            call = re.fullmatch(r"label_values\((.*), \w+\)", str(variable["query"]))
            if call:
                yield f"{name}: variable {variable['name']}", call[1]


def complaints(pages: str) -> list[str]:
    """Say who asks for what is not on the pages, and which line of NOT_SHOWN speaks of nothing."""
    series = series_of(pages)
    found = [
        f"{who} asks for {', '.join(strange)}"
        for who, query in asked()
        if (strange := strange_names(query, series))
    ]
    families = {name.removesuffix("_sum") for name in series}
    return found + [
        f"NOT_SHOWN: {metric.name} is not exported" for metric in NOT_SHOWN if metric.name not in families
    ]


def users(metric: Metric) -> set[str]:
    """Return who uses a family, found by its name in the text alone."""
    names = "|".join(catalogue_series([metric]))
    found = {who for who, query in asked() if re.search(rf"\b({names})\b", query)}
    return found | ({"NOT_SHOWN"} if metric in NOT_SHOWN else set())


def test_everything_that_is_asked_for_is_exported(pages: str) -> None:
    """As it is, nobody asks in vain."""
    assert complaints(pages) == []


@pytest.mark.parametrize("metric", metrics.CATALOGUE, ids=lambda metric: metric.name)
def test_a_renamed_family_is_missed_by_those_who_use_it(metric: Metric, pages: str) -> None:
    """Every panel, mark and variable that uses it is named in a complaint, and nobody else is."""
    renamed = re.sub(rf"\b{metric.name}(_sum|_count)?(?=[{{ ])", rf"{metric.name}_renamed\1", pages)
    assert renamed != pages
    told = complaints(renamed)
    assert {text.split(" asks for ")[0].split(": kvwatch_")[0] for text in told} == users(metric) != set()
    assert all(metric.name in text for text in told)
