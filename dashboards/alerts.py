"""Grafana-managed alerts: `deploy/prometheus/kvwatch.rules.yml` as a file that Grafana provisions.

One source for both: a rule is written and tested for Prometheus, and Grafana gets the same expression, `for`,
labels and annotations. Format: Grafana 11.6, pkg/services/provisioning/alerting/rules_types.go, which leaves
`$` in queries and annotations alone; elsewhere it would be an environment variable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "kvwatch"
DATASOURCE_UID = "prometheus"
"""Of deploy/grafana/provisioning/datasources."""
INTERVAL = "1m"
_WINDOW_SECONDS = 600
_QUERY_BLOCK = re.compile(r"\s*\{\{-? with printf .*?\| query \}\}.*?\{\{ end \}\}", re.DOTALL)
"""Only Prometheus can ask for another series inside a text."""


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as it reads."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)

_HEAD = """\
# Generated from deploy/prometheus/kvwatch.rules.yml by `python -m dashboards.build`: change the rules there.
# For those who let Grafana evaluate alerts. Use these or Prometheus' own, not both: both would page.
"""


def render(rules: Path) -> str:
    """Return the provisioning file that says the same as a Prometheus rules file."""
    groups = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    made = [_group(group) for group in groups]
    document = {"apiVersion": 1, "groups": [group for group in made if group["rules"]]}
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return _HEAD + text


def _group(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "orgId": 1,
        "name": group["name"],
        "folder": FOLDER,
        "interval": INTERVAL,
        "rules": [_rule(rule) for rule in group["rules"] if "alert" in rule],
    }


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    name: str = rule["alert"]
    return {
        "uid": re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(),
        "title": name,
        "condition": "firing",
        "data": [
            _node("found", DATASOURCE_UID, expr=rule["expr"], instant=True, range=False),
            # The expression returns only what must fire, and 0 may be a value that must.
            _node("firing", "__expr__", type="math", expression="is_number(${found})"),
        ],
        # No series is the calm case of every expression here; what is unknown has alerts of its own.
        "noDataState": "OK",
        "execErrState": "Error",
        "for": rule.get("for", "0s"),
        "labels": dict(rule["labels"]),
        "annotations": {key: _annotation(text) for key, text in rule["annotations"].items()},
        "isPaused": False,
    }


def _node(ref: str, datasource: str, **model: object) -> dict[str, Any]:
    kind = "__expr__" if datasource == "__expr__" else "prometheus"
    return {
        "refId": ref,
        "relativeTimeRange": {"from": _WINDOW_SECONDS, "to": 0},
        "datasourceUid": datasource,
        "model": {"refId": ref, "datasource": {"type": kind, "uid": datasource}, **model},
    }


def _annotation(text: str) -> str:
    """Return a text with Grafana's name for the value of the query."""
    return re.sub(r"\$value\b", "$values.found.Value", _QUERY_BLOCK.sub("", text))
