"""The dashboards through Grafana's own schema and back, as grafana-foundation-sdk 11.6.0 has it."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.test_dashboards import DASHBOARDS, UNITS

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_IN_THE_SCHEMA = {
    r"\.annotations\.list\[\]\.target\.(expr|refId)": (
        "the query of a mark is the Prometheus plugin's own; the schema has only Grafana's built-in marks"
    ),
    r"\.annotations\.list\[\]\.(tagKeys|textFormat|titleFormat|useValueForTime)": (
        "how the Prometheus plugin makes marks of series (packages/grafana-prometheus, annotations.ts)"
    ),
}
"""Fields that the schema does not describe, by path, and why they are there all the same."""
NULLS = {
    r"\.id": "Grafana gives the number when the dashboard is imported",
    r"\.panels\[\]\.fieldConfig\.(defaults\.thresholds|overrides\[\]\..+)\.steps\[\]\.value": (
        "the first step of thresholds holds below all others"
    ),
}
"""Where a null means something; the SDK reads none, so they are taken out first."""


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every leaf under its path; places in lists are counted, and an empty object says nothing."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for index, child in enumerate(value):
            yield from leaves(child, f"{path}[{index}]")
    else:
        yield path, value


def kind_of(path: str) -> str:
    """Return a path without its numbers."""
    return re.sub(r"\[\d+\]", "[]", path)


def without_nulls(value: Any) -> Any:
    """Return JSON without its nulls."""
    if isinstance(value, dict):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [without_nulls(child) for child in value]
    return value


def lost(dashboard: dict[str, Any]) -> set[str]:
    """Return the paths that do not come back as they went in, numbers left out."""
    sent = without_nulls(dashboard)
    returned = json.loads(json.dumps(read(sent), cls=JSONEncoder))
    kept = dict(leaves(returned))
    return {kind_of(path) for path, value in leaves(sent) if path not in kept or kept[path] != value}


def read(dashboard: dict[str, Any]) -> Dashboard:
    """Return a dashboard as the SDK reads it, panels and queries by the schemas of their kinds."""
    register_default_plugins()
    return Dashboard.from_json(dashboard)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_no_field_is_lost(name: str) -> None:
    """What comes back differs only in the fields that the schema does not describe."""
    unknown = {
        path for path in lost(DASHBOARDS[name]) if not any(re.fullmatch(p, path) for p in NOT_IN_THE_SCHEMA)
    }
    assert unknown == set()


def test_every_exception_is_needed() -> None:
    """A line of the tables that no dashboard needs any more goes."""
    found = set().union(*map(lost, DASHBOARDS.values()))
    for pattern in NOT_IN_THE_SCHEMA:
        assert any(re.fullmatch(pattern, path) for path in found), pattern
    nulls = {kind_of(path) for one in DASHBOARDS.values() for path, value in leaves(one) if value is None}
    assert {path for path in nulls if not any(re.fullmatch(pattern, path) for pattern in NULLS)} == set()
    for pattern in NULLS:
        assert any(re.fullmatch(pattern, path) for path in nulls), pattern


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_are_read_by_the_schemas_of_their_kinds(name: str) -> None:
    """Each panel's options and each query become the SDK's own types: an unknown kind would pass unread."""
    for panel in read(without_nulls(DASHBOARDS[name])).panels or ():
        if panel.type_val == "row":
            continue
        options = getattr(panel, "options", None)
        assert type(options).__module__ == f"grafana_foundation_sdk.models.{panel.type_val}", panel.title
        for target in getattr(panel, "targets", None) or ():
            assert type(target).__module__ == "grafana_foundation_sdk.models.prometheus", panel.title


@pytest.mark.parametrize(
    "where",
    [
        (),
        ("panels", 1),
        ("panels", 1, "options"),
        ("panels", 1, "targets", 0),
        ("panels", 1, "fieldConfig", "defaults"),
        ("panels", 1, "gridPos"),
        ("templating", "list", 1),
    ],
    ids=lambda where: ".".join(map(str, where)) or "dashboard",
)
def test_a_field_that_grafana_does_not_know_is_noticed(where: tuple[str | int, ...]) -> None:
    """A misspelt field is named by its path, wherever it stands."""
    dashboard = copy.deepcopy(DASHBOARDS["fleet"])
    holder: Any = dashboard
    for step in where:
        holder = holder[step]
    holder["decimels"] = 1
    (path,) = lost(dashboard)
    assert path.endswith(".decimels")


def test_units_are_grafanas() -> None:
    """Grafana shows the name of a unit that it does not know behind the number."""
    known = {value for name, value in vars(units).items() if isinstance(value, str) and name[0] != "_"}
    assert known >= UNITS


def test_the_schema_is_that_of_the_version_that_ships() -> None:
    """The SDK that is installed is for the Grafana that docker-compose.yml starts."""
    root = Path(__file__).parents[1]
    pin = re.search(
        r'"grafana-foundation-sdk==[\d.]+!([\d.]+)"', (root / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert pin
    compose = (root / "docker-compose.yml").read_text(encoding="utf-8")
    assert f"grafana/grafana:{pin[1]}" in compose
