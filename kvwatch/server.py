"""The HTTP side: the page, /metrics, health, and what a person needs to see how a figure came about."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from kvwatch.connections import Connections, bind
from kvwatch.document import snapshot_document, visit_document
from kvwatch.exposition import TooManySelectionsError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator

    from kvwatch.exposition import Exposition
    from kvwatch.poller import Poller
    from kvwatch.web_config_watch import WebConfigWatch

_PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_IDLE_SECONDS = 75.0
"""How long a connection may stay without a whole request: longer than any usual scrape interval."""
_MOST_HEADERS = 64
_CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def build_app(poller: Poller, exposition: Exposition, *, clock: Callable[[], float]) -> web.Application:
    """Return the application; it reads the poller's current snapshot and never waits for a source."""

    async def metrics(request: web.Request) -> web.Response:
        openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
        compressed = _accepts_gzip(request.headers.get("Accept-Encoding", ""))
        names = request.query.getall("name[]", [])
        try:
            body, content_type = exposition.render(
                openmetrics=openmetrics, compressed=compressed, names=names
            )
        except TooManySelectionsError:
            text = "Too many different selections; ask for all, or again after the next poll.\n"
            return web.Response(status=429, text=text, headers={"Retry-After": "5"})
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if compressed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    kept, kept_key = "", (-1, False)  # a document takes longer to write than to send

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="kvwatch is healthy.\n")

    async def ready(_: web.Request) -> web.Response:
        if poller.snapshot is None:
            return web.Response(status=503, text="The first poll has not ended yet.\n")
        return web.Response(text="kvwatch is ready.\n")

    async def snapshot(_: web.Request) -> web.Response:
        if poller.snapshot is None:
            return _json({"error": "the first poll has not ended yet"}, status=503)
        nonlocal kept, kept_key
        key = (poller.snapshot.sequence, poller.snapshot.is_stale(clock()))
        if key != kept_key:
            kept, kept_key = _text({"stale": key[1], **snapshot_document(poller.snapshot)}), key
        return web.Response(text=kept, content_type="application/json")

    async def target(request: web.Request) -> web.Response:
        name = request.query.get("server", "")
        visits = poller.visits
        if name not in visits:
            known = sorted(visits)
            return _json({"error": "give ?server= one of `servers`", "servers": known}, status=404)
        return _json(visit_document(visits[name]))

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_get("/api/v1/snapshot", snapshot)
    app.router.add_get("/debug/target", target)
    for path, handler in _page_files():
        app.router.add_get(path, handler)
    app.on_response_prepare.append(_add_safety_headers)
    return app


async def serve(
    app: web.Application,
    host: str | None,
    port: int,
    on_listen: Callable[[str, int], None],
    access: WebConfigWatch | None = None,
) -> None:
    """Serve until cancelled, on all addresses where `host` is None.

    `on_listen` gets the address in use, also when port 0 asked for any. Without `access`
    everybody may connect.

    Raises OSError when the address cannot be had.
    """
    if access is not None:
        access.gate.mount(app)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=0.5,
        keepalive_timeout=_IDLE_SECONDS,
        max_headers=_MOST_HEADERS,
        # No page reads a body: one that comes is dropped, for a second.
        lingering_time=1.0,
    )
    await runner.setup()
    server = runner.server
    assert server is not None  # noqa: S101 - it is there after setup
    connections = Connections(server, access.tls if access is not None else lambda: None)
    listeners: list[socket.socket] = []
    try:
        listeners = await bind(host, port)
        address = listeners[0].getsockname()
        on_listen(address[0], address[1])
        async with asyncio.TaskGroup() as tasks:
            for listener in listeners:
                tasks.create_task(connections.accept(listener))
            if access is not None:
                access.on_change = connections.close_outdated
                tasks.create_task(access.run())
    finally:
        for listener in listeners:
            listener.close()
        connections.close()
        await runner.cleanup()


def _page_files() -> Iterator[tuple[str, Callable[[web.Request], Awaitable[web.Response]]]]:
    """Yield the paths of the page's files and what answers there; they are read once."""
    for file in sorted((Path(__file__).parent / "web").iterdir()):
        if file.suffix in _CONTENT_TYPES:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            yield path, functools.partial(_send, file.read_bytes(), _CONTENT_TYPES[file.suffix])


def _accepts_gzip(header: str) -> bool:
    """Tell whether an Accept-Encoding names gzip with a weight above 0 (RFC 9110, section 12.5.3)."""
    for coding in header.lower().split(","):
        name, _, weight = coding.replace(" ", "").partition(";q=")
        if name == "gzip":
            return weight.strip("0.") != "" or weight == ""
    return False


async def _send(body: bytes, content_type: str, _: web.Request) -> web.Response:
    return web.Response(body=body, content_type=content_type, charset="utf-8")


async def _add_safety_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "kvwatch"  # aiohttp's own tells its version and Python's
    response.headers["Content-Security-Policy"] = _PAGE_POLICY
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-store"


def _json(document: dict[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        text=_text(document),
        content_type="application/json",
    )


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
