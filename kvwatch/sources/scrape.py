"""HTTP GET of engine pages: one client, a deadline over the whole fetch, a byte cap, no redirects."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING

import httpx

from kvwatch.readings import Page, Reason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_STATUS_REASON = {
    401: Reason.UNAUTHORIZED,
    403: Reason.UNAUTHORIZED,
    404: Reason.NOT_FOUND,
    501: Reason.NOT_ENABLED,
}
_TOKEN_LIMIT_BYTES = 64 * 1024
_KEEPALIVE_SECONDS = 2.0
_UNUSED_SECONDS = 2 * 3600.0  # the longest interval twice


class Scraper:
    """Fetch pages of inference servers; every failure is a page with a reason, never an exception.

    Args:
        max_bytes: the largest body that is read.
        clock: monotonic seconds.

    """

    def __init__(self, *, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._clients: dict[tuple[str, Path | None], httpx.AsyncClient] = {}
        self._used_at: dict[tuple[str, Path | None], float] = {}
        self._tls_contexts: dict[Path | None, ssl.SSLContext] = {}

    async def fetch(
        self,
        url: str,
        path: str,
        *,
        deadline_seconds: float,
        bearer_token_file: Path | None = None,
        ca_file: Path | None = None,
    ) -> Page:
        """Get `url` + `path`, from the connection to the last byte within the deadline.

        The token file is read anew each time, so that a rotated token works.
        """
        started = self._clock()
        try:
            headers = _headers(bearer_token_file)
        except PermissionError as error:
            return _failed(path, Reason.PERMISSION, str(error))
        except OSError as error:
            return _failed(path, Reason.NOT_FOUND, str(error))
        try:
            async with asyncio.timeout(deadline_seconds):
                page = await self._get(url, path, headers, ca_file)
        except TimeoutError:
            page = _failed(path, Reason.TIMEOUT, f"no full answer within {deadline_seconds:.3g} s")
        except (httpx.NetworkError, OSError) as error:
            page = _failed(path, Reason.UNREACHABLE, str(error) or type(error).__name__)
        except httpx.HTTPError as error:
            # Hung up on before a word was said, as at a restart; or half-way, or not speaking HTTP.
            silent = str(error).startswith("Server disconnected without")
            reason = Reason.UNREACHABLE if silent else Reason.PARSE_ERROR
            page = _failed(path, reason, str(error) or type(error).__name__)
        return Page(
            path=path,
            body=page.body,
            reason=page.reason,
            status=page.status,
            detail=page.detail,
            duration_seconds=self._clock() - started,
        )

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()
        self._used_at.clear()

    async def _close_unused(self) -> None:
        """Close the clients of servers that are gone: a found server has another port after each start."""
        now = self._clock()
        unused = {key for key, at in self._used_at.items() if now - at > _UNUSED_SECONDS}
        self._used_at = {key: at for key, at in self._used_at.items() if key not in unused}
        for client in [self._clients.pop(key) for key in unused]:
            await client.aclose()

    async def _get(self, url: str, path: str, headers: dict[str, str], ca_file: Path | None) -> Page:
        if (url, ca_file) not in self._clients:
            await self._close_unused()
        request = self._client(url, ca_file).stream("GET", url.rstrip("/") + path, headers=headers)
        async with request as response:
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > self._max_bytes:
                    return _failed(
                        path, Reason.TOO_LARGE, f"more than {self._max_bytes} bytes", response.status_code
                    )
        return _page(path, response.status_code, bytes(body))

    def _client(self, url: str, ca_file: Path | None) -> httpx.AsyncClient:
        """Return a server's client: each has its own, since a shared pool is searched at every request."""
        key = (url, ca_file)
        self._used_at[key] = self._clock()
        client = self._clients.get(key)
        if client is None:
            client = httpx.AsyncClient(
                # Loading the system's certificates takes longer than a hundred polls; plain HTTP never
                # looks at them, and no redirect leads from it to HTTPS.
                verify=self._tls_context(ca_file) if url.startswith("https:") else False,
                trust_env=False,  # a proxy from the environment would be asked even for 127.0.0.1
                follow_redirects=False,
                timeout=None,  # noqa: S113 - `fetch` puts a deadline over the whole
                # Reuse within a poll only: uvicorn hangs up after 5 idle seconds, the usual interval,
                # and a request sent at that very moment would look like a broken server.
                limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_SECONDS),
            )
            self._clients[key] = client
        return client

    def _tls_context(self, ca_file: Path | None) -> ssl.SSLContext:
        if ca_file not in self._tls_contexts:
            cafile = None if ca_file is None else str(ca_file)
            self._tls_contexts[ca_file] = ssl.create_default_context(cafile=cafile)
        return self._tls_contexts[ca_file]


def _headers(token_file: Path | None) -> dict[str, str]:
    # identity: a compressed body could grow past the cap in one step.
    headers = {"Accept": "text/plain, application/json", "Accept-Encoding": "identity"}
    if token_file is not None:
        headers["Authorization"] = f"Bearer {_read_token(token_file)}"
    return headers


def _read_token(path: Path) -> str:
    with path.open("rb") as file:
        token = file.read(_TOKEN_LIMIT_BYTES).decode("ascii", errors="replace").strip()
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        msg = f"{path} does not hold one token"
        raise OSError(msg)
    return token


def _page(path: str, status: int, body: bytes) -> Page:
    if status != httpx.codes.OK:
        return _failed(path, _reason(status, body), f"HTTP {status}", status)
    try:
        return Page(path=path, body=body.decode("utf-8"), status=status)
    except UnicodeDecodeError as error:
        return _failed(path, Reason.PARSE_ERROR, f"not UTF-8: {error.reason}", status)


def _reason(status: int, body: bytes) -> Reason:
    if httpx.codes.is_redirect(status):
        return Reason.REDIRECT
    # llama-server answers every path with this while it loads (server-http.cpp, b9093 and newer).
    if status == httpx.codes.SERVICE_UNAVAILABLE and b"oading" in body:
        return Reason.LOADING
    return _STATUS_REASON.get(status, Reason.HTTP_ERROR)


def _failed(path: str, reason: Reason, detail: str, status: int | None = None) -> Page:
    return Page(path=path, body=None, reason=reason, detail=detail, status=status)
