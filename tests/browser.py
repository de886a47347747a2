"""A real browser, driven by the DevTools protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-port=0",
)


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[str]:
    """Run Chromium with an empty profile; yield its DevTools address. Raises RuntimeError."""
    process = subprocess.Popen(
        ["chromium", *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
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
