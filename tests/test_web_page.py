"""The page in a real browser, on what the real daemon serves: figures, unknowns, hostile text, old data."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest
from aiohttp import web

from kvwatch.app import Daemon, Devices, open_poller
from kvwatch.config import parse_config
from kvwatch.engines import ADAPTERS
from kvwatch.readings import DeviceReading, GpuProcess, Reason, Source
from kvwatch.server import build_app
from kvwatch.snapshot import (
    Component,
    DeviceState,
    LedgerPart,
    Match,
    ProcessState,
    Snapshot,
    SourceState,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence

    from kvwatch.exposition import Exposition

CAPTURES = Path(__file__).parent / "captures"
CHROMIUM = shutil.which("chromium")
HOSTILE = "<img src=x onerror=alert(1)>"
MIB = 1 << 20

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian package chromium)"),
]


# A browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run Chromium for the whole module; yield its DevTools address."""
    profile = tmp_path_factory.mktemp("chromium")
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
    network = ("--disable-background-networking", "--remote-debugging-port=0")
    process = subprocess.Popen(
        [CHROMIUM or "", *flags, *network, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _devtools_address(profile / "DevToolsActivePort", process)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _devtools_address(file: Path, process: subprocess.Popen[bytes]) -> str:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up and process.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            port, path = file.read_text().split()
            return f"ws://127.0.0.1:{int(port)}{path}"
        time.sleep(0.1)
    raise RuntimeError("chromium did not start")


class Tab:
    """One page of the browser, driven by the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session: dict[str, str] = {}
        self._calls = 0
        self.complaints: list[str] = []
        """What the console would show in red: exceptions, violations of the content policy."""

    async def open(self, width: int = 1200, *, dark: bool = False) -> None:
        """Make a blank page of its own."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its result; events that pass by are looked through for complaints."""
        self._calls += 1
        call = {"id": self._calls, "method": method, "params": parameters, **self._session}
        await self._socket.send_json(call)
        while True:
            message = await asyncio.wait_for(self._socket.receive_json(), timeout=30)
            if message.get("id") == self._calls:
                assert "error" not in message, message["error"]
                return dict(message["result"])
            self._listen(message)

    def _listen(self, message: dict[str, Any]) -> None:
        event = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.complaints.append(event["entry"]["text"])

    async def value(self, expression: str) -> Any:
        """Evaluate in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str, seconds: float = 20) -> Any:
        """Evaluate until the result is true."""
        give_up = time.monotonic() + seconds
        while not (result := await self.value(expression)):
            text = await self.value("document.body.innerText")
            assert time.monotonic() < give_up, f"never true: {expression}\n{text}"
            await asyncio.sleep(0.1)
        return result

    async def text(self, selector: str) -> str:
        """Return an element's text as a reader copies it, in one line."""
        text = await self.value(f"document.querySelector({json.dumps(selector)}).innerText")
        return " ".join(str(text).split())

    async def rows(self, selector: str) -> list[list[str]]:
        """Return the cells of a table's body."""
        rows = await self.value(
            f"[...document.querySelectorAll({json.dumps(selector + ' tbody tr')})]"
            ".map(row => [...row.cells].map(cell => cell.textContent))"
        )
        return [[" ".join(cell.split()) for cell in row] for row in rows]

    async def visit(self, url: str) -> None:
        """Open an address and wait for the first data."""
        await self.call("Page.navigate", url=url)
        await self.until("document.querySelector('#content')?.hidden === false")


@contextlib.asynccontextmanager
async def open_tab(browser: str, *, width: int = 1200, dark: bool = False) -> AsyncIterator[Tab]:
    """Open a tab and connect to it."""
    async with aiohttp.ClientSession() as session, session.ws_connect(browser, max_msg_size=0) as socket:
        tab = Tab(socket)
        await tab.open(width, dark=dark)
        yield tab


# What it looks at


@dataclass(slots=True)
class Engine:
    """An inference server that answers with captured pages; a test may change them while it serves."""

    pages: dict[str, str]
    options: str = ""
    url: str = field(default="", init=False)

    async def answer(self, request: web.Request) -> web.Response:
        """Return a page, or 404."""
        body = self.pages.get(request.path)
        return web.Response(status=404) if body is None else web.Response(text=body)


def vllm(capture: str, models: str = "0.32.0-models") -> Engine:
    """Replay a vLLM capture."""
    folder = CAPTURES / "vllm"
    return Engine(
        {
            "/metrics": (folder / f"0.32.0-{capture}.metrics").read_text(),
            "/v1/models": (folder / f"{models}.json").read_text(),
            "/version": (folder / "0.32.0-version.json").read_text(),
        }
    )


def llamacpp(mode: str, state: str, options: str) -> Engine:
    """Replay a llama-server capture."""
    folder = CAPTURES / "llamacpp"
    return Engine(
        {
            "/props": (folder / f"b11434-{mode}-idle.props.json").read_text(),
            "/metrics": (folder / f"b11434-{mode}-{state}.metrics").read_text(),
            "/slots": (folder / f"b11434-{mode}-{state}.slots.json").read_text(),
        },
        options=options,
    )


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve an application on a free port of this machine."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass(slots=True)
class Running:
    """A daemon at work."""

    url: str
    stop: Callable[[], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def daemon(engines: Mapping[str, Engine], more: Sequence[str] = ()) -> AsyncIterator[Running]:
    """Run the daemon on replayed engines and on further lines of configuration."""
    async with contextlib.AsyncExitStack() as stack:
        lines = ["listen: 127.0.0.1:0", "interval: 500ms", "nvml: {enabled: false}", "servers:"]
        for name, engine in engines.items():
            app = web.Application()
            app.router.add_get("/{path:.*}", engine.answer)
            engine.url = await stack.enter_async_context(serving(app))
            lines.append(f"  - {{name: {name}, url: '{engine.url}'{engine.options}}}")
        config = parse_config("\n".join([*lines, *more]), "kvwatch.yaml", ADAPTERS)
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        kvwatch = Daemon(config, on_listen=lambda host, port: address.set_result(f"http://{host}:{port}/"))
        task = asyncio.create_task(kvwatch.run())

        async def stop() -> None:
            kvwatch.stop()
            await task

        try:
            url = await asyncio.wait_for(address, timeout=20)
            await _ready(url)
            yield Running(url=url, stop=stop)
        finally:
            await stop()


async def _ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(20):
        while True:
            async with session.get(f"{url}-/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


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

FIGURES: dict[str, tuple[Engine, list[str]]] = {
    "idle": (vllm("idle"), ["3", "3", "3", "3", "3", "0", "0", "0"]),
    "pool-full": (vllm("pool-full"), ["0", "0", "3", "3", "\u221221"]),
    "draining": (vllm("draining"), ["0", "1", "3", "3", "\u22121", "2", "2", "42"]),
    "hybrid-idle": (vllm("hybrid-idle", "0.32.0-hybrid-models"), ["2", "2", "2", "2", "2", "0", "0", "0"]),
    "hybrid-ten": (
        vllm("hybrid-ten-running", "0.32.0-hybrid-models"),
        ["0", "0", "2", "2", "\u22128", "10", "0", "0"],
    ),
    "split-idle": (
        llamacpp("split", "idle", ", kv_unified: false"),
        ["4", "4", "4", "4", "4", "0", "0", "n/a"],
    ),
    "split-load": (llamacpp("split", "load2", ", kv_unified: false"), ["0", "0", "4", "4", "\u22123"]),
    "unified-idle": (
        llamacpp("unified-q8_0", "idle", ", kv_unified: true, pool_tokens: 4096"),
        ["1", "1", "1", "1", "1", "0", "0", "n/a"],
    ),
    "unified-load": (
        llamacpp("unified-q8_0", "load2", ", kv_unified: true, pool_tokens: 4096"),
        ["0", "0", "1", "1", "\u22125"],
    ),
}


def test_figures_of_every_capture(browser: str) -> None:
    """Each server's card shows its capture's figures, and the pool as the engine states it."""

    async def check() -> None:
        engines = {name: engine for name, (engine, _) in FIGURES.items()}
        async with daemon(engines) as kvwatch, open_tab(browser) as tab:
            await tab.visit(kvwatch.url)
            for name, (_, expected) in FIGURES.items():
                (row,) = await tab.rows(f"{_card(name)} .fits")
                assert row[: len(expected)] == expected, (name, FITS)
            assert "51.5 % used" in await tab.text(f"{_card('draining')} .pool")
            assert "51 of 99 blocks, 48 free" in await tab.text(f"{_card('draining')} .pool")
            assert "Lower bounds" in await tab.text(f"{_card('hybrid-idle')} .notes")
            assert "Lower bounds" not in await tab.text(f"{_card('idle')} .notes")
            assert "full length 1,024 tokens" in await tab.text(f"{_card('idle')} .meta")
            assert tab.complaints == []

    asyncio.run(check())


def test_state_says_who_cannot_take_more_and_why(browser: str) -> None:
    """The line of state names the full servers with the cause, the silent ones, and nobody else."""

    async def check() -> None:
        engines = {"calm": vllm("idle"), "queued": vllm("draining"), "gone": Engine({})}
        engines["packed"] = vllm("hybrid-ten-running", "0.32.0-hybrid-models")
        async with daemon(engines) as kvwatch, open_tab(browser) as tab:
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

    asyncio.run(check())


def test_unknown_is_a_word_with_a_reason(browser: str) -> None:
    """A llama-server whose pool nobody states shows neither zero nor nothing, and says what to set."""

    async def check() -> None:
        async with (
            daemon({"chat": llamacpp("unified-q8_0", "idle", "")}) as kvwatch,
            open_tab(browser) as tab,
        ):
            await tab.visit(kvwatch.url)
            (row,) = await tab.rows(f"{_card('chat')} .fits")
            assert row[:5] == ["unknown"] * 5
            assert row[5:7] == ["0", "0"]
            titles = await tab.value(
                "[...document.querySelectorAll('.fits .unknown')].map(word => word.title)"
            )
            assert all("pool_tokens" in title for title in titles)
            assert "What it can take is unknown: unknown_pool" in await tab.text(f"{_card('chat')} .verdict")
            assert "What chat can take is unknown." in await tab.text("#state")
            assert await tab.text("#device-list") == (
                "Cards: unknown, reading NVML is switched off in the configuration."
            )
            (source,) = await tab.rows("#unknown-list > .sources")
            assert source[:3] == ["model", "chat", "unknown_pool"]

    asyncio.run(check())


def test_sleeping_server_fits_nothing_rather_than_zero(browser: str) -> None:
    """A sleeping engine has given its pool back: its fits and its usage are unknown, and it says so."""

    async def check() -> None:
        engine = vllm("idle")
        awake, asleep = 'sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0'
        assert awake in engine.pages["/metrics"]
        engine.pages["/metrics"] = engine.pages["/metrics"].replace(awake, asleep)
        async with daemon({"chat": engine}) as kvwatch, open_tab(browser) as tab:
            await tab.visit(kvwatch.url)
            (row,) = await tab.rows(f"{_card('chat')} .fits")
            assert row[:5] == ["unknown"] * 5
            assert "use unknown, sleeping" in await tab.text(f"{_card('chat')} .pool")
            assert await tab.text("#state") == "The server answers. chat sleeps."

    asyncio.run(check())


def test_ranks_stand_apart_and_are_summed(browser: str) -> None:
    """Two data-parallel ranks have a pool and a row each, and a row for the server they make."""

    async def check() -> None:
        engine = vllm("draining")
        second = vllm("idle").pages["/metrics"].replace('engine="0"', 'engine="1"').splitlines()
        both = [engine.pages["/metrics"], *(line for line in second if 'engine="1"' in line), ""]
        # Every rank's series repeats the sum of the blocks.
        engine.pages["/metrics"] = "\n".join(both).replace('num_gpu_blocks="100"', 'num_gpu_blocks="200"')
        async with daemon({"chat": engine}) as kvwatch, open_tab(browser) as tab:
            await tab.visit(kvwatch.url)
            assert await tab.rows(f"{_card('chat')} .fits") == [
                ["rank 0", "0", "1", "3", "3", "\u22121", "2", "2", "42"],
                ["rank 1", "3", "3", "3", "3", "3", "0", "0", "0"],
                ["server", "3", "4", "6", "6", "2", "2", "2", "42"],
            ]
            assert await tab.value(f"document.querySelectorAll('{_card('chat')} .pool').length") == 2
            assert "Rank 0: Bound by the queue" in await tab.text(f"{_card('chat')} .verdict")
            assert await tab.text(f"{_card('chat')} .badge") == "takes 3 more"

    asyncio.run(check())


def test_text_of_others_stays_text(browser: str) -> None:
    """Markup in a model's name and in a reason of the engine's page is shown, not obeyed."""

    async def check() -> None:
        engine = vllm("draining")
        page = engine.pages["/metrics"].replace("./tiny-llama", HOSTILE)
        engine.pages["/metrics"] = page.replace('reason="deferred"', 'reason="<b>__proto__</b>"').replace(
            'reason="<b>__proto__</b>"} 0.0', 'reason="<b>__proto__</b>"} 3.0'
        )
        engine.pages["/v1/models"] = engine.pages["/v1/models"].replace("./tiny-llama", HOSTILE)
        async with daemon({"chat": engine}) as kvwatch, open_tab(browser) as tab:
            await tab.visit(kvwatch.url)
            assert HOSTILE in await tab.text(f"{_card('chat')} .meta")
            assert "3 <b>__proto__</b>" in await tab.text(f"{_card('chat')} .verdict")
            assert await tab.value("document.querySelectorAll('main img').length") == 0
            assert tab.complaints == []

    asyncio.run(check())


# Time


def test_refresh_keeps_what_the_reader_opened(browser: str) -> None:
    """New figures arrive in the same elements: an open <details> stays open and keeps the focus."""

    async def check() -> None:
        engine = vllm("idle")
        async with daemon({"chat": engine}) as kvwatch, open_tab(browser) as tab:
            await tab.visit(kvwatch.url)
            await tab.value(
                f"window.kept = document.querySelector('{_card('chat')} details'); kept.open = true;"
                "kept.querySelector('summary').focus()"
            )
            engine.pages.update(vllm("pool-full").pages)
            await tab.until(
                f"document.querySelector('{_card('chat')} .badge').innerText.startsWith('cannot')"
            )
            assert await tab.value(f"kept === document.querySelector('{_card('chat')} details') && kept.open")
            assert await tab.value("document.activeElement === kept.querySelector('summary')")
            assert tab.complaints == []

    asyncio.run(check())


def test_old_data_is_called_stale_when_the_daemon_is_gone(browser: str) -> None:
    """A page whose daemon has gone says so first, and since when the figures hold."""

    async def check() -> None:
        async with daemon({"chat": vllm("idle")}) as kvwatch, open_tab(browser) as tab:
            await tab.visit(kvwatch.url)
            assert "The server answers. It can take one more" in await tab.text("#state")
            await kvwatch.stop()
            await tab.until("document.documentElement.dataset.state === 'stale'")
            state = await tab.text("#state")
            assert state.startswith("Stale: kvwatch does not answer (since ")
            assert "Everything below is from" in state
            assert "can take" not in state
            assert await tab.value("document.title") == "stale \u00b7 kvwatch"

    asyncio.run(check())


def test_old_data_is_called_stale_when_polling_has_stopped(browser: str) -> None:
    """A daemon that answers with the same old snapshot is not believed either."""

    async def check() -> None:
        async with cards_page(age_seconds=500) as url, open_tab(browser) as tab:
            await tab.visit(url)
            assert (await tab.text("#state")).startswith("Stale: kvwatch answers but has stopped polling.")

    asyncio.run(check())


# Cards


@contextlib.asynccontextmanager
async def cards_page(*, age_seconds: float = 0) -> AsyncIterator[str]:
    """Serve the page on a snapshot with two cards, by the daemon's own HTTP side."""
    config = parse_config("nvml: {enabled: false}", "kvwatch.yaml", ADAPTERS)
    async with open_poller(config, Devices()) as poller:
        poller.snapshot = _with_cards(await poller.poll(), taken_at=time.time() - age_seconds)
        async with serving(build_app(poller, cast("Exposition", None))) as url:
            yield f"{url}/"


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


def test_cards_are_ledgers(browser: str) -> None:
    """A card's parts stand in its bar to scale and in its legend in MiB; what is missing is unknown."""

    async def check() -> None:
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

    asyncio.run(check())


# Everyone's page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_narrow_screen_needs_no_sideways_scrolling(browser: str, *, dark: bool) -> None:
    """At 360 px nothing is wider than the screen, and the scheme is the reader's."""

    async def check() -> None:
        engines = {name: engine for name, (engine, _) in FIGURES.items()}
        async with daemon(engines) as kvwatch, open_tab(browser, width=360, dark=dark) as tab:
            await tab.visit(kvwatch.url)
            await tab.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
            assert await tab.value("document.documentElement.scrollWidth") <= 360
            red = await tab.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
            assert (int(red) < 64) is dark

    asyncio.run(check())


def test_structure_for_a_screen_reader(browser: str) -> None:
    """Tables have captions and roles, one region speaks, headings go down one level at a time."""

    async def check() -> None:
        async with (
            daemon({"chat": vllm("draining"), "gone": Engine({})}) as kvwatch,
            open_tab(browser) as tab,
        ):
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

    asyncio.run(check())


def test_without_scripts_the_page_says_where_else_to_look(browser: str) -> None:
    """A browser without scripts shows the addresses of the same figures."""

    async def check() -> None:
        async with cards_page() as url, open_tab(browser) as tab:
            await tab.call("Emulation.setScriptExecutionDisabled", value=True)
            await tab.call("Page.navigate", url=url)
            assert "/api/v1/snapshot as JSON" in await tab.until(
                "document.querySelector('noscript')?.innerText"
            )

    asyncio.run(check())


def _card(server: str) -> str:
    return f'.card[aria-label="server {server}"]'
