"""Grafana-managed alerts: what Prometheus' rules say, in the words that Grafana's provisioning reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards import alerts, build

ROOT = Path(__file__).parents[1]
ALERTING = ROOT / "deploy" / "grafana" / "alerting"
SOURCE = {
    rule["alert"]: rule
    for group in yaml.safe_load(build.RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
PROVISIONED = yaml.safe_load(build.GRAFANA_ALERTS.read_text(encoding="utf-8"))
RULES = {rule["title"]: rule for group in PROVISIONED["groups"] for rule in group["rules"]}
KEYS = {
    *("uid", "title", "condition", "data", "for", "labels", "annotations"),
    *("noDataState", "execErrState", "isPaused"),
}
"""Of AlertRuleV1 in Grafana's provisioning; a key that it does not know is dropped in silence."""
DURATION = re.compile(r"[1-9][0-9]*[smhdw]")
FUNCTIONS = {"humanize", "humanize1024", "humanizePercentage", "humanizeDuration", "printf", "with", "end"}
"""Of Grafana's alert templates, those that the texts use (pkg/services/ngalert/state/template/funcs.go)."""

each_rule = pytest.mark.parametrize("name", SOURCE)


def load(name: str) -> Any:
    """Return a file of the folder."""
    return yaml.safe_load((ALERTING / name).read_text(encoding="utf-8"))


def test_the_committed_file_is_what_the_rules_make() -> None:
    """Nobody edited the generated file, and no rule changed without it."""
    assert alerts.render(build.RULES) == build.GRAFANA_ALERTS.read_text(encoding="utf-8")


def test_every_rule_is_there_once_in_a_group_of_its_own_name() -> None:
    """Grafana gets all alerts, in groups with a folder and an interval, under unique uids."""
    assert PROVISIONED["apiVersion"] == 1
    titles = [rule["title"] for group in PROVISIONED["groups"] for rule in group["rules"]]
    assert titles == list(SOURCE)
    uids = [rule["uid"] for rule in RULES.values()]
    assert len(set(uids)) == len(uids)
    for group in PROVISIONED["groups"]:
        assert set(group) == {"orgId", "name", "folder", "interval", "rules"}
        assert group["folder"].strip()
        assert DURATION.fullmatch(group["interval"])


@each_rule
def test_a_rule_says_the_same(name: str) -> None:
    """Expression, waiting time and labels are Prometheus' own; the uid is one that Grafana accepts."""
    rule, source = RULES[name], SOURCE[name]
    assert set(rule) == KEYS
    found, firing = rule["data"]
    assert found["model"]["expr"] == source["expr"]
    assert (found["model"]["instant"], found["model"]["range"]) == (True, False)
    assert (rule["for"], rule["labels"]) == (source["for"], source["labels"])
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", rule["uid"])
    # Whatever the expression returns fires, 0 too; nothing returned is nothing wrong.
    assert firing["model"]["expression"] == "is_number(${found})"
    assert (rule["condition"], rule["noDataState"], rule["execErrState"]) == ("firing", "OK", "Error")


@each_rule
def test_queries_are_bound_to_the_provisioned_data_source(name: str) -> None:
    """The query's data source is the one beside it, and each node names itself."""
    (source,) = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8")
    )["datasources"]
    for node, uid in zip(RULES[name]["data"], (source["uid"], "__expr__"), strict=True):
        assert node["datasourceUid"] == node["model"]["datasource"]["uid"] == uid
        assert node["refId"] == node["model"]["refId"]
        assert node["relativeTimeRange"]["from"] > node["relativeTimeRange"]["to"] == 0


@each_rule
def test_texts_hold_only_what_grafana_can_fill_in(name: str) -> None:
    """No text asks for another series, names a value that is not there, or looks like a shell variable."""
    annotations = RULES[name]["annotations"]
    assert set(annotations) == set(SOURCE[name]["annotations"])
    assert annotations["runbook_url"] == SOURCE[name]["annotations"]["runbook_url"]
    assert "$values.found.Value" in annotations["description"]
    assert " Next: " in annotations["description"]
    for text in annotations.values():
        assert "${" not in text
        actions = re.findall(r"\{\{-?\s*(.*?)\s*-?\}\}", text)
        assert text.count("{{") == len(actions)
        for action in actions:
            bare = re.sub(r'"[^"]*"', "", action)
            words = re.findall(r"(?<![$.\w])[A-Za-z]\w*", bare)
            assert set(words) <= FUNCTIONS, action
            assert set(re.findall(r"\$[\w.]+", bare)) <= {"$values.found.Value", *labels(name)}, action


def labels(name: str) -> set[str]:
    """Return the labels that an alert's text may name: those of Prometheus' own text."""
    return set(re.findall(r"\$labels\.\w+", str(SOURCE[name]["annotations"])))


def test_every_severity_reaches_a_contact_point_that_is_there() -> None:
    """The example's routes cover every severity, and name contact points of the example beside it."""
    points = {point["name"] for point in load("contact-points.example.yml")["contactPoints"]}
    (tree,) = load("policies.example.yml")["policies"]
    assert {tree["receiver"], *(route["receiver"] for route in tree["routes"])} <= points
    for severity in {rule["labels"]["severity"] for rule in SOURCE.values()}:
        matching = [
            route
            for route in tree["routes"]
            for label, operator, value in route["object_matchers"]
            if label == "severity" and re.fullmatch(value if operator == "=~" else re.escape(value), severity)
        ]
        assert len(matching) == 1, severity
