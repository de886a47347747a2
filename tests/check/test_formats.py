"""The four forms of a check: text, JSON, annotations, SARIF."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvwatch.check.declaration import Declaration, Ignore, Place, Problem
from kvwatch.check.formats import FORMATS, render
from kvwatch.check.rules import RULES, check
from kvwatch.check.verdict import Finding, Severity
from kvwatch.cli import main
from tests.check.fleet import A40, model, server

ROOT = Path(__file__).parents[2]


def fleet(*ignores: Ignore) -> Declaration:
    """Return a declaration with an error, a warning that may be ignored, and a problem."""
    first = server("chat", "vllm serve m --gpu-memory-utilization 0.92", line=3)
    second = server("embed", "vllm serve m --gpu-memory-utilization 0.75", line=9)
    return Declaration(
        servers=(first, replace(second, ignores=ignores)),
        cards=(A40,),
        problems=(Problem(place=Place(file="k8s/a b.yaml", line=7), message="a template, 100% open"),),
    )


REASON = Ignore(
    rule="unpinned-neighbours", reason="one after the other", place=Place(file="fleet.yaml", line=8)
)


def shown(form: str, *ignores: Ignore) -> str:
    """Return the fleet's check in a form."""
    declaration = fleet(*ignores)
    return render(declaration, check(declaration), form)


def test_text_names_place_severity_and_rule() -> None:
    """The first words are what editors and terminals jump to; the last line counts."""
    text = shown("text", REASON)
    assert "fleet.yaml:9: error: the servers on GPU 0 claim 1.67 of it" in text
    assert "k8s/a b.yaml:7: not read: a template, 100% open" in text
    assert "fleet.yaml:9: ignored: unpinned-neighbours: one after the other" in text
    assert "[unpinned-neighbours]" not in text
    assert text.endswith("2 servers checked: 1 error, 1 note. What each means: kvwatch help RULE\n")
    assert all(len(line) <= 120 for line in text.splitlines())


def test_json_keeps_what_is_ignored_apart() -> None:
    """Findings, ignored ones with their reason, problems and cards, each with file and line."""
    document = json.loads(shown("json", REASON))
    assert [one["rule"] for one in document["findings"]] == ["shares-over-limit", "unknown-model"]
    assert document["findings"][0].keys() == {
        "rule", "severity", "message", "file", "line", "card", "servers", "numbers",
    }  # fmt: skip
    [ignored] = document["ignored"]
    assert (ignored["rule"], ignored["reason"]) == ("unpinned-neighbours", "one after the other")
    assert document["problems"] == [{"message": "a template, 100% open", "file": "k8s/a b.yaml", "line": 7}]
    [card] = document["cards"]
    assert card == {
        "name": "0",
        "total_bytes": A40.total_bytes,
        "share_sum": 1.67,
        "share_sum_at_least": 1.67,
        "share_limit": 0.95,
        "servers": ["chat", "embed"],
    }


def test_a_sum_that_is_not_known_is_null() -> None:
    """A pin that was not measured makes the sum a lower bound, and no number."""
    declaration = Declaration(
        servers=(server("chat", "vllm serve m --kv-cache-memory-bytes 10G"),), cards=(A40,)
    )
    [card] = json.loads(render(declaration, check(declaration), "json"))["cards"]
    assert card["share_sum"] is None
    assert card["share_sum_at_least"] == pytest.approx(10 / 44.988, abs=1e-3)


def test_a_length_that_no_file_settles_is_not_the_models_own() -> None:
    """`--max-model-len ${LEN}`: blocks are known, how many requests of which length is not."""
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072}
    command = "vllm serve m --kv-cache-memory-bytes 10G --max-model-len '${LEN}'"
    declaration = Declaration(servers=(server("chat", command, model=model(config)),), cards=(A40,))
    [one] = json.loads(render(declaration, (), "json"))["servers"]
    assert one["pool"]["usable_blocks"] == 10 * 512 - 1
    of_length = ("full_length_tokens", "minimum_pool_bytes", "max_concurrency", "resident_limit", "fit_empty")
    assert [one["pool"][name] for name in of_length] == [None] * 5
    assert "chat: a pool of 10.00 GiB\n" in render(declaration, (), "text")


def test_annotations_are_workflow_commands() -> None:
    """One a line, with what ends a command or a property escaped; what is ignored is left out."""
    lines = shown("github", REASON).splitlines()
    assert lines[0] == "::warning file=k8s/a b.yaml,line=7,title=kvwatch::a template, 100%25 open"
    assert lines[1].startswith("::error file=fleet.yaml,line=9,title=kvwatch shares-over-limit::the servers")
    assert not any("unpinned" in line for line in lines)
    odd = Finding(
        rule="x", severity=Severity.NOTE, message="a\nb", place=Place(file="C:/a,b.yaml"), card=None
    )
    assert render(Declaration(servers=(), cards=()), [odd], "github") == (
        "::notice file=C%3A/a%2Cb.yaml,title=kvwatch x::a%0Ab\n"
    )


def test_sarif_has_what_2_1_0_asks_for() -> None:
    """Schema and version, every rule with its page and level, every result with rule, level and place."""
    log = json.loads(shown("sarif", REASON))
    assert (log["version"], log["$schema"]) == ("2.1.0", "https://json.schemastore.org/sarif-2.1.0.json")
    [run] = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "kvwatch check"
    assert [rule["id"] for rule in driver["rules"]] == [rule.id for rule in RULES]
    for rule in driver["rules"]:
        assert re.fullmatch(r"https://\S+/docs/checks/" + rule["id"] + r"\.md", rule["helpUri"])
        assert rule["defaultConfiguration"]["level"] in {"error", "warning", "note"}
        assert rule["shortDescription"]["text"]
    assert len(run["results"]) == 3
    for result in run["results"]:
        check_result(result, driver["rules"])
    suppressed = [one for one in run["results"] if "suppressions" in one]
    assert [one["ruleId"] for one in suppressed] == ["unpinned-neighbours"]
    assert suppressed[0]["suppressions"] == [{"kind": "inSource", "justification": "one after the other"}]
    [invocation] = run["invocations"]
    [notification] = invocation["toolExecutionNotifications"]
    [location] = notification["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "k8s/a%20b.yaml"


def check_result(result: dict[str, Any], rules: list[dict[str, Any]]) -> None:
    """Check one result against the schema's required parts and its own rule."""
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert result["level"] in {"error", "warning", "note"}
    assert result["message"]["text"]
    [location] = result["locations"]
    physical = location["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "fleet.yaml"
    assert physical["region"]["startLine"] >= 1


def test_a_place_without_a_line_has_no_region() -> None:
    """SARIF lines begin at 1; none is made up."""
    finding = Finding(rule="flag-unknown", severity=Severity.NOTE, message="m", place=Place(file="/a/b.yaml"))
    log = json.loads(render(Declaration(servers=(), cards=()), [finding], "sarif"))
    [location] = log["runs"][0]["results"][0]["locations"]
    assert location["physicalLocation"] == {"artifactLocation": {"uri": "file:///a/b.yaml"}}


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_found_is_said_in_every_form(form: str) -> None:
    """No servers, no findings: a valid document, no annotation, one line of text."""
    text = render(Declaration(servers=(), cards=()), (), form)
    match form:
        case "text":
            assert text == "0 servers checked: nothing found\n"
        case "github":
            assert text == ""
        case _:
            assert json.loads(text)


def test_the_hook_runs_the_command_on_what_it_is_given() -> None:
    """The definition's entry is the real command, and its types are those that are read."""
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "kvwatch-check"
    assert hook["language"] == "python"
    assert hook["require_serial"] is True, "the servers of a card are judged together"
    program, command = hook["entry"].split()
    assert program == "kvwatch"
    case = Path(__file__).parent / "rules" / "shares-over-limit"
    options = ["--card=gpu0=46068MiB:chat,embed"]
    assert main([command, *options, str(case / "bad.yaml")]) == 1
    assert main([command, *options, str(case / "good.yaml")]) == 0
