"""Dashboards, their variables and where panels stand, on top of grafanalib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attr
import grafanalib.core as G  # noqa: N812 - the library's own convention

from dashboards.panels import DATASOURCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.fields import Json

SCHEMA_VERSION = 41
"""Dashboard schema of Grafana 11.6."""
REFRESH = "10s"
GRID_WIDTH = 24


class Row(G.RowPanel):  # type: ignore[misc]
    """A heading."""

    def to_json_data(self) -> Json:
        """Return an open row; the panels under it follow in the dashboard's own list."""
        return {
            "collapsed": False,
            "gridPos": self.gridPos,
            "id": self.id,
            "panels": [],
            "title": self.title,
            "type": "row",
        }


class Variable(G.Template):  # type: ignore[misc]
    """A dashboard variable; `refresh` 2 asks again when the time range changes."""

    def to_json_data(self) -> Json:
        """Return what Grafana 11 stores for a variable."""
        everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
        variable: Json = {
            "current": everything if self.includeAll else {},
            "hide": 0,
            "includeAll": self.includeAll,
            "label": self.label,
            "multi": self.multi,
            "name": self.name,
            "options": [],
            "query": self.query,
            "refresh": 1 if self.type == "datasource" else 2,
            "regex": "",
            "type": self.type,
        }
        if self.type == "query":
            variable |= {"datasource": DATASOURCE, "sort": 1}
        return variable


class Choice(G.Template):  # type: ignore[misc]
    """A variable with a list of values of its own; the first is chosen at first."""

    def to_json_data(self) -> Json:
        """Return what Grafana 11 stores for a custom variable."""
        values = self.query.split(",")
        options = [{"selected": value == values[0], "text": value, "value": value} for value in values]
        return {
            "current": options[0],
            "hide": 0,
            "includeAll": False,
            "label": self.label,
            "multi": False,
            "name": self.name,
            "options": options,
            "query": self.query,
            "skipUrlSync": False,
            "type": "custom",
        }


def annotation(name: str, expr: str, *, color: str, title: str, text: str, at_value: bool) -> Json:
    """Return marks on every curve; `at_value` takes the value, in milliseconds, for the time."""
    return {
        "datasource": DATASOURCE,
        "enable": True,
        # Grafana moved the query from here into `target`; each version reads one of the two.
        "expr": expr,
        "hide": False,
        "iconColor": color,
        "name": name,
        "tagKeys": "server",
        "target": {"expr": expr, "refId": "Anno"},
        "textFormat": text,
        "titleFormat": title,
        "useValueForTime": at_value,
    }


def alerts_link() -> Json:
    """Return a link to the alerts that this Grafana knows."""
    return {
        "asDropdown": False,
        "icon": "bell",
        "includeVars": False,
        "keepTime": False,
        "tags": [],
        "targetBlank": False,
        "title": "Alerts",
        "tooltip": "Each alert links to its runbook",
        "type": "link",
        "url": "/alerting/list?search=Kvwatch",
    }


class Dashboard(G.Dashboard):  # type: ignore[misc]
    """A dashboard with the fields that today's schema has, and no others."""

    def to_json_data(self) -> Json:
        """Return the dashboard without grafanalib's fields of old schemas."""
        kept = (
            "annotations",
            "description",
            "editable",
            "graphTooltip",
            "id",
            "links",
            "panels",
            "refresh",
            "schemaVersion",
            "tags",
            "templating",
            "time",
            "timezone",
            "title",
            "uid",
            "version",
        )
        data = super().to_json_data()
        return {key: data[key] for key in kept} | {"timepicker": {}}


def dashboard(
    *,
    uid: str,
    title: str,
    description: str,
    variables: Sequence[Variable | Choice],
    panels: Sequence[Any],
    annotations: Sequence[Json] = (),
) -> Dashboard:
    """Return a dashboard that is linked with all others of kvwatch."""
    made: Dashboard = Dashboard(
        title=title,
        description=description,
        uid=uid,
        editable=True,
        graphTooltip=1,
        schemaVersion=SCHEMA_VERSION,
        refresh=REFRESH,
        time=G.Time("now-1h", "now"),
        timezone="browser",
        version=1,
        tags=["kvwatch"],
        links=[
            {
                "asDropdown": False,
                "icon": "dashboard",
                "includeVars": True,
                "keepTime": True,
                "tags": ["kvwatch"],
                "targetBlank": False,
                "title": "kvwatch",
                "tooltip": "",
                "type": "dashboards",
                "url": "",
            },
            alerts_link(),
        ],
        annotations=G.Annotations(list(annotations)),
        templating=G.Templating(list(variables)),
        panels=list(panels),
    ).auto_panel_ids()
    return made


def arrange(*shelves: tuple[int, Sequence[Any]] | Row) -> list[Any]:
    """Place panels from top to bottom; a shelf is a height and panels that share its width evenly."""
    placed: list[Any] = []
    y = 0
    for shelf in shelves:
        height, panels = (1, [shelf]) if isinstance(shelf, Row) else shelf
        width = GRID_WIDTH // len(panels)
        for index, panel in enumerate(panels):
            position = G.GridPos(h=height, w=width, x=index * width, y=y)
            placed.append(attr.evolve(panel, gridPos=position))
        y += height
    return placed
