"""A server that replays captured pages over real HTTP, and misbehaves on request."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

CAPTURES = Path(__file__).parent / "captures"
_AT_ONCE_BYTES = 100_000


@dataclass(frozen=True)
class Answer:
    """One page: its status and body, and how it is sent."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    drip_seconds: float | None = None
    """Send a byte, wait this long, send the next."""
    hang: bool = False
    """Accept the request and never answer."""


class Replay:
    """A running server; its `pages` may be changed at any time."""

    def __init__(self, pages: Mapping[str, Answer]) -> None:
        self.pages = dict(pages)
        self.asked: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer as `pages` says; what they do not name is 404."""
        self.asked.append(request.path)
        self.headers.append(dict(request.headers))
        answer = self.pages.get(request.path, Answer(status=404))
        if answer.hang:
            await asyncio.Event().wait()
        if answer.drip_seconds is None and len(answer.body) <= _AT_ONCE_BYTES:
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        step = _AT_ONCE_BYTES if answer.drip_seconds is None else 1
        with contextlib.suppress(ConnectionError):  # the reader has had enough
            await response.prepare(request)
            for position in range(0, len(answer.body), step):
                await response.write(answer.body[position : position + step])
                await asyncio.sleep(answer.drip_seconds or 0)
        return response


@contextlib.asynccontextmanager
async def replaying(pages: Mapping[str, Answer], *, port: int = 0) -> AsyncIterator[Replay]:
    """Serve pages on 127.0.0.1."""
    replay = Replay(pages)
    app = web.Application()
    app.router.add_get("/{path:.*}", replay.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    replay.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield replay
    finally:
        await runner.cleanup()


def vllm_pages(state: str) -> dict[str, Answer]:
    """Return the pages of a captured vLLM 0.32.0 server in a state."""
    folder = CAPTURES / "vllm"
    models = "0.32.0-hybrid-models.json" if "hybrid" in state else "0.32.0-models.json"
    return {
        "/metrics": Answer((folder / f"0.32.0-{state}.metrics").read_bytes()),
        "/v1/models": Answer((folder / models).read_bytes()),
        "/version": Answer((folder / "0.32.0-version.json").read_bytes()),
    }


def vllm_scene(state: str, models: str) -> dict[str, Answer]:
    """Return the pages of a captured vLLM whose /v1/models has a file of its own."""
    folder = CAPTURES / "vllm"
    return {
        **vllm_pages("idle"),
        "/metrics": Answer((folder / f"0.32.0-{state}.metrics").read_bytes()),
        "/v1/models": Answer((folder / f"0.32.0-{models}.models.json").read_bytes()),
    }


def llamacpp_pages(mode: str, state: str) -> dict[str, Answer]:
    """Return the pages of a captured llama-server b11434 in a state."""
    folder = CAPTURES / "llamacpp"
    return {
        "/props": Answer((folder / f"b11434-{mode}-idle.props.json").read_bytes()),
        "/metrics": Answer((folder / f"b11434-{mode}-{state}.metrics").read_bytes()),
        "/slots": Answer((folder / f"b11434-{mode}-{state}.slots.json").read_bytes()),
    }


def edited(answer: Answer, old: str, new: str) -> Answer:
    """Return the answer with each `old` in its body replaced; it must be there."""
    body = answer.body.decode()
    assert old in body
    return replace(answer, body=body.replace(old, new).encode())
