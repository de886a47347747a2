"""The page of one snapshot, served by the daemon's own HTTP side."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, cast

from kvwatch.server import build_app, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvwatch.exposition import Exposition
    from kvwatch.poller import Poller


@contextlib.asynccontextmanager
async def page_of(poller: Poller) -> AsyncIterator[str]:
    """Serve the page on what the poller last published; yield its address."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app = build_app(poller, cast("Exposition", None), clock=time.monotonic)
    http = asyncio.create_task(
        serve(app, "127.0.0.1", 0, lambda host, port: listening.set_result(f"http://{host}:{port}"))
    )
    try:
        yield await listening
    finally:
        http.cancel()
        await asyncio.gather(http, return_exceptions=True)
