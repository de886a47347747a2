"""The demo's day as docs/demo.md tells it, as data, and as the scenes have it: one and the same."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from kvwatch.demo.day import CARD, CHAT
from tests.alerts.day import DAY
from tests.alerts.scenes import DEMOS

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
SUBJECTS = {"": CHAT, " (chat)": CHAT, " (the card)": CARD.uuid}


def told() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the rows of the document's table: (from, [(alert, server or device)])."""
    rows = [line.strip("|").split("|") for line in DOCUMENT.splitlines() if re.match(r"\| \d\d:\d\d ", line)]
    return [
        (
            cells[0].strip(),
            [
                (alert, SUBJECTS[subject])
                for alert, subject in re.findall(r"\d\d:\d\d `(\w+)`( \(.*?\))?", cells[-1])
            ],
        )
        for cells in rows
    ]


def test_the_document_lists_each_moment_with_its_alerts() -> None:
    """Row for row, the table has the alerts that the whole day is checked against."""
    assert [(start, sorted(alerts)) for start, alerts in told()] == [
        (moment.start, sorted(moment.fires)) for moment in DAY
    ]


def test_the_scenes_have_the_alerts_of_the_day() -> None:
    """What the three pieces of the day raise in make test is what the whole day raises."""
    of_the_day = {alert for moment in DAY for alert, _ in moment.fires}
    assert set().union(*(scene.fires for scene in DEMOS)) == of_the_day


def test_the_document_names_every_other_alert() -> None:
    """Each alert is either of the day or in the list of those that the demo does not show."""
    text = (ROOT / "deploy" / "prometheus" / "kvwatch.rules.yml").read_text(encoding="utf-8")
    alerts = {rule["alert"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}
    listed = set(re.findall(r"`(Kvwatch\w+)`", DOCUMENT.rpartition("Not shown by the demo:")[2]))
    assert listed == alerts - {alert for moment in DAY for alert, _ in moment.fires}
