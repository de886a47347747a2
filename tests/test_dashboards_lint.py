"""Rules of Grafana's dashboard-linter that tests/test_dashboards.py does not hold yet, and some of our own.

What the linter has and we do not: `allValue: .+` on job and instance, since `All` is spelled out as the jobs
that export kvwatch_up, or Prometheus' own `up` of other jobs would count as silent daemons; and
`editable: false`, since who imports a dashboard may change it, and provisioning says for itself who may not.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dashboards.fields import BAD, GOOD, NEUTRAL, WARN
from dashboards.findings import MEANINGS
from kvwatch import metrics
from kvwatch.finding import RuleId
from tests.colours import FORMS, SHADES, difference, seen
from tests.test_dashboards import DASHBOARDS, PANELS, parsed, selectors

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
EACH_DASHBOARD = pytest.mark.parametrize("name", DASHBOARDS)
SUBJECT = {"card": ["$device"], "fleet": [], "server": ["$server"], "triage": ["$server"]}
"""What every query of a dashboard is about, beside job and instance."""
ABOUT_THE_NODE = {
    metrics.SOURCE_UP.name: "a card's figures come from several sources of its node",
    metrics.SOURCE_REASON.name: "the same",
    metrics.SOURCE_LAST_SUCCESS.name: "the same",
}
"""Families that the Card asks about whatever the device."""
TELLABLE = 20
"""Two colours this far apart are told apart at a glance; 2.3 is what is just seen side by side."""


def targets() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (dashboard, panel, target)."""
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield name, panel, target


TARGETS = [
    pytest.param(name, panel, target, id=f"{name}: {panel['title']}: {target['refId']}")
    for name, panel, target in targets()
]
each_target = pytest.mark.parametrize("name, panel, target", TARGETS)


@EACH_DASHBOARD
def test_template_datasource_rule(name: str) -> None:
    """The first variable is `datasource`, a Prometheus, shown as "Data source" and chosen by nobody yet."""
    (variable, *_) = DASHBOARDS[name]["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    assert variable["label"] == "Data source"
    assert variable["current"] == {}


@EACH_DASHBOARD
def test_template_job_rule_and_template_instance_rule(name: str) -> None:
    """Job and instance take several values, all at first, and the instances are those of the jobs."""
    variables = {variable["name"]: variable for variable in DASHBOARDS[name]["templating"]["list"]}
    for one in ("job", "instance"):
        assert variables[one]["multi"]
        assert variables[one]["includeAll"]
        assert variables[one]["current"]["value"] == ["$__all"]
        assert "allValue" not in variables[one]
    assert 'job=~"$job"' in variables["instance"]["query"]
    for other in set(variables) - {"datasource", "job", "instance", "baseline", "back"}:
        assert 'instance=~"$instance"' in variables[other]["query"]


@EACH_DASHBOARD
def test_panel_datasource_rule(name: str) -> None:
    """Nothing is tied to one data source, marks and variables included."""

    def holders(value: object) -> Iterator[object]:
        if isinstance(value, dict):
            yield from (child for key, child in value.items() if key == "datasource")
            value = list(value.values())
        if isinstance(value, list):
            for child in value:
                yield from holders(child)

    found = list(holders(DASHBOARDS[name]))
    assert found
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in found)


@pytest.mark.parametrize("panel", PANELS)
def test_panel_no_targets_rule_and_titles(panel: dict[str, Any]) -> None:
    """A panel asks something, and its title fits into the panel's head."""
    assert panel["targets"] or panel["type"] == "text"
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    # A column of the grid is some 50 px on a screen of 1,280, and a letter of the head some 7.5.
    assert 4 < len(panel["title"]) * 7.5 + 40 < panel["gridPos"]["w"] * 50, panel["title"]


@each_target
def test_target_job_rule_and_target_instance_rule(
    name: str, panel: dict[str, Any], target: dict[str, Any]
) -> None:
    """Every selector takes the chosen jobs and daemons, and every query the dashboard's subject."""
    found = list(selectors(parsed(target["expr"])))
    for selector in found:
        matchers = {(one.name, str(one.op), one.value) for one in selector.matchers.matchers}
        values = {label: value for label, _, value in matchers}
        assert values["job"] == "$job"
        # Prometheus' own `up` of a daemon that never answered has no instance that could be chosen.
        assert selector.name == "up" or values["instance"] == "$instance"
    if not {selector.name for selector in found} <= set(ABOUT_THE_NODE):
        assert all(subject in target["expr"] for subject in SUBJECT[name])


@each_target
def test_target_counter_agg_rule(name: str, panel: dict[str, Any], target: dict[str, Any]) -> None:
    """A counter is asked for its rate, before it is added up."""
    for counter in re.findall(r"kvwatch_\w+_(?:total|sum|count)\b", target["expr"]):
        asked = rf"rate\({counter}\{{[^}}]*\}}\[\$__rate_interval\]\)"
        assert len(re.findall(asked, target["expr"])) == len(re.findall(rf"\b{counter}\b", target["expr"]))


@each_target
def test_legends(name: str, panel: dict[str, Any], target: dict[str, Any]) -> None:
    """A curve has a legend of words and of labels that its query keeps, and no two share one."""
    if panel["type"] != "timeseries":
        return
    legends = [one["legendFormat"] for one in panel["targets"]]
    assert all(legends)
    assert len(set(legends)) == len(legends)
    kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept


@EACH_DASHBOARD
def test_alerts_and_dashboards_are_linked(name: str) -> None:
    """Each dashboard links to the others, keeping variables and time, and to the alerts by their prefix."""
    others, alerts = DASHBOARDS[name]["links"]
    assert others["type"] == "dashboards"
    assert set(others["tags"]) <= set(DASHBOARDS[name]["tags"])
    assert others["includeVars"]
    assert others["keepTime"]
    prefix = alerts["url"].partition("/alerting/list?search=")[2]
    rules = (ROOT / "deploy/prometheus/kvwatch.rules.yml").read_text(encoding="utf-8")
    assert all(alert.startswith(prefix) for alert in re.findall(r"- alert: (\w+)", rules))


def test_what_alerts_and_runbooks_say_of_dashboards_is_there() -> None:
    """A dashboard that an alert or a runbook names exists, and so does the panel, row or column it names."""
    files = [*(ROOT / "docs/runbooks").glob("*.md"), *(ROOT / "deploy/prometheus").glob("*.rules.yml")]
    text = " ".join(" ".join(file.read_text(encoding="utf-8") for file in sorted(files)).split())
    found = re.findall(r"\b([A-Z]\w+) dashboard(?:, (?:column )?([A-Z][\w ]+))?", text)
    assert len(found) > 5
    for title, part in found:
        name = title.lower()
        assert name in DASHBOARDS, title
        assert part in json.dumps(DASHBOARDS[name]), part


def test_colours_of_thresholds_are_told_apart_by_everybody() -> None:
    """In both themes and every form of colour blindness, no two colours of a verdict look alike."""
    used = set(re.findall(r'"color": "([\w-]+)"', json.dumps(DASHBOARDS)))
    assert used == {NEUTRAL, GOOD, WARN, BAD}
    for theme, form in itertools.product(SHADES, FORMS):
        shades = SHADES[theme]
        for one, other in itertools.combinations(sorted(used), 2):
            apart = difference(seen(shades[one], form), seen(shades[other], form))
            assert apart > TELLABLE, (theme, form, one, other)
    green, red = (seen(SHADES["light"][colour], "deuteranopia") for colour in ("green", "red"))
    assert difference(green, red) < TELLABLE, "the check would notice what nearly everybody draws"


@pytest.mark.parametrize("panel", PANELS)
def test_the_unknown_has_no_colour(panel: dict[str, Any]) -> None:
    """The first step, which no value at all has too, is neither good nor bad news; steps rise."""
    found = [panel["fieldConfig"]["defaults"]["thresholds"]]
    for override in panel["fieldConfig"]["overrides"]:
        found += [entry["value"] for entry in override["properties"] if entry["id"] == "thresholds"]
    for first, *others in (thresholds["steps"] for thresholds in found):
        assert first == {"color": NEUTRAL, "value": None}
        values = [step["value"] for step in others]
        assert values == sorted(values)


def test_every_rule_of_findings_says_what_to_do() -> None:
    """The tables of findings have a sentence for each rule that kvwatch has, short enough for its column."""
    assert set(MEANINGS) == set(RuleId)
    for rule, meaning in MEANINGS.items():
        assert len(meaning) > 30
        assert len(f"{rule}: {meaning}") * 6.8 < 720, rule


@pytest.mark.parametrize("panel", PANELS)
def test_no_verdict_is_told_by_colour_alone(panel: dict[str, Any]) -> None:
    """Where a value has a colour, the value or a word is printed as well."""
    if panel["type"] == "stat":
        assert panel["options"]["colorMode"] in {"value", "none"}
        assert panel["options"]["textMode"] in {"auto", "value", "value_and_name"}
    if panel["type"] == "barchart":
        assert panel["options"]["showValue"] != "never"
    for override in panel["fieldConfig"]["overrides"]:
        for entry in override["properties"]:
            if entry["id"] == "custom.cellOptions":
                assert entry["value"] == {"type": "color-text"}
