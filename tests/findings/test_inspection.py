"""From condition to finding: ages, gaps, verdicts of others, rules that fail, and the closed list."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.capacity_change import CapacityChange
from kvwatch.finding import RuleId, Severity
from kvwatch.findings import RULES, Inspection, inspection
from kvwatch.findings.activity import Gain
from kvwatch.findings.rule import Evidence, Rule, Verdict
from tests.findings import test_devices, test_pools, test_trust
from tests.findings.states import Moment, Rank, found, held_for, inspected, silent, unjudged, vllm

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

R = RuleId
QUEUE = Moment(servers=[vllm(Rank(usage=0.97, waiting=6))])
CALM = Moment(servers=[vllm()])
AWAY = Moment(servers=[silent()])


def ages(*moments: Moment) -> list[bool]:
    """Tell after each poll whether the queue is a finding."""
    return [
        bool(found(inspected(*moments[: count + 1]), R.WAITING_POOL_FULL)) for count in range(len(moments))
    ]


def at(moment: Moment, *times: float) -> list[Moment]:
    """Return the poll at these moments."""
    return [replace(moment, at=time) for time in times]


def test_a_break_starts_the_age_anew() -> None:
    """One calm poll, and it must hold for the whole time again."""
    moments = [*at(QUEUE, 0, 30, 55), *at(CALM, 60), *at(QUEUE, 65, 120, 125)]
    assert ages(*moments) == [False, False, False, False, False, False, True]


def test_a_poll_that_cannot_tell_hides_the_finding_and_keeps_its_age() -> None:
    """A page that times out once ends no incident, and shows no stale figure."""
    moments = [*at(QUEUE, 0, 60), *at(AWAY, 65), *at(QUEUE, 70)]
    assert ages(*moments) == [False, True, False, True]
    (finding,) = found(inspected(*moments), R.WAITING_POOL_FULL)
    assert finding.since == 1_000_000.0
    assert unjudged(inspected(*moments[:3]), R.WAITING_POOL_FULL)


def test_a_long_gap_starts_the_age_anew() -> None:
    """Nobody knows what happened in between."""
    moments = [*at(QUEUE, 0, 60), *at(AWAY, 65, 100, 130), *at(QUEUE, 135, 195)]
    assert ages(*moments) == [False, True, False, False, False, False, True]


def test_subjects_are_judged_apart() -> None:
    """One server's calm ends nothing for another."""
    both = Moment(servers=[vllm(Rank(usage=0.97, waiting=6)), vllm(Rank(usage=0.97, waiting=6), name="b")])
    one = Moment(servers=[vllm(), vllm(Rank(usage=0.97, waiting=6), name="b")])
    findings = found(inspected(*at(both, 0, 30), *at(one, 60)), R.WAITING_POOL_FULL)
    assert [finding.server for finding in findings] == ["b"]


def test_a_faster_clock_shortens_all_times() -> None:
    """The demo's day has minutes of some seconds."""
    moments = held_for(5, QUEUE)
    assert found(inspected(*moments), R.WAITING_POOL_FULL) == []
    assert found(inspected(*moments, pace=12.0), R.WAITING_POOL_FULL)


def test_verdicts_of_others_become_findings() -> None:
    """What triage says of days is shown like what a rule says of a poll."""
    half = CapacityChange(
        server="chat",
        baseline="1d",
        at=0.0,
        ratio=0.5,
        cause="prompts_longer",
        confidence="high",
        headline="half",
        deployed=False,
    )
    told = replace(CALM.snapshot(), capacity_changes=(half,))
    findings = found(Inspection().advance(told), R.CAPACITY_HALVED)
    assert [(finding.server, finding.severity) for finding in findings] == [("chat", Severity.WARNING)]
    untold = replace(half, ratio=None, headline="too little traffic")
    doubt = Inspection().advance(replace(told, capacity_changes=(untold,)))
    assert [subject.why for subject in unjudged(doubt, R.CAPACITY_HALVED)] == ["too little traffic"]


def test_a_rule_that_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is told as a rule that could not be judged; the others go on."""

    def broken(_: Evidence) -> Iterator[Verdict]:
        raise ZeroDivisionError

    bad = Rule(id=R.DATA_STALE, severity=Severity.INFO, judge=broken)
    monkeypatch.setattr(inspection, "RULES", (bad, *RULES))
    result = inspected(*at(QUEUE, 0, 60))
    assert found(result, R.WAITING_POOL_FULL)
    assert "ZeroDivisionError" in unjudged(result, R.DATA_STALE)[0].why


def test_the_list_is_closed_and_each_rule_is_tested_both_ways() -> None:
    """Every id has one rule; every rule that is judged here has cases that fire and cases that do not."""
    assert sorted(rule.id for rule in RULES) == sorted(RuleId)
    fires = {case[0] for module in (test_pools, test_devices) for case in module.FIRES.values()}
    silent_cases = {case[0] for module in (test_pools, test_devices) for case in module.SILENT.values()}
    own_tests = {
        R.PREEMPTING, R.RECOMPUTE_SUSPECTED, R.SOURCE_DOWN, R.MODEL_DISAGREES, R.ENGINE_METRIC_MISSING,
        R.POOL_CHANGED_SAME_FLAGS,
    }  # fmt: skip
    elsewhere = {R.DATA_STALE, R.CAPACITY_HALVED}
    assert fires | own_tests | elsewhere == set(RuleId)
    assert silent_cases | own_tests | elsewhere == set(RuleId)
    assert test_trust.SMALLER
    assert test_pools.PREEMPTIONS
    assert test_pools.SUSPICIONS


def test_every_rule_is_explained() -> None:
    """`docs/findings.md` has a row for each id with its severity and its time, and no other."""
    text = (Path(__file__).parents[2] / "docs" / "findings.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+ \| [^|]+?) \|", text, flags=re.MULTILINE))
    times = {0.0: "at once", 60.0: "1 min", 600.0: "10 min"}
    expected = {str(rule.id): f"{rule.severity} | {times[rule.hold_seconds]}" for rule in RULES}
    assert rows == expected


def test_a_counters_gain_is_kept_in_bounds() -> None:
    """A poll of 0.2 s over ten minutes keeps a few dozen samples, and the gain of the whole window."""
    gain = Gain(window_seconds=600.0)
    for step in range(6000):
        gain = gain.add(step * 0.2, float(step))
    assert len(gain.samples) < 130
    assert gain.gained is not None
    assert abs(gain.gained - 3000) <= 60
