"""The dashboards: built identically, only on catalogue names, complete, and never calm about an absence."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest

from dashboards import build, queries
from kvwatch import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.metrics import Metric

ROOT = Path(__file__).parents[1]
UIDS = {
    "card": "kvwatch-card",
    "fleet": "kvwatch-fleet",
    "server": "kvwatch-server",
    "triage": "kvwatch-triage",
}
UNITS = {"none", "short", "locale", "bytes", "percentunit", "s", "cpm"}
"""Of Grafana's own list (packages/grafana-data, valueFormats/categories.ts)."""
SCRAPE_LABELS = {"job", "instance"}
NOT_SHOWN = {
    metrics.BUILD_INFO: "for inventories: no panel asks which version of kvwatch runs",
    metrics.CONFIG_RELOAD_SUCCESSFUL: "of the daemon, which keeps its last good configuration and logs why",
    metrics.CONFIG_RELOAD_TIMESTAMP: "an alert waits with it; by itself it tells nothing about memory",
    metrics.SOURCE_DURATION: "for whoever tunes the poll; the tables of sources show what is down",
    metrics.SOURCE_FAILURES: "for whoever looks for a flapping source; the tables show its state and reason",
    metrics.HISTORY_SIZE: "of the daemon's own disk",
    metrics.HISTORY_OLDEST: "of the daemon's own disk; triage itself says what it has no history of",
    metrics.ENGINE_METRIC_MISSING: "for whoever adds an engine; what it takes away is shown as unknown",
    metrics.DEVICE_RESERVED: "is the ledger's part `reserved`",
    metrics.POD_INFO: "for joins with a cluster's own series; absent outside Kubernetes",
    metrics.KV_CAPACITY_BLOCKS: "in blocks; panels show tokens and bytes",
    metrics.KV_FREE_BLOCKS: "in blocks; panels show tokens",
    metrics.KV_GROUP_INFO: "the cost model's inside; `kvwatch cost` prints it",
    metrics.FINISHED_PROMPT_TOKENS: "its mean is kvwatch_typical_request_tokens",
    metrics.FINISHED_GENERATION_TOKENS: "its mean is kvwatch_typical_request_tokens",
    metrics.GENERATION_TOKENS: "throughput is the engine's own dashboard's subject",
    metrics.TYPICAL_FIT_EMPTY: "rounded down; panels show kvwatch_typical_capacity_requests",
    metrics.LAST_BLOCK_WASTE: "at most a block a request: too little to act on",
}
"""Families that no panel shows, and why."""

DASHBOARDS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "dashboards" / "json").glob("*.json"))
}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
TABLES = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] == "table"
]
QUERIES = [
    pytest.param(target["expr"], id=f"{name}: {panel['title']}: {target['refId']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel.get("targets", ())
] + [
    pytest.param(mark["target"]["expr"], id=f"{name}: marks: {mark['name']}")
    for name, dashboard in DASHBOARDS.items()
    for mark in dashboard["annotations"]["list"]
]


def test_nothing_else_is_committed() -> None:
    """Every committed file has a definition and every definition a committed file."""
    assert {path.stem for path in map(build.target_of, build.definitions())} == set(DASHBOARDS) == set(UIDS)


@pytest.mark.parametrize("definition", build.definitions(), ids=lambda path: path.name)
def test_committed_json_is_what_the_code_makes(definition: Path) -> None:
    """Building again changes nothing."""
    assert build.render(definition) == build.target_of(definition).read_text(encoding="utf-8")


def catalogue_series(catalogue: list[Metric]) -> dict[str, set[str]]:
    """Return the labels of each series name that the catalogue exports."""
    series = {}
    for metric in catalogue:
        suffixes = ("_sum", "_count") if metric.kind == "summary" else ("",)
        for suffix in suffixes:
            series[metric.name + suffix] = {*metric.labels, *SCRAPE_LABELS}
    return series


def selectors(node: object) -> Iterator[promql_parser.VectorSelector]:
    """Yield every selector of a parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from selectors(item)
    else:
        for name in ("expr", "lhs", "rhs", "args", "param", "vector_selector"):
            child = getattr(node, name, None)
            if child is not None:
                yield from selectors(child)


def filled(expr: str) -> str:
    """Return a query with the variables that stand for a duration filled in."""
    return (
        expr.replace("$__rate_interval", "1m").replace("$__range", "1h").replace("offset $back", "offset 1h")
    )


def parsed(expr: str) -> object:
    """Return the syntax tree of a query; raise ValueError where it does not parse."""
    tree: object = promql_parser.parse(filled(expr))
    return tree


def strange_names(expr: str, series: dict[str, set[str]]) -> list[str]:
    """Return what a query asks for that is not exported; raise ValueError where it does not parse."""
    found = list(selectors(parsed(expr)))
    assert found, "a query without a selector"
    known = series | {"up": SCRAPE_LABELS}
    names = [selector.name or "" for selector in found]
    strange = [name for name in names if name not in known]
    strange += [
        f"{name}{{{matcher.name}}}"
        for name, selector in zip(names, found, strict=True)
        for matcher in selector.matchers.matchers
        if matcher.name not in known.get(name, set())
    ]
    grouping = re.findall(r"\b(?:by|on|ignoring|group_left|group_right) ?\(([^)]*)\)", expr)
    labels = {label.strip() for group in grouping for label in group.split(",") if label}
    allowed = set().union(*(known.get(name, set()) for name in names))
    if "label_replace" in expr:
        allowed.add("server")
    return strange + sorted(labels - allowed)


@pytest.mark.parametrize("expr", QUERIES)
def test_queries_ask_for_what_is_exported(expr: str) -> None:
    """Every query parses and names only series and labels of the catalogue."""
    assert strange_names(expr, catalogue_series(metrics.CATALOGUE)) == []


def test_every_family_is_shown_or_left_out_for_a_reason() -> None:
    """A new family gets a panel or a line in the table, and a shown one has no line."""
    asked = {
        selector.name for parameter in QUERIES for selector in selectors(parsed(str(parameter.values[0])))
    }
    shown = {metric.name for metric in metrics.CATALOGUE if catalogue_series([metric]).keys() & asked}
    left_out = {metric.name for metric in NOT_SHOWN}
    assert shown | left_out == {metric.name for metric in metrics.CATALOGUE}
    assert shown & left_out == set()
    assert all(len(reason) > 20 for reason in NOT_SHOWN.values())


def test_a_rename_is_noticed() -> None:
    """A query for a family that the catalogue no longer has is named, and so is a label."""
    renamed = [metric for metric in metrics.CATALOGUE if metric is not metrics.FIT_GUARANTEED]
    assert metrics.FIT_GUARANTEED.name in strange_names(queries.ROOM, catalogue_series(renamed))
    assert strange_names('kvwatch_up{device="a"}', catalogue_series(renamed)) == ["kvwatch_up{device}"]
    assert strange_names("max(kvwatch_up) / sum(rate(x_total[5m]))", catalogue_series(renamed)) == ["x_total"]
    assert strange_names("sum by (rank) (kvwatch_up)", catalogue_series(renamed)) == ["rank"]
    with pytest.raises(ValueError, match="no label rank"):
        queries.select(metrics.SERVER_SLEEPING, rank="0")


@pytest.mark.parametrize("expr", QUERIES)
def test_absence_is_not_turned_into_a_number(expr: str) -> None:
    """No query makes a zero out of nothing, and every rate takes Grafana's own interval."""
    assert not re.search(r"\b(vector|absent|absent_over_time)\(|\bbool\b", expr)
    assert set(re.findall(r"\[(.*?)\]", expr)) <= {"$__rate_interval", "$__range"}
    assert len(re.findall(r"\b(?:rate|increase|irate)\(", expr)) == expr.count("[$__rate_interval]")


@pytest.mark.parametrize("panel", PANELS)
def test_panels_are_complete(panel: dict[str, Any]) -> None:
    """A panel has a unit, says what to do, shows an absence as unknown, and takes the chosen data source."""
    defaults = panel["fieldConfig"]["defaults"]
    units = [defaults["unit"]]
    for override in panel["fieldConfig"]["overrides"]:
        units += [entry["value"] for entry in override["properties"] if entry["id"] == "unit"]
    assert set(units) <= UNITS
    assert len(panel["description"]) > 60
    assert defaults["noValue"] == "unknown"
    assert panel["pluginVersion"]
    for holder in (panel, *panel["targets"]):
        assert holder["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for page in re.findall(r"docs/\S+\.md", panel["description"]):
        assert (ROOT / page).exists()


@pytest.mark.parametrize("panel", PANELS)
def test_old_values_do_not_pass_for_new_ones(panel: dict[str, Any]) -> None:
    """Numbers and tables are of this moment, and curves have gaps where there was nothing."""
    instants = {target["instant"] for target in panel["targets"]}
    if panel["type"] == "timeseries":
        assert instants == {False}
        assert panel["fieldConfig"]["defaults"]["custom"]["spanNulls"] is False
    elif panel["type"] != "text":
        assert instants == {True}
    if panel["type"] == "stat":
        assert panel["options"]["reduceOptions"]["calcs"] == ["last"]


@pytest.mark.parametrize("panel", TABLES)
def test_table_columns_are_named(panel: dict[str, Any]) -> None:
    """Each query's value is a named column or hidden, names are unique, and sorting is by one of them."""
    organize = panel["transformations"][-1]["options"]
    names = list(organize["renameByName"].values())
    for target in panel["targets"]:
        value = f"Value #{target['refId']}"
        assert (value in organize["renameByName"]) != (value in organize["excludeByName"])
    assert len(names) == len(set(names))
    assert panel["options"]["sortBy"][0]["displayName"] in names
    for override in panel["fieldConfig"]["overrides"]:
        assert override["matcher"]["options"] in names
    shown = set(organize["renameByName"])
    for label in re.findall(r"\b(?:max|sum) by \(([^)]*)\)", panel["targets"][0]["expr"])[0].split(", "):
        assert label in shown, "a label that rows are merged by is shown"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_frame_of_a_dashboard(name: str) -> None:
    """A dashboard keeps its uid, and its variables are defined, re-read and of the chosen data source."""
    dashboard = DASHBOARDS[name]
    assert dashboard["uid"] == UIDS[name]
    assert dashboard["schemaVersion"] == 41
    assert dashboard["refresh"] == "10s"
    assert dashboard["id"] is None
    for mark in dashboard["annotations"]["list"]:
        assert mark["expr"] == mark["target"]["expr"]
        assert mark["useValueForTime"] == mark["expr"].startswith("1000 * ")
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert list(variables)[:3] == ["datasource", "job", "instance"]
    used = set(re.findall(r"\$(?:\{(\w+)\}|(\w+))", json.dumps(dashboard)))
    names = {first or second for first, second in used}
    assert {found for found in names if not re.match(r"__|1$", found)} <= set(variables)
    known = catalogue_series(metrics.CATALOGUE)
    for variable in variables.values():
        if variable["type"] == "query":
            assert variable["refresh"] == 2
            assert variable["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            call = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
            assert call, variable["query"]
            selector, label = call.groups()
            assert strange_names(selector, known) == []
            assert label in known[selector.partition("{")[0]] | SCRAPE_LABELS


@pytest.mark.parametrize("name", DASHBOARDS)
def test_layout(name: str) -> None:
    """Ids are unique, and panels lie within the grid without overlap."""
    panels = DASHBOARDS[name]["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in panels]
    assert len(titles) == len(set(titles))
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        refs = [target["refId"] for target in panel.get("targets", ())]
        assert len(refs) == len(set(refs))
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart


def test_links_lead_to_dashboards_and_variables_that_exist() -> None:
    """A link's uid is one of ours, and it sets only variables that the other side has."""
    text = json.dumps(list(DASHBOARDS.values()))
    by_uid = {dashboard["uid"]: dashboard for dashboard in DASHBOARDS.values()}
    links = re.findall(r'"/d/([\w-]+)\?([^"]*)"', text)
    assert links
    for uid, query in links:
        variables = {variable["name"] for variable in by_uid[uid]["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", query)) <= variables
