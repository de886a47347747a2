"""A dashboard as one HTML page: the grid of 24 columns, panels with their titles, rows, variables."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.previews.answers import ALL
from tests.previews.cells import COLOURS
from tests.previews.curves import Mark
from tests.previews.panels import body_of

if TYPE_CHECKING:
    from tests.previews.answers import Asker

WIDTH = 1400
_GAP, _CELL = 8, 30
"""Pixels between panels, and the height of a cell of the grid without it: Grafana's own."""
_HEAD, _PADDING = 32, 8
_STYLE = Path(__file__).with_name("page.css")


def page_of(dashboard: dict[str, Any], asker: Asker) -> str:
    """Return the page."""
    marks = [
        Mark(at=at / 1000 if mark["useValueForTime"] else moment, colour=COLOURS[mark["iconColor"]])
        for mark in dashboard["annotations"]["list"]
        for series in asker.range(mark["target"]["expr"])
        for moment, at in _changes(dict(series.values))
    ]
    panels, bottom = [], 0.0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        column = (WIDTH - 16 + _GAP) / 24
        left, top = place["x"] * column, place["y"] * (_CELL + _GAP)
        width = place["w"] * column - _GAP
        height = place["h"] * (_CELL + _GAP) - _GAP
        bottom = max(bottom, top + height)
        title = escape(asker.filled(panel["title"]))
        if panel["type"] == "row":
            panels.append(f'<h2 style="left:{left:.0f}px;top:{top:.0f}px">⌄ {title}</h2>')
            continue
        size = (width - 2 * _PADDING - 2, height - _HEAD - _PADDING)
        body = body_of(panel, asker, size, marks)
        panels.append(
            f'<section style="left:{left:.0f}px;top:{top:.0f}px;width:{width:.0f}px;height:{height:.0f}px">'
            f'<h3>{title}</h3><div class="body" style="height:{size[1]:.0f}px">{body}</div></section>'
        )
    style = _STYLE.read_text(encoding="utf-8")
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><style>{style}</style></head><body>'
        f"<header><small>{_span(asker)}</small>{escape(dashboard['title'])}</header>"
        f"{_variables(dashboard, asker)}"
        f'<main style="height:{bottom:.0f}px">{"".join(panels)}</main></body></html>'
    )


def _changes(values: dict[float, float]) -> list[tuple[float, float]]:
    """Return where a value is new: an annotation is one mark, however often its query returns it."""
    found: list[tuple[float, float]] = []
    for moment, value in values.items():
        if not found or found[-1][1] != value:
            found.append((moment, value))
    return found


def _span(asker: Asker) -> str:
    start, end = (datetime.fromtimestamp(at, UTC) for at in (asker.start, asker.end))
    return f"{start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC"


def _variables(dashboard: dict[str, Any], asker: Asker) -> str:
    shown = []
    for variable in dashboard["templating"]["list"]:
        value = "Prometheus" if variable["type"] == "datasource" else asker.chosen.get(variable["name"], ALL)
        text = "All" if value == ALL else value
        shown.append(f"<b><i>{escape(variable['label'])}</i>{escape(text)}</b>")
    return f"<nav>{''.join(shown)}</nav>"
