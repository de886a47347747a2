"""The gate before every page: at most so many requests, and only of those who have the right password."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from aiohttp import web

from kvwatch.web_config_passwords import Passwords, TooManyChecksError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvwatch.web_config import WebSettings

log = logging.getLogger(__name__)

_COMPLAIN_EVERY_SECONDS = 60.0


class Gate:
    """Let requests through as the settings in force say; `clock` is monotonic seconds.

    The order is the toolkit's: rate limit, then password. The health page is behind it like any other.
    """

    def __init__(self, passwords: Passwords, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._passwords = passwords
        self._clock = clock
        self._headers: tuple[tuple[str, str], ...] = ()
        self._interval_seconds = 0.0
        self._burst = 1
        self._tokens = 1.0
        self._filled_at = clock()
        self._complained_at: float | None = None
        self._refused = 0

    def change(self, settings: WebSettings) -> None:
        """Take up new settings; who was let in before is asked again."""
        self._passwords.users = settings.users
        self._headers = settings.headers
        if (settings.interval_seconds, settings.burst) != (self._interval_seconds, self._burst):
            self._interval_seconds, self._burst = settings.interval_seconds, settings.burst
            self._tokens = float(settings.burst)

    def mount(self, app: web.Application) -> None:
        """Stand before all pages of an application, those that do not exist included."""

        @web.middleware
        async def gate(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            refusal = await self._refusal(request)
            return await handler(request) if refusal is None else refusal

        app.middlewares.append(gate)
        app.on_response_prepare.append(self._add_headers)

    async def _refusal(self, request: web.Request) -> web.Response | None:
        if not self._has_token():
            return _too_many()
        if not self._passwords.users:
            return None
        peer = request.remote or ""
        try:
            admitted = await self._passwords.admits(request.headers.get("Authorization", ""), peer=peer)
        except TooManyChecksError:
            return _too_many()
        except TimeoutError:
            return web.Response(status=503, text="The password could not be checked in time.\n")
        if admitted:
            return None
        if "Authorization" in request.headers:
            self._complain(peer)
        return web.Response(
            status=401,
            text="Give a user and a password.\n",
            headers={"WWW-Authenticate": 'Basic realm="kvwatch", charset="UTF-8"'},
        )

    def _has_token(self) -> bool:
        """Take a token from the bucket, which fills by one each interval."""
        if not self._interval_seconds:
            return True
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) / self._interval_seconds)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _complain(self, peer: str) -> None:
        """Log refused passwords, once a minute at most; never a name, which may be a mistyped password."""
        self._refused += 1
        now = self._clock()
        if self._complained_at is None or now - self._complained_at >= _COMPLAIN_EVERY_SECONDS:
            log.warning("user or password refused: %d requests, the last from %s", self._refused, peer)
            self._complained_at, self._refused = now, 0

    async def _add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        for name, value in self._headers:
            response.headers[name] = value


def _too_many() -> web.Response:
    return web.Response(status=429, text="Too many requests.\n", headers={"Retry-After": "1"})
