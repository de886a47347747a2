"""The alerts: sound for promtool, tested in both directions, only on catalogue names, each with a runbook."""

from __future__ import annotations

import re
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
RECORDING_FILE = PROMETHEUS / "kvwatch.recording.rules.yml"
TEST_FILES = sorted(PROMETHEUS.glob("*.test.yml"))
RUNBOOKS = ROOT / "docs" / "runbooks"
RUNBOOK_URL = "https://example.com/kvwatch/docs/runbooks/{}.md"
HEADINGS = ["What it means", "What users feel", "Confirm", "Do", "Do not"]

GROUPS = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
RECORDED = {
    rule["record"]: rule
    for group in yaml.safe_load(RECORDING_FILE.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
CASES = [case for file in TEST_FILES for case in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]]

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
    for file, rules in ((RULES_FILE, RULES), (RECORDING_FILE, RECORDED)):
        done = promtool("check", "rules", "--lint=all", "--lint-fatal", file)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"SUCCESS: {len(rules)} rules found" in done.stdout


@pytest.mark.prometheus
def test_alerts_fire_when_they_must_and_only_then() -> None:
    """The unit tests of the rules pass."""
    done = promtool("test", "rules", *TEST_FILES)
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
        pytest.param(
            "max_over_time(kvwatch_kv_usage_ratio[10m]) < 0.85",
            "max_over_time(kvwatch_kv_usage_ratio[10m]) < 2",
            id="waiting at a full pool",
        ),
        pytest.param(
            "max_over_time(kvwatch_kv_usage_ratio[10m])",
            "max_over_time(kvwatch_kv_usage_ratio[2m])",
            id="a gap between full and stalled",
        ),
        pytest.param(
            "max_over_time(kvwatch_requests_running[10m]) < kvwatch_request_limit",
            "kvwatch_requests_running",
            id="waiting for slots",
        ),
        pytest.param(
            "max_over_time(kvwatch_kv_usage_ratio[5m]) < 0.85",
            "max_over_time(kvwatch_kv_usage_ratio[5m]) < 2",
            id="stalled beside a full pool",
        ),
        pytest.param(
            "max_over_time(kvwatch_requests_running[5m]) < kvwatch_request_limit",
            "kvwatch_requests_running",
            id="stalled without slots",
        ),
        pytest.param(
            "increase(kvwatch_generation_tokens_total[5m]) == 0",
            "increase(kvwatch_generation_tokens_total[5m]) >= 0",
            id="tokens come out",
        ),
        pytest.param(
            "sum by (job, instance, server, rank) (increase(kvwatch_finished_requests_total[5m])) == 0",
            "kvwatch_generation_tokens_total",
            id="an embedding server",
        ),
        pytest.param(
            'unless on (job, instance, server)\n                  kvwatch_server_info{engine="llamacpp"}',
            "",
            id="tokens counted at the end",
        ),
        pytest.param(
            "unless on (job, instance, server) kvwatch_server_sleeping > 0", "", id="asleep, not stalled"
        ),
        pytest.param(
            "kvwatch_server_start_timestamp_seconds > 90000",
            "kvwatch_server_start_timestamp_seconds > 1",
            id="a start since yesterday",
        ),
        pytest.param(
            "kvwatch_server_start_timestamp_seconds > 608400",
            "kvwatch_server_start_timestamp_seconds > 1",
            id="a start since last week",
        ),
        pytest.param(
            "kvwatch_server_config_changed_timestamp_seconds <= 90000",
            "kvwatch_server_config_changed_timestamp_seconds <= 1",
            id="flags changed since yesterday",
        ),
        pytest.param(
            "kvwatch_server_config_changed_timestamp_seconds <= 608400",
            "kvwatch_server_config_changed_timestamp_seconds <= 1",
            id="flags changed since last week",
        ),
        pytest.param(
            'and on (job, instance, server) kvwatch_finding{rule="capacity_halved"}',
            "",
            id="the edge of a block",
        ),
        pytest.param('{rule="pool_changed_same_flags"}', "", id="another finding"),
        pytest.param("> 1e-9", ">= 0", id="a sum at its limit"),
        pytest.param(
            'or\n                kvwatch_finding{rule="share_sum_over_limit"}',
            "",
            id="a sum of which the known part is too much",
        ),
        pytest.param(
            "and on (job, instance, server) kvwatch_server_share_ratio", "", id="a pinned neighbour"
        ),
        pytest.param('{component="orphan"}', "", id="memory of somebody"),
    ],
)
def test_the_unit_tests_miss_a_guard_that_is_gone(tmp_path: Path, guard: str, without: str) -> None:
    """A rule without one of its conditions is still valid, and fails its own tests."""
    text = RULES_FILE.read_text(encoding="utf-8")
    assert guard in text
    changed = yaml.safe_load(text.replace(guard, without))["groups"]
    rules = [rule for group in changed for rule in group["rules"] if rule not in RULES.values()]
    names = {rule["alert"] for rule in rules}
    cases = [
        case | {"alert_rule_test": checks}
        for case in CASES
        if (checks := [one for one in case.get("alert_rule_test", ()) if one["alertname"] in names])
    ]
    rules_file, test_file = tmp_path / "changed.yml", tmp_path / "changed.test.yml"
    rules_file.write_text(yaml.safe_dump({"groups": [{"name": "changed", "rules": rules}]}))
    test_file.write_text(
        yaml.safe_dump({"rule_files": [rules_file.name], "evaluation_interval": "15s", "tests": cases})
    )
    assert promtool("check", "rules", rules_file).returncode == 0
    done = promtool("test", "rules", test_file)
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


def guards_of_sums() -> list[tuple[str, str, str]]:
    """Return each recording rule with a part that keeps the unknown or another week out, and a wrong part."""
    parts = {
        "unless on (job, instance, server)": "or on (job, instance, server)",
        " * on (": " + on (",
        " * 0": "",
        " offset 1w": "",
    }
    return [
        (name, part, instead)
        for name, rule in RECORDED.items()
        for part, instead in parts.items()
        if part in " ".join(rule["expr"].split())
    ]


@pytest.mark.prometheus
@pytest.mark.parametrize("name, part, instead", guards_of_sums())
def test_the_unit_tests_miss_a_guard_of_a_recording_rule(
    tmp_path: Path, name: str, part: str, instead: str
) -> None:
    """A recording rule without one of its guards is still valid, and fails its own tests."""
    changed = yaml.safe_load(RECORDING_FILE.read_text(encoding="utf-8"))
    for group in changed["groups"]:
        for rule in group["rules"]:
            if rule["record"] == name:
                rule["expr"] = " ".join(rule["expr"].split()).replace(part, instead)
    rules_file = tmp_path / RECORDING_FILE.name
    rules_file.write_text(yaml.safe_dump(changed, sort_keys=False), encoding="utf-8")
    assert promtool("check", "rules", rules_file).returncode == 0
    # Weeks are evaluated only for the rule that looks back.
    test_file = f"kvwatch.recording{'.week' if name.endswith('ratio_1w') else ''}.test.yml"
    (tmp_path / test_file).write_bytes((PROMETHEUS / test_file).read_bytes())
    done = promtool("test", "rules", tmp_path / test_file)
    assert done.returncode == 1
    assert "FAILED" in done.stdout + done.stderr


@pytest.mark.parametrize("name", RECORDED)
def test_recording_rules_are_named_by_level_and_tested(name: str) -> None:
    """A recording rule sums to the level of its name, of catalogue series, and the unit tests ask for it."""
    level, series, _ = name.split(":")
    expression = RECORDED[name]["expr"]
    assert names_in(expression.replace(name, "")) <= exported_names()
    assert {"server": "(job, instance, server)", "model": "(job, model)", "job": "(job)"}[level] in expression
    assert series in exported_names() or series.startswith("kvwatch_servers_")
    assert any(check["expr"] == name for case in CASES for check in case.get("promql_expr_test", ()))


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
