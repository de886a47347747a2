"""House types on top of grafanalib: they write out every field that Grafana would otherwise guess.

grafanalib 0.7.1 writes the panel JSON of Grafana 6 to 8 and leans on Grafana's migrations. These types
write that of Grafana 11.6 and keep grafanalib for the dashboard, its variables, the grid and the ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attr
import grafanalib.core as G  # noqa: N812 - the library's own convention

from dashboards.fields import NEUTRAL_ONLY, Json, Steps, override, threshold_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLUGIN_VERSION = "11.6.0"
"""Without it Grafana decides for itself which panel migrations to run."""
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
UNKNOWN = "unknown"
"""What a panel says where a series is absent."""

_LEGEND: Json = {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True}

# Called through a name of our own: mypy does not follow attrs into a base class without types.
_fields = attr.s(kw_only=True)


class Query(G.Target):  # type: ignore[misc]
    """One PromQL query; `instant` shows this moment only, so that an old value never passes for a new one."""

    def to_json_data(self) -> Json:
        """Return what Grafana 11 stores for a Prometheus query."""
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": self.expr,
            "format": self.format,
            "instant": self.instant,
            "legendFormat": self.legendFormat,
            "range": not self.instant,
            "refId": self.refId,
        }


@_fields
class Panel(G.Panel):  # type: ignore[misc]
    """One panel of any kind, in today's `fieldConfig` and `options` shape."""

    kind = attr.ib(type=str)
    unit = attr.ib(type=str)
    options = attr.ib(type=Json)
    custom = attr.ib(factory=dict, type=Json)
    steps = attr.ib(default=NEUTRAL_ONLY, type=Steps)
    overrides = attr.ib(factory=list, type=list[Json])
    bounds = attr.ib(factory=dict, type=Json)
    repeat_over = attr.ib(default="", type=str)
    mappings = attr.ib(factory=list, type=list[Json])
    colours = attr.ib(default="", type=str)

    def to_json_data(self) -> Json:
        """Return the panel as Grafana 11 stores it."""
        panel: Json = {
            "datasource": DATASOURCE,
            "description": self.description,
            "fieldConfig": {
                "defaults": {
                    "color": {
                        "mode": self.colours
                        or ("palette-classic" if self.kind == "timeseries" else "thresholds")
                    },
                    "custom": self.custom,
                    "mappings": self.mappings,
                    "noValue": UNKNOWN,
                    "thresholds": threshold_steps(self.steps),
                    "unit": self.unit,
                    **self.bounds,
                },
                "overrides": self.overrides,
            },
            "gridPos": self.gridPos,
            "id": self.id,
            "options": self.options,
            "pluginVersion": PLUGIN_VERSION,
            "targets": self.targets,
            "title": self.title,
            "transformations": self.transformations,
            "type": self.kind,
        }
        if self.repeat_over:
            panel |= {"maxPerRow": 2, "repeat": self.repeat_over, "repeatDirection": "h"}
        return panel


def stat(
    title: str,
    expr: str,
    *,
    unit: str,
    description: str,
    steps: Steps = NEUTRAL_ONLY,
    legend: str = "",
    shown: Json | None = None,
) -> Panel:
    """Return one big number of this moment, `unknown` where there is none."""
    return Panel(
        kind="stat",
        title=title,
        description=description,
        unit=unit,
        steps=steps,
        mappings=(shown or {}).get("mappings", []),
        targets=_targets({legend: expr}, instant=True),
        options={
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "percentChangeColorMode": "standard",
            "reduceOptions": {"calcs": ["last"], "fields": "", "values": False},
            "showPercentChange": False,
            "textMode": "auto",
            "wideLayout": True,
        },
    )


def series(
    title: str,
    queries: Mapping[str, str],
    *,
    unit: str,
    description: str,
    stacked: bool = False,
    lines: Sequence[str] = (),
    tints: Mapping[str, str] | None = None,
    bounds: Json | None = None,
    repeat_over: str = "",
) -> Panel:
    """Return curves by legend; gaps stay gaps.

    `lines` are regular expressions of legends that are limits: dashed, and outside any stack; `tints`
    are colours by such expressions, where the palette's would mislead.
    """
    return Panel(
        kind="timeseries",
        title=title,
        description=description,
        unit=unit,
        bounds=bounds or {"min": 0},
        repeat_over=repeat_over,
        targets=_targets(queries, instant=False),
        custom={
            "axisPlacement": "auto",
            "drawStyle": "line",
            "fillOpacity": 60 if stacked else 8,
            "lineInterpolation": "stepAfter",
            "lineWidth": 1,
            "showPoints": "auto",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        },
        overrides=[
            override(
                pattern,
                {
                    "custom.lineStyle": {"dash": [10, 10], "fill": "dash"},
                    "custom.fillOpacity": 0,
                    "custom.stacking": {"group": "A", "mode": "none"},
                },
                matcher="byRegexp",
            )
            for pattern in lines
        ]
        + _tinted(tints),
        options={
            "legend": _LEGEND,
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def bars(
    title: str,
    expr: str,
    *,
    unit: str,
    description: str,
    rows: str,
    columns: str = "",
    steps: Steps = NEUTRAL_ONLY,
    tints: Mapping[str, str] | None = None,
    bounds: Json | None = None,
) -> Panel:
    """Return one bar for each value of the label `rows`; with `columns` its parts are stacked in it.

    `steps` colour bars that are not stacked by their value; `tints` are colours of parts by regular
    expressions, where the palette's would mislead.
    """
    organize = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": {}}
    matrix = {"columnField": columns, "emptyValue": "null", "rowField": rows, "valueField": "Value"}
    stacked = [{"id": "groupingToMatrix", "options": matrix}] if columns else []
    return Panel(
        kind="barchart",
        title=title,
        description=description,
        unit=unit,
        steps=steps,
        bounds=bounds or {},
        colours="palette-classic" if columns else "thresholds",
        targets=[Query(expr=expr, instant=True, format="table", refId="A")],
        custom={"axisPlacement": "auto", "fillOpacity": 80, "lineWidth": 1},
        overrides=_tinted(tints),
        transformations=[{"id": "organize", "options": organize}, *stacked],
        options={
            "barRadius": 0,
            "barWidth": 0.9,
            "fullHighlight": False,
            "groupWidth": 0.7,
            "legend": {**_LEGEND, "showLegend": bool(columns)},
            "orientation": "horizontal",
            "showValue": "auto",
            "stacking": "normal" if columns else "none",
            "tooltip": {"mode": "multi", "sort": "none"},
            "xTickLabelRotation": 0,
            "xTickLabelSpacing": 0,
        },
    )


def text(title: str, markdown: str, *, description: str) -> Panel:
    """Return words that stay: what to read first."""
    return Panel(
        kind="text",
        title=title,
        description=description,
        unit="none",
        targets=[],
        options={"code": {"language": "plaintext"}, "content": markdown, "mode": "markdown"},
    )


def _tinted(tints: Mapping[str, str] | None) -> list[Json]:
    return [
        override(pattern, {"color": {"fixedColor": colour, "mode": "fixed"}}, matcher="byRegexp")
        for pattern, colour in (tints or {}).items()
    ]


def _targets(queries: Mapping[str, str], *, instant: bool) -> list[Query]:
    return [
        Query(expr=expr, legendFormat=legend, instant=instant, refId=ref_of(index))
        for index, (legend, expr) in enumerate(queries.items())
    ]


def ref_of(index: int) -> str:
    """Return the name of a query within its panel: A, B, C."""
    return chr(ord("A") + index)
