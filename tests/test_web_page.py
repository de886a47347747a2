"""The page in a real browser, on what the real daemon serves: figures, unknowns, hostile text, old data."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import DeviceReading, GpuProcess, Reason, Source
from kvwatch.snapshot import (
    Component,
    DeviceState,
    LedgerPart,
    Match,
    ProcessState,
    Snapshot,
    SourceState,
)
from kvwatch.wiring import Devices, open_poller
from tests.browser import open_tab
from tests.daemon import Running, config, running
from tests.page import page_of
from tests.replay import Answer, edited, llamacpp_pages, replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager


HOSTILE = "<img src=x onerror=alert(1)>"
MIB = 1 << 20

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@contextlib.asynccontextmanager
async def watching(
    servers: Mapping[str, Mapping[str, Answer]], options: Mapping[str, str] | None = None
) -> AsyncIterator[Running]:
    """Run the daemon on a replay of each server's pages; it polls slowly enough never to be late."""
    async with contextlib.AsyncExitStack() as stack:
        lines = ["servers:"]
        for name, pages in servers.items():
            replay = await stack.enter_async_context(replaying(pages))
            more = f", {options[name]}" if options and name in options else ""
            lines.append(f"  - {{name: {name}, url: '{replay.url}'{more}}}")
        daemon = await stack.enter_async_context(running(config("\n".join(lines), interval="2s")))
        await daemon.until(lambda series: "kvwatch_source_up" in series)
        yield daemon


# Figures

FITS = (
    "guaranteed",
    "fits now",
    "fits empty",
    "resident limit",
    "headroom",
    "running",
    "waiting",
    "preemptions",
)

SPLIT = "kv_unified: false"
UNIFIED = "kv_unified: true, pool_tokens: 4096"

FIGURES: dict[str, tuple[dict[str, Answer], str, list[str]]] = {
    "idle": (vllm_pages("idle"), "", ["3", "3", "3", "3", "3", "0", "0", "0"]),
    "pool-full": (vllm_pages("pool-full"), "", ["0", "0", "3", "3", "\u221221"]),
    "draining": (vllm_pages("draining"), "", ["0", "1", "3", "3", "\u22121", "2", "2", "42"]),
    "hybrid-idle": (vllm_pages("hybrid-idle"), "", ["2", "2", "2", "2", "2", "0", "0", "0"]),
    "hybrid-ten": (vllm_pages("hybrid-ten-running"), "", ["0", "0", "2", "2", "\u22128", "10", "0", "0"]),
    "split-idle": (llamacpp_pages("split", "idle"), SPLIT, ["4", "4", "4", "4", "4", "0", "0", "n/a"]),
    "split-load": (llamacpp_pages("split", "load2"), SPLIT, ["0", "0", "4", "4", "\u22123"]),
    "unified-idle": (
        llamacpp_pages("unified-q8_0", "idle"), UNIFIED, ["1", "1", "1", "1", "1", "0", "0", "n/a"]),
    "unified-load": (llamacpp_pages("unified-q8_0", "load2"), UNIFIED, ["0", "0", "1", "1", "\u22125"]),
}  # fmt: skip


def watching_figures() -> AbstractAsyncContextManager[Running]:
    """Run the daemon on all of them."""
    return watching(
        {name: pages for name, (pages, _, _) in FIGURES.items()},
        {name: options for name, (_, options, _) in FIGURES.items() if options},
    )


async def test_figures_of_every_capture(browser: str) -> None:
    """Each server's card shows its capture's figures, and the pool as the engine states it."""
    async with watching_figures() as kvwatch, open_tab(browser) as tab:
        await tab.visit(kvwatch.url)
        for name, (_, _, expected) in FIGURES.items():
            (row,) = await tab.rows(f"{_card(name)} .fits")
            assert row[: len(expected)] == expected, (name, FITS)
        assert "51.5 % used" in await tab.text(f"{_card('draining')} .pool")
        assert "51 of 99 blocks, 48 free" in await tab.text(f"{_card('draining')} .pool")
        assert "Lower bounds" in await tab.text(f"{_card('hybrid-idle')} .notes")
        assert "Lower bounds" not in await tab.text(f"{_card('idle')} .notes")
        assert "full length 1,024 tokens" in await tab.text(f"{_card('idle')} .meta")
        assert tab.complaints == []


async def test_state_says_who_cannot_take_more_and_why(browser: str) -> None:
    """The line of state names the full servers with the cause, the silent ones, and nobody else."""
    servers = {
        "calm": vllm_pages("idle"),
        "queued": vllm_pages("draining"),
        "packed": vllm_pages("hybrid-ten-running"),
        "gone": {},
    }
    async with watching(servers) as kvwatch, open_tab(browser) as tab:
        await tab.visit(kvwatch.url)
        state = await tab.text("#state")
        assert state.startswith("3 of 4 servers answer. ")
        assert "queued cannot take one more full-length request: requests already wait" in state
        assert "packed cannot take one more full-length request: the pool has no room" in state
        assert "gone does not answer" in state
        assert "calm" not in state
        assert await tab.value("document.documentElement.dataset.state") == "bad"
        assert await tab.text(f"{_card('gone')} .badge") == "no answer"
        assert "not_found" in await tab.text("#unknown-list .sources")


async def test_unknown_is_a_word_with_a_reason(browser: str) -> None:
    """A llama-server whose pool nobody states shows neither zero nor nothing, and says what to set."""
    pages = llamacpp_pages("unified-q8_0", "idle")
    async with watching({"chat": pages}) as kvwatch, open_tab(browser) as tab:
        await tab.visit(kvwatch.url)
        (row,) = await tab.rows(f"{_card('chat')} .fits")
        assert row[:5] == ["unknown"] * 5
        assert row[5:7] == ["0", "0"]
        titles = await tab.value("[...document.querySelectorAll('.fits .unknown')].map(word => word.title)")
        assert all("pool_tokens" in title for title in titles)
        assert "What it can take is unknown: unknown_pool" in await tab.text(f"{_card('chat')} .verdict")
        assert "What chat can take is unknown." in await tab.text("#state")
        assert await tab.text("#device-list") == (
            "Cards: unknown, reading NVML is switched off in the configuration."
        )
        (source,) = await tab.rows("#unknown-list > .sources")
        assert source[:3] == ["model", "chat", "unknown_pool"]


async def test_sleeping_server_fits_nothing_rather_than_zero(browser: str) -> None:
    """A sleeping engine has given its pool back: its fits and its usage are unknown, and it says so."""
    pages = vllm_pages("idle")
    pages["/metrics"] = edited(pages["/metrics"], 'sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0')
    async with watching({"chat": pages}) as kvwatch, open_tab(browser) as tab:
        await tab.visit(kvwatch.url)
        (row,) = await tab.rows(f"{_card('chat')} .fits")
        assert row[:5] == ["unknown"] * 5
        assert "use unknown, sleeping" in await tab.text(f"{_card('chat')} .pool")
        assert await tab.text("#state") == "The server answers. chat sleeps."


async def test_ranks_stand_apart_and_are_summed(browser: str) -> None:
    """Two data-parallel ranks have a pool and a row each, and a row for the server they make."""
    pages = vllm_pages("draining")
    second = edited(vllm_pages("idle")["/metrics"], 'engine="0"', 'engine="1"').body.splitlines(keepends=True)
    both = pages["/metrics"].body + b"".join(line for line in second if b'engine="1"' in line)
    # Every rank's series repeats the sum of the blocks.
    pages["/metrics"] = edited(Answer(both), 'num_gpu_blocks="100"', 'num_gpu_blocks="200"')
    async with watching({"chat": pages}) as kvwatch, open_tab(browser) as tab:
        await tab.visit(kvwatch.url)
        assert await tab.rows(f"{_card('chat')} .fits") == [
            ["rank 0", "0", "1", "3", "3", "\u22121", "2", "2", "42"],
            ["rank 1", "3", "3", "3", "3", "3", "0", "0", "0"],
            ["server", "3", "4", "6", "6", "2", "2", "2", "42"],
        ]
        assert await tab.value(f"document.querySelectorAll('{_card('chat')} .pool').length") == 2
        assert "Rank 0: Bound by the queue" in await tab.text(f"{_card('chat')} .verdict")
        assert await tab.text(f"{_card('chat')} .badge") == "takes 3 more"


async def test_text_of_others_stays_text(browser: str) -> None:
    """Markup in a model's name and in a reason of the engine's page is shown, not obeyed."""
    pages = vllm_pages("draining")
    page = edited(pages["/metrics"], 'reason="deferred"} 0.0', 'reason="<b>__proto__</b>"} 3.0')
    pages["/metrics"] = edited(page, "./tiny-llama", HOSTILE)
    pages["/v1/models"] = edited(pages["/v1/models"], "./tiny-llama", HOSTILE)
    async with watching({"chat": pages}) as kvwatch, open_tab(browser) as tab:
        await tab.visit(kvwatch.url)
        assert HOSTILE in await tab.text(f"{_card('chat')} .meta")
        assert "3 <b>__proto__</b>" in await tab.text(f"{_card('chat')} .verdict")
        assert await tab.value("document.querySelectorAll('main img').length") == 0
        assert tab.complaints == []


# Time


async def test_refresh_keeps_what_the_reader_opened(browser: str) -> None:
    """New figures arrive in the same elements: an open <details> stays open and keeps the focus."""
    async with (
        replaying(vllm_pages("idle")) as chat,
        running(config(f"servers: [{{name: chat, url: '{chat.url}'}}]", interval="2s")) as kvwatch,
        open_tab(browser) as tab,
    ):
        await kvwatch.until(lambda series: "kvwatch_source_up" in series)
        await tab.visit(kvwatch.url)
        await tab.value(
            f"window.kept = document.querySelector('{_card('chat')} details'); kept.open = true;"
            "kept.querySelector('summary').focus()"
        )
        chat.pages.update(vllm_pages("pool-full"))
        await tab.until(f"document.querySelector('{_card('chat')} .badge').innerText.startsWith('cannot')")
        assert await tab.value(f"kept === document.querySelector('{_card('chat')} details') && kept.open")
        assert await tab.value("document.activeElement === kept.querySelector('summary')")
        assert tab.complaints == []


async def test_old_data_is_called_stale_when_the_daemon_is_gone(browser: str) -> None:
    """A page whose daemon has gone says so first, and since when the figures hold."""
    async with watching({"chat": vllm_pages("idle")}) as kvwatch, open_tab(browser) as tab:
        await tab.visit(kvwatch.url)
        assert "The server answers. It can take one more" in await tab.text("#state")
        kvwatch.daemon.stop()
        await tab.until("document.documentElement.dataset.state === 'stale'")
        state = await tab.text("#state")
        assert state.startswith("Stale: kvwatch does not answer (since ")
        assert "Everything below is from" in state
        assert "can take" not in state
        assert await tab.value("document.title") == "stale \u00b7 kvwatch"


async def test_old_data_is_called_stale_when_polling_has_stopped(browser: str) -> None:
    """A daemon that answers with the same old snapshot is not believed either."""
    async with cards_page(age_seconds=500) as url, open_tab(browser) as tab:
        await tab.visit(url)
        assert (await tab.text("#state")).startswith("Stale: kvwatch answers but has stopped polling.")
        assert await tab.value("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
        assert await tab.text("#age") == "Data 8 min old, polled every 60 s"


async def test_old_data_is_called_stale_when_no_answer_comes(browser: str) -> None:
    """A request that hangs fails only later, but its data is not believed for so long."""
    async with cards_page() as url, open_tab(browser) as tab:
        await tab.visit(url)
        assert await tab.text("#state") == "No server is configured."
        assert (await tab.text("#age")).endswith("s old, polled every 60 s")
        await tab.value(
            "window.fetch = () => new Promise(() => {});const now = Date.now; Date.now = () => now() + 60_000"
        )
        await tab.until("document.documentElement.dataset.state === 'stale'")
        assert (await tab.text("#state")).startswith("Stale: no answer since ")


# Cards


@contextlib.asynccontextmanager
async def cards_page(*, age_seconds: float = 0) -> AsyncIterator[str]:
    """Serve the page on a snapshot with two cards, by the daemon's own HTTP side."""
    async with open_poller(config("", interval="1m"), Devices()) as poller:
        snapshot = await poller.poll()
        poller.snapshot = replace(
            _with_cards(snapshot, taken_at=time.time() - age_seconds),
            monotonic_at=snapshot.monotonic_at - age_seconds,
        )
        async with page_of(poller) as url:
            yield url


def _with_cards(snapshot: Snapshot, *, taken_at: float) -> Snapshot:
    """Return two cards: one whose owners are known but for 512 MiB, one that says nothing."""
    ledger = [
        (Component.KV_CACHE, "chat", 12_288),
        (Component.WEIGHTS_AND_WORKING, "chat", 16_384),
        (Component.UNDIVIDED, HOSTILE, 4_096),
        (Component.RESERVED, "", 512),
        (Component.FREE, "", 12_276),
    ]
    known = DeviceReading(
        uuid="GPU-a",
        index=0,
        name="NVIDIA L40S",
        driver="580.126.09",
        total_bytes=46_068 * MIB,
        used_bytes=33_280 * MIB,
        free_bytes=12_276 * MIB,
        reserved_bytes=512 * MIB,
        memory_version=2,
        processes=(GpuProcess(pid=10, used_bytes=28_672 * MIB), GpuProcess(pid=11, used_bytes=None)),
    )
    silent = DeviceReading(
        uuid="GPU-b", index=1, name=None, driver=None, memory_reason=Reason.DEVICE_LOST,
        processes_reason=Reason.DEVICE_LOST,
    )  # fmt: skip
    return replace(
        snapshot,
        taken_at=taken_at,
        devices=(
            DeviceState(
                reading=known,
                ledger=tuple(
                    LedgerPart(component=part, server=server, bytes=mebibytes * MIB)
                    for part, server, mebibytes in ledger
                ),
            ),
            DeviceState(reading=silent),
        ),
        processes=(
            ProcessState(
                device="GPU-a", pid=10, used_bytes=28_672 * MIB, name="VLLM::EngineCor", server="chat",
                match=Match.TREE,
            ),
            ProcessState(device="GPU-a", pid=11, used_bytes=None, name=None, server=None, match=Match.NONE),
        ),
        sources=(
            SourceState(
                source=Source.NVML, target="GPU-b", reason=Reason.DEVICE_LOST, detail="fell off the bus",
                duration_seconds=0.1, last_success_at=taken_at - 300,
            ),
            SourceState(
                source=Source.MODEL, target="chat", reason=Reason.NOT_ENABLED, detail="no model_config",
                duration_seconds=None, last_success_at=None,
            ),
        ),
    )  # fmt: skip


async def test_cards_are_ledgers(browser: str) -> None:
    """A card's parts stand in its bar to scale and in its legend in MiB; what is missing is unknown."""
    async with cards_page() as url, open_tab(browser) as tab:
        await tab.visit(url)
        assert await tab.rows("#device-list .card:first-child .parts") == [
            ["1 chat KV cache", "12,288 MiB", "26.6 %"],
            ["2 chat weights and working memory", "16,384 MiB", "35.5 %"],
            [f"3 {HOSTILE} all of the server", "4,096 MiB", "8.8 %"],
            ["4 reserved", "512 MiB", "1.1 %"],
            ["5 unknown", "512 MiB", "1.1 %"],
            ["6 free", "12,276 MiB", "26.6 %"],
        ]
        widths = await tab.until(
            "(() => { const parts = [...document.querySelectorAll('.stack .part')]"
            ".map(part => part.getBoundingClientRect().width);"
            "return Math.abs(parts[0] / parts[2] - 3) < 0.1 && parts })()"
        )
        assert len(widths) == 6
        assert await tab.rows(".processes") == [
            ["10", "VLLM::EngineCor", "chat", "process tree", "28,672 MiB"],
            ["11", "unknown", "none", "no server", "unknown"],
        ]
        lost = await tab.text("#device-list .card:nth-child(2)")
        assert "memory unknown" in lost
        assert "Where its memory went is unknown: device_lost: fell off the bus." in lost
        assert "MiB" not in lost
        (source,) = await tab.rows("#unknown-list > .sources")
        assert source[:4] == ["nvml", "GPU-b", "device_lost", "fell off the bus"]
        assert source[4].endswith("5 min ago")
        assert await tab.value("document.querySelector('#unknown-list details').open") is False
        assert tab.complaints == []


# Everyone's page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_narrow_screen_needs_no_sideways_scrolling(browser: str, *, dark: bool) -> None:
    """At 360 px nothing is wider than the screen, and the scheme is the reader's."""
    async with watching_figures() as kvwatch, open_tab(browser, width=360, dark=dark) as tab:
        await tab.visit(kvwatch.url)
        await tab.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert await tab.value("document.documentElement.scrollWidth") <= 360
        red = await tab.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        assert (int(red) < 64) is dark


async def test_structure_for_a_screen_reader(browser: str) -> None:
    """Tables have captions and roles, one region speaks, headings go down one level at a time."""
    servers = {"chat": vllm_pages("draining"), "gone": {}}
    async with watching(servers) as kvwatch, open_tab(browser) as tab:
        await tab.visit(kvwatch.url)
        captions = await tab.value(
            "[...document.querySelectorAll('table')].map(table => table.caption?.textContent ?? '')"
        )
        assert len(captions) >= 2
        assert all(captions)
        assert await tab.value("document.querySelectorAll('[aria-live], [role=status]').length") == 1
        levels = await tab.value(
            "[...document.querySelectorAll('h1, h2, h3, h4')].map(heading => Number(heading.tagName[1]))"
        )
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        links = await tab.value("[...document.querySelectorAll('footer a')].map(link => link.pathname)")
        assert links == ["/metrics", "/api/v1/snapshot", "/debug/target", "/debug/target"]


async def test_without_scripts_the_page_says_where_else_to_look(browser: str) -> None:
    """A browser without scripts shows the addresses of the same figures."""
    async with cards_page() as url, open_tab(browser) as tab:
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.call("Page.navigate", url=url)
        assert "/api/v1/snapshot as JSON" in await tab.until("document.querySelector('noscript')?.innerText")


def _card(server: str) -> str:
    return f'.card[aria-label="server {server}"]'
