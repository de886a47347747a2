"""The scale of the live proof: which times of the shipped rules it changes, and that it changes no other."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts.scale import alertmanager, duration, expression, rules, seconds_of

ROOT = Path(__file__).parents[2]
RULE_FILES = sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml"))


@pytest.mark.parametrize(
    "text, seconds", [("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("2d", 172_800), ("1w", 604_800)]
)
def test_durations_are_read_as_prometheus_does(text: str, seconds: float) -> None:
    """Units add up."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m5", "5 m", "$back"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A variable or a number without a unit is not taken for a time."""
    with pytest.raises(ValueError, match="not a duration"):
        seconds_of(text)


@pytest.mark.parametrize("text, scaled", [("10m", "10000ms"), ("1m", "1000ms"), ("1d", "1d"), ("1w", "1w")])
def test_days_stay_days(text: str, scaled: str) -> None:
    """Ten minutes become ten seconds at a sixtieth, and last week stays last week."""
    assert duration(text, 1 / 60) == scaled


@pytest.mark.parametrize(
    "expr, scaled",
    [
        pytest.param("increase(a[5m]) >= 2", "increase(a[5000ms]) >= 2", id="a range, not a count"),
        pytest.param("time() - a > 300", "time() - a > 5.000", id="an age"),
        pytest.param("time() - a <= 90000", "time() - a <= 90000", id="an age in days"),
        pytest.param("time() - a > 300 and b <= 0.5", "time() - a > 5.000 and b <= 0.5", id="and a ratio"),
        pytest.param("a > 300", "a > 300", id="a number that is no age"),
        pytest.param("a offset 5m / a offset 1w", "a offset 5000ms / a offset 1w", id="an offset"),
        pytest.param("max_over_time(a[1h]) < 0.85", "max_over_time(a[60000ms]) < 0.85", id="another ratio"),
    ],
)
def test_only_times_are_scaled(expr: str, scaled: str) -> None:
    """Ranges, offsets and ages change; counts and ratios do not."""
    assert expression(expr, 1 / 60) == scaled


def times_changed(before: str, after: str) -> list[tuple[str, str]]:
    """Return each word that is another one after the scaling."""
    old, new = before.split(), after.split()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        (" ".join(old[start:end]), " ".join(new[begin:stop]))
        for kind, start, end, begin, stop in matcher.get_opcodes()
        if kind != "equal"
    ]


@pytest.mark.parametrize("file", RULE_FILES, ids=lambda file: file.name)
def test_the_shipped_rules_change_in_their_times_alone(file: Path) -> None:
    """Every rule keeps its name, labels and annotations; a range or an age below a day is what differs."""
    shipped: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    scaled = rules(shipped, 1 / 60)
    assert rules(shipped, 1) != shipped or file.name == "kvwatch.recording.rules.yml"
    for group, quick in zip(shipped["groups"], scaled["groups"], strict=True):
        for rule, fast in zip(group["rules"], quick["rules"], strict=True):
            assert fast.keys() == rule.keys()
            same = {key: value for key, value in rule.items() if key not in {"expr", "for"}}
            assert {key: fast[key] for key in same} == same
            if "for" in rule:
                assert seconds_of(fast["for"]) == pytest.approx(seconds_of(rule["for"]) / 60)
            for old, new in times_changed(rule["expr"], fast["expr"]):
                assert "[" in old or old in {"300", "300)"}, (rule, old, new)


def test_the_rules_hold_no_other_age() -> None:
    """The ages of the alerts are those that the scale knows; a new one must be looked at."""
    text = " ".join(rule["expr"] for file in RULE_FILES for group in _groups(file) for rule in group["rules"])
    numbers = {word for word in text.replace(")", " ").split() if word.isdigit() and int(word) > 9}
    assert numbers == {"300", "90000", "608400"}


def test_alertmanager_waits_less_and_tells_the_webhook() -> None:
    """Every wait is scaled in every route; grouping and inhibition stay, and no receiver is left out."""
    shipped = yaml.safe_load((ROOT / "deploy" / "alertmanager" / "alertmanager.yml").read_text("utf-8"))
    scaled = alertmanager(shipped, 1 / 60, "http://127.0.0.1:1/")
    assert scaled["inhibit_rules"] == shipped["inhibit_rules"]
    assert scaled["route"]["group_by"] == shipped["route"]["group_by"]
    assert (scaled["route"]["group_wait"], scaled["route"]["routes"][0]["repeat_interval"]) == (
        "500ms",
        "60000ms",
    )
    assert [one["name"] for one in scaled["receivers"]] == [one["name"] for one in shipped["receivers"]]
    assert {one["webhook_configs"][0]["url"] for one in scaled["receivers"]} == {"http://127.0.0.1:1/"}


def _groups(file: Path) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return groups
