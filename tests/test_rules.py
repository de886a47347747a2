"""The alerts: sound for promtool, tested in both directions, only on catalogue names, each with a runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from kvwatch import metrics
from kvwatch.readings import Reason

ROOT = Path(__file__).parents[1]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES_FILE = PROMETHEUS / "kvwatch.rules.yml"
TEST_FILE = PROMETHEUS / "kvwatch.rules.test.yml"
RUNBOOKS = ROOT / "docs" / "runbooks"
RUNBOOK_URL = "https://example.com/kvwatch/docs/runbooks/{}.md"
HEADINGS = ["What it means", "What users feel", "Confirm", "Do", "Do not"]

GROUPS = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
CASES = yaml.safe_load(TEST_FILE.read_text(encoding="utf-8"))["tests"]

each_alert = pytest.mark.parametrize("alert", RULES)


def names_in(text: str) -> set[str]:
    """Return the kvwatch series that a text names."""
    return set(re.findall(r"\bkvwatch_[a-z0-9_]+", text))


def exported_names() -> set[str]:
    """Return every series name of the catalogue."""
    return {metric.name for metric in metrics.CATALOGUE}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_alert_names_are_unique() -> None:
    """No alert stands twice, which would hide one of the two from these tests."""
    assert len(RULES) == sum(len(group["rules"]) for group in GROUPS)


@pytest.mark.prometheus
def test_promtool_accepts_the_rules() -> None:
    """Promtool finds every rule, and no duplicate."""
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES_FILE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(RULES)} rules found" in done.stdout


@pytest.mark.prometheus
def test_alerts_fire_when_they_must_and_only_then() -> None:
    """The unit tests of the rules pass."""
    done = promtool("test", "rules", TEST_FILE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "guard, without",
    [
        pytest.param("unless on (job, instance, server) kvwatch_server_sleeping == 1", "", id="asleep"),
        pytest.param(
            'and on (job, instance, server) kvwatch_server_info{engine="llamacpp"}', "", id="engine"
        ),
        pytest.param("[5m])) >= 2", "[5m])) > 0", id="a single suspicion"),
        pytest.param(
            "and on (job, instance, source, target) kvwatch_source_up == 1", "", id="down, not stale"
        ),
        pytest.param(
            '{source=~"nvml|procfs", reason="not_supported"}',
            '{source="none"}',
            id="a device without dedicated memory",
        ),
        pytest.param(
            "max by (job, instance, server) (kvwatch_full",
            "min by (job, instance, server) (kvwatch_full",
            id="a rank with room",
        ),
    ],
)
def test_the_unit_tests_miss_a_guard_that_is_gone(tmp_path: Path, guard: str, without: str) -> None:
    """A rule without one of its conditions fails its own tests."""
    text = RULES_FILE.read_text(encoding="utf-8")
    assert guard in text
    (tmp_path / RULES_FILE.name).write_text(text.replace(guard, without), encoding="utf-8")
    shutil.copy(TEST_FILE, tmp_path)
    done = promtool("test", "rules", tmp_path / TEST_FILE.name)
    assert done.returncode == 1
    assert "FAILED" in done.stdout + done.stderr


@each_alert
def test_expressions_ask_for_what_is_exported(alert: str) -> None:
    """Every expression parses and names only series of the catalogue, or Prometheus' own `up`."""
    expr = RULES[alert]["expr"]
    promql_parser.parse(expr)
    names = names_in(expr)
    assert names <= exported_names()
    assert names or re.search(r"\bup\{", expr)


@each_alert
def test_alerts_say_what_to_do(alert: str) -> None:
    """An alert has a severity, a hold time, a summary, its value, a next step, and its own runbook."""
    rule = RULES[alert]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert re.fullmatch(r"[1-9][0-9]*[smh]", rule["for"])
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert "$value" in annotations["description"]
    assert " Next: " in annotations["description"]
    assert annotations["runbook_url"] == RUNBOOK_URL.format(alert)


@each_alert
def test_alerts_are_tested_in_both_directions(alert: str) -> None:
    """The unit tests hold a moment at which the alert fires and one at which it does not."""
    checks: list[dict[str, Any]] = [
        check for case in CASES for check in case.get("alert_rule_test", ()) if check["alertname"] == alert
    ]
    assert any(check.get("exp_alerts") for check in checks)
    assert any(not check.get("exp_alerts") for check in checks)


@each_alert
def test_runbooks_are_complete(alert: str) -> None:
    """A runbook has the alert's name, all five headings, two commands, and only names that exist."""
    text = (RUNBOOKS / f"{alert}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    commands = block.splitlines()
    assert len(commands) == 2
    prose = re.sub(r"```sh.*?```", "", text, flags=re.DOTALL)
    assert names_in(prose) <= exported_names()
    for command in commands:
        for pattern in re.findall(r"9836/metrics \| grep -E '(.*?)'", command):
            assert any(re.match(pattern, name) for name in exported_names())


def test_every_runbook_belongs_to_an_alert() -> None:
    """No runbook is left of an alert that is gone, and the index lists them all with their severity."""
    assert {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"} == set(RULES)
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|", index, re.MULTILINE)
    assert dict(listed) == {alert: rule["labels"]["severity"] for alert, rule in RULES.items()}


def test_every_reason_is_explained() -> None:
    """The runbook of a source that is down names each reason that kvwatch may give."""
    text = (RUNBOOKS / "KvwatchSourceDown.md").read_text(encoding="utf-8")
    assert [reason for reason in Reason if not re.search(rf"\b{reason}\b", text)] == []
