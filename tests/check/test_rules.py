"""Every rule has a small bad file with its exact message, a good twin that stays silent, and a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvwatch.check.rules import RULES
from kvwatch.cli import main

HERE = Path(__file__).parent
CASES = HERE / "rules"
PAGES = HERE.parents[1] / "docs" / "checks"
IDS = [rule.id for rule in RULES]
HEADINGS = ["What it means", "The arithmetic", "How to mend it", "When to ignore it"]


def file_of(rule: str, kind: str) -> Path:
    """Return the bad or the good file of a rule."""
    found = [path for path in (CASES / rule).glob(f"{kind}.*") if path.suffix not in (".options", ".txt")]
    assert len(found) == 1, f"{rule}: one file {kind}.* is wanted"
    return found[0].relative_to(HERE)


def options_of(rule: str, kind: str) -> list[str]:
    """Return what the command line says beside the file: cards and models."""
    own = CASES / rule / f"{kind}.options"
    return (own if own.exists() else CASES / rule / "options").read_text().split()


def run(rule: str, kind: str, *options: str) -> list[str]:
    """Return the command line of a case."""
    return ["check", *options, *options_of(rule, kind), str(file_of(rule, kind))]


@pytest.mark.parametrize("rule", IDS)
def test_the_bad_file_gives_exactly_its_message(
    rule: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    update_golden: bool,  # noqa: FBT001 - a fixture
) -> None:
    """What the command prints is what stands beside the bad file, the rule's own finding in it."""
    monkeypatch.chdir(HERE)
    main(run(rule, "bad"))
    printed = capsys.readouterr().out
    expected = CASES / rule / "bad.txt"
    if update_golden:
        expected.write_text(printed)
    assert f"[{rule}]" in printed
    assert printed == expected.read_text()


@pytest.mark.parametrize("rule", IDS)
def test_the_good_twin_stays_silent(
    rule: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file without the fault gives no finding at all, and nothing is left unread."""
    monkeypatch.chdir(HERE)
    assert main(run(rule, "good", "--fail-on=warning", "--format=json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"] == []
    assert document["problems"] == []
    assert document["servers"] != []


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_rule_has_a_page_that_is_listed(rule: object) -> None:
    """Each page tells what is meant, the sum, the cure and the exception, and the index has it."""
    name, severity, summary = (getattr(rule, field) for field in ("id", "severity", "summary"))
    page = (PAGES / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n\n**{severity.capitalize()}.** {summary[0].upper()}{summary[1:]}.\n")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == HEADINGS
    assert f"| [{name}]({name}.md) | {severity} | {summary} |" in (PAGES / "README.md").read_text()


def test_no_case_and_no_page_is_left_without_a_rule() -> None:
    """The folders hold rules of the table only, and ids are unique."""
    assert {path.name for path in CASES.iterdir()} == set(IDS)
    assert {path.stem for path in PAGES.glob("*.md")} == {*IDS, "README"}
    assert len(IDS) == len(set(IDS))


def test_the_first_templates_of_a_fleet_are_rejected_with_the_arithmetic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.92 beside 0.75 is 1.67 of a card: an error, in the findings and in the card."""
    monkeypatch.chdir(HERE)
    assert main(run("shares-over-limit", "bad", "--format=json")) == 1
    document = json.loads(capsys.readouterr().out)
    [card] = document["cards"]
    assert (card["name"], card["total_bytes"], card["share_sum"]) == ("gpu0", 46068 << 20, 1.67)
    assert card["servers"] == ["chat", "embed"]
    worst = document["findings"][0]
    assert (worst["rule"], worst["severity"], worst["card"]) == ("shares-over-limit", "error", "gpu0")
    assert worst["servers"] == ["chat", "embed"]
    assert worst["numbers"]["share_sum_ratio"] == 1.67
    assert worst["numbers"]["over_ratio"] == 0.72
    assert "1.67 of it together, limit 0.95: chat 0.92 + embed 0.75" in worst["message"]
    assert "lower chat to 0.20 or embed to 0.03" in worst["message"]
