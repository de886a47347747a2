"""The real daemon behind a web configuration, and clients that say who they are."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import bcrypt
import httpx

from kvwatch.app import Daemon
from tests.daemon import Running, config

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

PASSWORD = "correct horse"  # noqa: S105 - of the test's own user
USER = ("alice", PASSWORD)


def hashed(password: str = PASSWORD, cost: int = 4) -> str:
    """Return a bcrypt hash that is quick to check."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


@contextlib.asynccontextmanager
async def serving(file: Path, text: str = "") -> AsyncIterator[Running]:
    """Run the daemon with this web configuration until the block ends; its own client trusts nobody."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    configuration = config(text).model_copy(update={"web_config_file": file})
    daemon = Daemon(
        configuration, on_listen=lambda host, port: listening.set_result(f"{scheme(daemon)}://{host}:{port}")
    )
    task = asyncio.create_task(daemon.run())
    try:
        await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        async with client() as own:
            yield Running(listening.result(), own, daemon)
    finally:
        daemon.stop()
        async with asyncio.timeout(2):
            await task


def scheme(daemon: Daemon) -> str:
    """Return https where connections are encrypted."""
    return "https" if daemon.is_encrypted else "http"


def client(context: ssl.SSLContext | None = None, auth: tuple[str, str] | None = None) -> httpx.AsyncClient:
    """Return a client with this trust and this user."""
    return httpx.AsyncClient(
        trust_env=False, verify=False if context is None else context, auth=auth, timeout=5
    )


async def get(
    url: str, *, context: ssl.SSLContext | None = None, auth: tuple[str, str] | None = None
) -> httpx.Response:
    """Fetch a page over a connection of its own."""
    async with client(context, auth) as own:
        return await own.get(url)
