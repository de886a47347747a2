"""Every alert, from what real daemons export through a real Prometheus and Alertmanager to who is told.

All scenes run at once, each with an instance of its own, under the shipped rules on a faster clock. Each is
looked at for as long as the slowest alert takes to fire: what it does not raise by then, it does not raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from tests.alerts.baseline import SHORT_PROMPTS, exposition, write_last_week
from tests.alerts.scenes import DIES, MORNING, SCENES, Scene, Stage
from tests.alerts.stack import DEPLOY, Notice, Stack, first_in_line, free_port, stack
from tests.nvml_standin.build import build
from tests.test_dashboards_live import filled, queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.prometheus, pytest.mark.alertmanager]

_PATIENCE_SECONDS = 80.0
"""From the first scrape on; a quiet machine takes some forty."""
_TRIES = 3
"""On a machine so busy that a daemon misses scrapes, alerts rightly say that: then it is played again."""

RATIO = "server:kvwatch_typical_capacity_requests:ratio_1w"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "kvwatch.rules.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
}
_SETTLED_SECONDS, _EVALUATED_SECONDS = 2.0, 0.5
"""From a rule's evaluation until Alertmanager acts on it; and about how far two evaluations are apart."""
each_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)


@dataclass(frozen=True, kw_only=True)
class Show:
    """What was seen while all scenes ran."""

    fired: dict[str, dict[str, list[float]]]
    notices: tuple[Notice, ...]
    muted: dict[tuple[str, str], set[str]]
    ratios: list[dict[str, Any]]
    """Capacity against last week, as the rules recorded it."""
    without_data: list[str]
    """Queries of Triage that compare, and found nothing."""
    undisturbed: bool
    """Every scene came to its end, and every daemon that ran was scraped each time."""

    def told(self, instance: str, status: str = "firing") -> set[str]:
        """Return the alerts of a daemon that the receiver was told of."""
        return {one.alert for one in self.notices if (one.instance, one.status) == (instance, status)}

    def told_beside(self, instance: str, alert: str, other: str) -> list[float]:
        """Return when the receiver was told of an alert while another one had been firing and went on to."""
        moments = self.fired[instance][other]
        return [
            one.at
            for one in self.notices
            if (one.instance, one.alert, one.status) == (instance, alert, "firing")
            if any(abs(one.at - _SETTLED_SECONDS - moment) < _EVALUATED_SECONDS for moment in moments)
            if any(abs(one.at + _EVALUATED_SECONDS - moment) < _EVALUATED_SECONDS for moment in moments)
        ]


def compared() -> Iterator[tuple[str, str, bool]]:
    """Yield the queries of the dashboards that compare with another moment, about the demo and last week."""
    for name, expr, instant in queries():
        if "$back" in expr or "$baseline" in expr:
            week = expr.replace("$back", "7d").replace("$baseline", "7d").replace("$instance", MORNING.name)
            yield name, filled(week, ".*"), instant


@pytest.fixture(scope="module")
def show(tmp_path_factory: pytest.TempPathFactory) -> Show:
    """Run all scenes once; again only where the machine and not a scene disturbed what was seen."""
    build()
    with first_in_line():
        for _ in range(_TRIES - 1):
            show = asyncio.run(_play(tmp_path_factory.mktemp("alerts")))
            if show.undisturbed:
                return show
        return asyncio.run(_play(tmp_path_factory.mktemp("alerts")))


async def _play(folder: Path) -> Show:
    async with contextlib.AsyncExitStack() as running:
        stages = {
            scene.name: await running.enter_async_context(Stage(folder / scene.name)) for scene in SCENES
        }
        early = [scene for scene in SCENES if not scene.late]
        addresses = await asyncio.gather(*(scene.open(stages[scene.name]) for scene in early))
        targets = {scene.name: address for scene, address in zip(early, addresses, strict=True)}
        late = [scene for scene in SCENES if scene.late]
        for scene in late:
            stages[scene.name].port = free_port()
            targets[scene.name] = f"127.0.0.1:{stages[scene.name].port}"
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - plain HTTP
            text = await exposition(client, targets[MORNING.name])
        await asyncio.to_thread(write_last_week, folder, MORNING.name, text, SHORT_PROMPTS)
        one = await running.enter_async_context(stack(folder, targets))
        begun = time.time()
        # Those that are not there yet are rightly called absent; what counts of them begins when all are.
        await asyncio.gather(*(scene.open(stages[scene.name]) for scene in late))
        await one.scrapes(len(targets))
        since = time.time()
        in_time = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await _until(one, lambda: _tells(one, DIES.name, "KvwatchPreemptions"))
                await stages[DIES.name].close()
                await _until(one, lambda: _all(one, since))
                in_time = True
        waited_for = {scene.name for scene in late} | {""}
        counts = {name: since if name in waited_for else begun for name in (*targets, "")}
        return Show(
            fired=await one.fired(counts),
            notices=tuple(notice for notice in one.notices if notice.at >= counts[notice.instance]),
            muted=dict(one.muted),
            ratios=await one.query(f'{RATIO}{{instance="{MORNING.name}"}}'),
            without_data=[name for name, expr, _ in compared() if not await one.query(expr)],
            undisturbed=in_time and await one.lost(counts) <= {DIES.name},
        )


async def _until(one: Stack, holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():
        await one.look()
        await asyncio.sleep(1)


async def _tells(one: Stack, instance: str, alert: str) -> bool:
    return alert in one.delivered(instance)


async def _all(one: Stack, since: float) -> bool:
    """Tell whether every scene has come to what is expected of it."""
    fired = await one.fired(dict.fromkeys((*(scene.name for scene in SCENES), ""), since))
    return all(_is_over(one, scene, set(fired.get(scene.name, ()))) for scene in SCENES)


def _is_over(one: Stack, scene: Scene, fired: set[str]) -> bool:
    told = one.delivered(scene.name)
    muted = all(reason in one.muted.get((scene.name, alert), ()) for alert, reason in scene.muted.items())
    return scene.fires <= fired and muted and scene.fires - set(scene.muted) <= told


@each_scene
def test_a_scene_raises_its_alerts_and_no_others(show: Show, scene: Scene) -> None:
    """Of all alerts exactly those that are right for what is wrong fire at its daemon."""
    assert set(show.fired.get(scene.name, ())) == scene.fires


@each_scene
def test_alertmanager_tells_and_keeps_quiet(show: Show, scene: Scene) -> None:
    """The receiver hears of what is news, and not of what another alert says already while that one fires."""
    assert show.told(scene.name) - set(scene.muted) == scene.fires - set(scene.muted)
    for alert, reason in scene.muted.items():
        assert reason in show.muted.get((scene.name, alert), set())
        assert show.told_beside(scene.name, alert, reason) == []


def test_every_alert_has_a_scene_in_which_it_fires() -> None:
    """An alert that no scene raises has not been proved."""
    assert set().union(*(scene.fires for scene in SCENES)) == set(RULES)


def test_no_alert_is_about_nobody(show: Show) -> None:
    """Nothing fires beside the scenes' own daemons."""
    assert set(show.fired) <= {scene.name for scene in SCENES}


def test_whoever_is_told_reads_names_numbers_and_the_next_step(show: Show) -> None:
    """Every template is filled in: nothing of it is left, no value is missing, and the runbook is its own."""
    for notice in show.notices:
        words = notice.annotations["summary"] + notice.annotations["description"]
        assert "{{" not in words, words
        assert "<no value>" not in words, words
        assert "<error" not in words, words
        assert "Next:" in words, words
        assert notice.annotations["runbook_url"].endswith(f"/{notice.alert}.md")
        assert notice.labels["severity"] == RULES[notice.alert]["labels"]["severity"]


def test_last_week_is_compared_with(show: Show) -> None:
    """The rule that records capacity against last week, by the calendar, sees that requests have grown."""
    ratios = {one["metric"]["server"]: float(one["value"][1]) for one in show.ratios}
    assert ratios["chat"] == pytest.approx(28.2 / 69.4, rel=0.1)


def test_the_panels_that_compare_have_data(show: Show) -> None:
    """Each query of Triage that looks back a week, or asks kvwatch about one, finds something."""
    assert len(list(compared())) >= 4
    assert show.without_data == []
