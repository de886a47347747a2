"""What the previews of the dashboards draw is what Grafana would: numbers, tables, gaps, stacks, unknowns."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from tests.previews import frames
from tests.previews.answers import Asker, Series
from tests.previews.cells import cell, settings_of, widths
from tests.previews.curves import Axes, Curve, drawn, legend_of, stacked, ticks
from tests.previews.page import page_of
from tests.previews.panels import markdown
from tests.previews.units import shown, tick
from tests.test_dashboards import DASHBOARDS, UNITS

AXES = Axes(width=400, height=200, start=0, end=10, step=1, unit="none", low=0, high=10)


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (3, "none", "3"),
        (1.375, "none", "1.38"),
        (-5, "none", "-5"),
        (4096, "locale", "4,096"),
        (1592.4, "short", "1.59 K"),
        (46_068 << 20, "bytes", "45.0 GiB"),
        (0, "bytes", "0 B"),
        (0.6 + 0.2, "percentunit", "80%"),
        (-0.541, "percentunit", "-54.1%"),
        (0.075, "s", "75 ms"),
        (12.345, "s", "12.3 s"),
        (5400, "s", "1.50 hours"),
        (120, "cpm", "120 c/m"),
    ],
)
def test_numbers(value: float, unit: str, text: str) -> None:
    """Three digits, and the unit's own steps."""
    assert shown(value, unit) == text


def test_every_unit_of_the_dashboards_can_be_printed() -> None:
    """A unit that is new is refused rather than printed bare."""
    assert all(shown(1.0, unit) for unit in UNITS)
    with pytest.raises(ValueError, match="no way to print"):
        shown(1.0, "celsius")


def test_a_table_joins_answers_on_the_labels_that_they_share() -> None:
    """A server that one answer lacks keeps its row, and what is not known stays out of it."""
    frame = frames.merged(
        {
            "A": [_series(1, server="a"), _series(0, server="b")],
            "B": [_series(7, server="a", model="m")],
            "C": [],
        }
    )
    assert frame.rows == (
        {"server": "a", "model": "m", "Value #A": 1, "Value #B": 7},
        {"server": "b", "Value #A": 0},
    )
    options = {
        "excludeByName": {"Time": True, "Value #B": True},
        "indexByName": {"server": 0, "model": 1, "Value #A": 2, "Value #C": 3},
        "renameByName": {"server": "Server", "Value #A": "Answers", "Value #C": "Room"},
    }
    table = frames.by_column(frames.organized(frame, options), "Answers")
    assert table.columns == ("Server", "model", "Answers", "Room")
    assert [row["Server"] for row in table.rows] == ["b", "a"]
    assert [row["Room"] for row in table.rows] == [None, None]


def test_an_unknown_cell_says_so_without_a_verdict() -> None:
    """In the Fleet's table of servers, nothing is `unknown` in the colour of text, and 0 is red."""
    (panel,) = [panel for panel in DASHBOARDS["fleet"]["panels"] if panel["title"].startswith("Servers, ")]
    settings = settings_of(panel, "Guaranteed")
    assert (cell(None, settings).text, cell(0.0, settings).text) == ("unknown", "0")
    assert cell(None, settings).colour != cell(0.0, settings).colour
    assert widths([{"custom.width": 500}, {"custom.minWidth": 60}, {}], 700) == [500, 100, 150]


def test_a_gap_is_a_gap_and_limits_stand_outside_the_stack() -> None:
    """Two stretches are two lines; the stack carries only what is stacked."""
    gap = Curve(name="a", points={1: 5, 2: 5, 6: 5, 7: 5}, colour="red", filled=0)
    assert drawn([gap], AXES).count("<path") == 2
    limit = Curve(name="limit", points={1: 9}, colour="red")
    parts = [Curve(name=name, points={1: 2, 2: 3}, colour="red", stacked=True) for name in "ab"]
    assert [base for _, base in stacked([*parts, limit])] == [{1: 0, 2: 0}, {1: 2, 2: 3}, {1: 0}]


def test_ticks_are_round() -> None:
    """Bytes by powers of two, counts by whole numbers, and no zero that says nothing."""
    assert [tick(value, "cpm") for value in (0, 0.2, 150)] == ["0 c/m", "0.2 c/m", "150 c/m"]
    assert ticks(0, 45 * 2**30, "bytes", count=6) == [8 * 2**30 * step for step in range(6)]
    assert ticks(0, 3, "none", count=6) == [0, 1, 2, 3]


def test_names_and_words() -> None:
    """A legend fills in labels, and what the text panel says is a list with its inner lists."""
    assert legend_of("{{part}}, rank {{rank}}", {"part": "prompt", "rank": "0"}) == "prompt, rank 0"
    assert markdown("1. **a**: b\n   c\n   - `d`").count('class="item') == 2


class _Nowhere(Asker):
    """A Prometheus in which nothing ever happened."""

    def instant(self, query: str) -> list[Series]:  # noqa: ARG002
        """Return nothing."""
        return []

    range = instant


@pytest.mark.parametrize("name", DASHBOARDS)
def test_where_nothing_is_known_every_panel_says_so(name: str) -> None:
    """With no series at all, each panel but those of words is `unknown`, and there is no number."""
    chosen = {variable["name"]: "x" for variable in DASHBOARDS[name]["templating"]["list"]}
    asker = _Nowhere(url="", start=0, end=60, scrape_seconds=1, chosen=chosen)
    seen = _Bodies(page_of(DASHBOARDS[name], asker)).texts
    kinds = [panel["type"] for panel in DASHBOARDS[name]["panels"] if panel["type"] not in {"row", "text"}]
    assert seen == ["unknown"] * len(kinds)


class _Bodies(HTMLParser):
    """The texts of panels that have nothing to show."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        """Note where such a text begins."""
        self._inside = ("class", "nothing") in attrs

    def handle_data(self, data: str) -> None:
        """Keep it."""
        if self._inside:
            self.texts.append(data)
            self._inside = False


def _series(value: float, **labels: Any) -> Series:
    return Series(labels=labels, values={0.0: value})
