"""What the daemon finds in its own history, and what becomes of it: series and a finding."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.capacity_change import CapacityChange
from kvwatch.capacity_watch import CapacityWatch
from kvwatch.findings.capacity import capacity_halved
from kvwatch.findings.rule import Condition, Evidence, Unknown
from kvwatch.readings import SourceError
from kvwatch.triage.live import changes_in
from tests.scenarios.days import DAYS
from tests.scenarios.history_path import write_history
from tests.scenarios.rehearsal import rehearse
from tests.scenarios.world import MINUTE, NOW
from tests.snapshots import known

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.scenarios.pipeline import Published

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the history of a day on which prompts doubled, and which ends now."""
    path = tmp_path_factory.mktemp("history") / "history.db"
    (day,) = [day for day in DAYS if day.name == "prompts-double"]
    shift = (time.time() - NOW) // MINUTE * MINUTE
    write_history(path, (_later(poll, shift) for poll in rehearse(day, 0).published))
    return path


def _later(poll: Published, seconds: float) -> Published:
    return replace(poll, snapshot=replace(poll.snapshot, taken_at=poll.snapshot.taken_at + seconds))


def test_the_daemon_finds_what_the_command_finds(history: Path) -> None:
    """Against yesterday the prompts took half of the room; a week ago nothing was watched."""
    changes = {change.baseline: change for change in changes_in(history, now=time.time())}
    assert set(changes) == {"1d", "7d", "start"}
    yesterday = changes["1d"]
    assert yesterday.cause == "prompts_longer"
    assert yesterday.ratio == pytest.approx(0.56, abs=0.06)
    assert yesterday.deployed is False
    assert set(yesterday.factors) == {"pool", "cost_per_token", "prompt_length", "generation_length"}
    assert (changes["7d"].cause, changes["7d"].ratio, changes["7d"].factors) == ("not_enough_data", None, {})


def test_no_file_is_said(tmp_path: Path) -> None:
    """What cannot be read raises, and gives no number."""
    with pytest.raises(SourceError):
        changes_in(tmp_path / "none.db", now=time.time())


def test_a_history_that_ends_long_ago_says_nothing_of_today(history: Path) -> None:
    """A disk that filled up an hour ago leaves no change standing."""
    assert changes_in(history, now=time.time() + 600)
    assert changes_in(history, now=time.time() + 3600) == ()


async def test_a_look_that_fails_leaves_nothing_standing(
    history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers go when the file does."""
    path = shutil.copyfile(history, tmp_path / "history.db")
    # A package of our name in the working directory is not run.
    (tmp_path / "kvwatch").mkdir()
    (tmp_path / "kvwatch" / "__init__.py").write_text("raise SystemExit('not mine')")
    monkeypatch.chdir(tmp_path)
    watch = CapacityWatch(path, interval_seconds=0.05)
    looking = asyncio.create_task(watch.run())
    try:
        await _until(lambda: bool(watch.changes))
        assert watch.changes == changes_in(history, now=time.time())
        path.unlink()
        await _until(lambda: not watch.changes)
    finally:
        looking.cancel()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells when a look is over
            await asyncio.sleep(0.02)


HALVED = CapacityChange(
    server="chat",
    baseline="7d",
    at=1.0,
    ratio=0.49,
    cause="prompts_longer",
    confidence="high",
    headline="chat: half",
    deployed=False,
)


@pytest.mark.parametrize(
    "changes, told",
    [
        pytest.param((HALVED,), "49%", id="halved in a week"),
        pytest.param((replace(HALVED, deployed=True),), None, id="after a deploy"),
        pytest.param((replace(HALVED, deployed=None),), None, id="whether one was is not known"),
        pytest.param((replace(HALVED, ratio=0.51),), None, id="not quite"),
        pytest.param((replace(HALVED, cause="no_change"),), None, id="only the edge of a block"),
        pytest.param((replace(HALVED, baseline="start"),), None, id="since its start only"),
        pytest.param((replace(HALVED, ratio=None),), "unknown", id="not known"),
        pytest.param((HALVED, replace(HALVED, baseline="1d", ratio=0.3)), "30%", id="the worse one"),
        pytest.param((), None, id="no history"),
    ],
)
def test_halved_with_no_deploy_is_a_finding(changes: tuple[CapacityChange, ...], told: str | None) -> None:
    """Half or less, and nobody started, upgraded or configured it."""
    snapshot = replace(known(), capacity_changes=changes)
    verdicts = list(capacity_halved(Evidence(snapshot=snapshot)))
    if told is None:
        assert verdicts == []
        return
    (verdict,) = verdicts
    if told == "unknown":
        assert isinstance(verdict, Unknown)
    else:
        assert isinstance(verdict, Condition)
        assert told in verdict.summary
        assert verdict.next_step.startswith("kvwatch triage --server chat --baseline ")
