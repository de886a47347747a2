"""Findings and changes of capacity on the page, in a real browser."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.capacity_change import CapacityChange
from kvwatch.finding import Finding, RuleId, Severity, Unjudged
from kvwatch.wiring import Devices, open_poller
from tests.browser import open_tab
from tests.daemon import config
from tests.page import page_of
from tests.replay import replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any


HOSTILE = "<img src=x onerror=alert(1)>"
pytestmark = [pytest.mark.anyio, pytest.mark.browser]

FELL = CapacityChange(
    server="chat",
    baseline="1d",
    at=time.time(),
    ratio=0.5,
    factors={"pool": 0.0, "cost_per_token": 0.0, "prompt_length": -0.6, "generation_length": -0.0931},
    cause="prompts_longer",
    confidence="high",
    headline="chat: room for typical requests went to 50 % of what it was (30 then, 15 now).",
    evidence=("A prompt had 1,600 tokens, and has 3,200 now.", HOSTILE),
    levers=("Shorten what the client sends.",),
    deployed=False,
)
QUIET = replace(FELL, baseline="7d", cause="no_change", ratio=1.0, factors={})
UNTOLD = replace(FELL, baseline="start", cause="not_enough_data", ratio=None, factors={})
ORPHAN = Finding(
    rule=RuleId.ORPHAN_MEMORY,
    severity=Severity.WARNING,
    device="GPU-a",
    summary=f"26,358 MiB belong to nobody {HOSTILE}",
    detail="The next start finds less free memory.",
    next_step="End process 4711.",
    since=time.time() - 600,
)
QUEUE = Finding(
    rule=RuleId.WAITING_POOL_FULL,
    severity=Severity.CRITICAL,
    server="chat",
    summary="3 requests wait at chat while its pool is full",
    detail="Users wait for their first token.",
    next_step="Send load elsewhere.",
    since=time.time() - 60,
)


@contextlib.asynccontextmanager
async def page(**fields: Any) -> AsyncIterator[str]:
    """Serve the page on a snapshot of one full server with these fields."""
    async with (
        replaying(vllm_pages("draining")) as replay,
        open_poller(
            config(f"servers: [{{name: chat, url: '{replay.url}'}}]", interval="1m"), Devices()
        ) as poller,
    ):
        poller.snapshot = replace(await poller.poll(), **fields)
        async with page_of(poller) as url:
            yield url


async def test_findings_stand_first_the_worst_on_top(browser: str) -> None:
    """Each says what is the case, what users feel and what to do; text of others stays text."""
    async with page(findings=(ORPHAN, QUEUE), unjudged=()) as url, open_tab(browser) as tab:
        await tab.visit(url)
        first = await tab.text(".finding:nth-child(1)")
        second = await tab.text(".finding:nth-child(2)")
        assert first.startswith("critical 3 requests wait at chat while its pool is full since ")
        assert "Users wait for their first token. Next: Send load elsewhere." in first
        assert HOSTILE in second
        assert await tab.value("document.querySelector('main section h2').id") == "findings"
        assert tab.complaints == []


async def test_what_was_not_judged_is_no_all_clear(browser: str) -> None:
    """The page does not say that all is well when a rule could not be judged."""
    unjudged = (Unjudged(rule=RuleId.MODEL_DISAGREES, server="chat", why="the model file is not known"),)
    async with page(findings=(), unjudged=unjudged) as url, open_tab(browser) as tab:
        await tab.visit(url)
        text = await tab.text("#finding-list")
        assert text.startswith("No finding among what can be judged.")
        await tab.value("document.querySelector('#finding-list details').open = true")
        assert "model_disagrees chat: the model file is not known" in await tab.text("#finding-list")


async def test_a_change_shows_its_factors_to_scale(browser: str) -> None:
    """What took capacity stands to the left, by its logarithm; what is calm or untold is one line."""
    async with page(capacity_changes=(FELL, QUIET, UNTOLD)) as url, open_tab(browser) as tab:
        await tab.visit(url)
        text = await tab.text("#change-list .change")
        assert text.startswith("chat since yesterday \u00d7 0.5 chat: room for typical requests went to 50 %")
        assert "Cause prompts_longer, confidence high" in text
        assert "prompt length \u221245.1" in text
        assert "pool no change" in text
        widths = await tab.value(
            "[...document.querySelectorAll('.factor .less')].map(part => part.getBoundingClientRect().width)"
        )
        assert widths[0] == widths[1] == 0
        assert widths[2] / widths[3] == pytest.approx(0.6 / 0.0931, rel=0.05)
        everything = await tab.text("#change-list")
        assert "No change that matters: chat since last week." in everything
        assert "Cannot tell yet: chat since its start." in everything
        assert tab.complaints == []


async def test_without_a_history_changes_are_unknown(browser: str) -> None:
    """Nothing to compare with is not "nothing changed"."""
    async with page(capacity_changes=(), history=None) as url, open_tab(browser) as tab:
        await tab.visit(url)
        assert await tab.text("#change-list") == "Changes of capacity are unknown, no history is kept."


async def test_narrow_screens_need_no_sideways_scrolling(browser: str) -> None:
    """At 360 px findings and factors wrap."""
    fields = {"findings": (ORPHAN, QUEUE), "capacity_changes": (FELL, QUIET, UNTOLD)}
    async with page(**fields) as url, open_tab(browser, width=360) as tab:
        await tab.visit(url)
        await tab.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert await tab.value("document.documentElement.scrollWidth") <= 360
