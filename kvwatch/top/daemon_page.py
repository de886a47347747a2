"""Asks a daemon for its snapshot, by the standard library: a view that is left open stays small. I/O."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pathlib import Path

_PATH = "/api/v1/snapshot"
_MAX_BYTES = 32 << 20
_SECRET_BYTES = 4096
_UNAUTHORIZED, _NOT_FOUND, _TOO_MANY, _UNAVAILABLE = 401, 404, 429, 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """Where a daemon is, and how it lets one in.

    The password is read anew each time, so that a changed one works.
    """

    url: str
    ca_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None

    def snapshot(self, *, timeout_seconds: float) -> dict[str, Any] | str:
        """Return the snapshot's document, or in words why there is none; blocks.

        No redirect is followed, and no proxy asked. The timeout is that of each step.
        """
        try:
            headers, context = self._headers(), self._context()
        except OSError as error:  # a bad certificate among them
            return f"--ca-file or --password-file cannot be read ({error.strerror or error})"
        try:
            status, body = self._get(headers, context, timeout_seconds)
        except TimeoutError:
            return f"kvwatch does not answer within {timeout_seconds:g} s"
        except ssl.SSLError as error:
            return f"kvwatch's certificate or TLS is refused ({error.reason or error})"
        except OSError as error:
            return f"kvwatch does not answer (unreachable: {error.strerror or error})"
        except (HTTPException, ValueError) as error:
            return f"what answers there is not kvwatch ({type(error).__name__})"
        return _read(status, body)

    def _get(
        self, headers: dict[str, str], context: ssl.SSLContext | None, timeout_seconds: float
    ) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        connection = (
            HTTPConnection(host, parts.port, timeout=timeout_seconds)
            if context is None
            else HTTPSConnection(host, parts.port, timeout=timeout_seconds, context=context)
        )
        with contextlib.closing(connection):
            connection.request("GET", f"{parts.path}{_PATH}", headers=headers)
            response = connection.getresponse()
            return response.status, response.read(_MAX_BYTES + 1)

    def _context(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        return ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self.user is not None and self.password_file is not None:
            with self.password_file.open("rb") as file:
                password = file.read(_SECRET_BYTES).rstrip(b"\r\n")
            pair = base64.b64encode(self.user.encode() + b":" + password).decode("ascii")
            headers["Authorization"] = f"Basic {pair}"
        return headers


def _read(status: int, body: bytes) -> dict[str, Any] | str:
    if status == _UNAUTHORIZED:
        return "kvwatch wants a password, or another one: --user and --password-file"
    if status == _NOT_FOUND:
        return f"what answers there is not kvwatch: it has no {_PATH}"
    if status == _TOO_MANY:
        return "kvwatch is asked too often, by whomever (HTTP 429)"
    if status == _UNAVAILABLE:
        return "kvwatch has not finished its first poll (HTTP 503)"
    if status != 200:  # noqa: PLR2004
        return f"kvwatch answers with HTTP {status}"
    document: object = None
    # Whatever answers there: no JSON, or nested without end, or numbers of a million digits, or cut off.
    if len(body) <= _MAX_BYTES:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(body)
    if not isinstance(document, dict) or "servers" not in document:
        return "what answers there is not kvwatch: it has no snapshot"
    return document
