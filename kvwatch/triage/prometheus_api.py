"""The query API of anything that speaks Prometheus's HTTP API: Prometheus, Thanos, Mimir, VictoriaMetrics.

Only GET, only /api/v1/query and /api/v1/query_range, no redirects, a deadline and a byte cap on each answer.
Every failure is one sentence that names the URL and the way out.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import math
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import httpx

from kvwatch import __version__
from kvwatch.triage.prometheus_series import MatrixError, Series, read_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SECRET_LIMIT_BYTES = 64 * 1024
_PARALLEL = 4
_SHOWN_CHARACTERS = 300


class PrometheusError(Exception):
    """What keeps an API from answering, in a sentence with its URL and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach an API: where, as whom, how long, how much."""

    url: str
    """Base address without a trailing slash, such as http://127.0.0.1:9090 or https://mimir/prometheus."""
    bearer_token_file: Path | None = None
    basic_auth_file: Path | None = None
    """One line, user:password."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Such as X-Scope-OrgID, the tenant of Mimir, Thanos and Cortex."""
    ca_file: Path | None = None
    timeout_seconds: float = 30.0
    """Of one query, to its last byte."""
    max_bytes: int = 128 << 20
    """Of one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeQuery:
    """One query_range: Unix seconds, evaluated every `step_seconds` from `start` to `end`."""

    expression: str
    start: float
    end: float
    step_seconds: float


class PrometheusApi:
    """Ask one API; `warnings` are what it said beside its answers, such as that they are partial."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client = httpx.Client(
            verify=_tls_context(access) if access.url.startswith("https:") else False,
            headers=_headers(access),
            # A proxy of the environment may lead to a far Prometheus, never to one on this machine.
            trust_env=not _is_local(access.url),
            follow_redirects=False,
            timeout=access.timeout_seconds,
        )
        self.warnings: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def instant(self, expression: str, at: float) -> list[Series]:
        """Return the series of an instant query at a moment, in Unix seconds."""
        return self._series("/api/v1/query", {"query": expression, "time": _number(at)})

    def ranges(self, queries: Sequence[RangeQuery]) -> list[list[Series]]:
        """Return the series of each query; they are asked side by side."""
        if len(queries) <= 1:
            return [self._range(query) for query in queries]
        with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
            return list(pool.map(self._range, queries))

    def _range(self, query: RangeQuery) -> list[Series]:
        return self._series(
            "/api/v1/query_range",
            {
                "query": query.expression,
                "start": _number(query.start),
                "end": _number(query.end),
                "step": _number(query.step_seconds),
            },
        )

    def _series(self, path: str, parameters: Mapping[str, str]) -> list[Series]:
        url = self._access.url + path
        status, body = self._get(url, parameters)
        document = _document(body)
        if status != httpx.codes.OK:
            raise PrometheusError(_refusal(url, status, body, document))
        if document is None:
            raise PrometheusError(
                f"{url} answers with something that is not JSON ({_excerpt(body)}):"
                " is this the address of Prometheus itself, and not of a page before it?"
            )
        try:
            series, warnings = read_answer(document)
        except MatrixError as error:
            raise PrometheusError(f"{url}: {error}") from None
        for warning in warnings:
            if warning not in self.warnings:
                self.warnings.append(warning)
        return series

    def _get(self, url: str, parameters: Mapping[str, str]) -> tuple[int, bytes]:
        seconds = self._access.timeout_seconds
        ends_at = time.monotonic() + seconds
        too_late = (
            f"{url} gives no full answer within {seconds:g} s:"
            " raise --prometheus-timeout, or name one --server or a shorter span"
        )
        try:
            with self._client.stream("GET", url, params=dict(parameters)) as response:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > self._access.max_bytes:
                        raise PrometheusError(
                            f"{url} answers with more than {self._access.max_bytes >> 20} MiB:"
                            " name one --server, a shorter span, or a --selector"
                        )
                    if time.monotonic() > ends_at:
                        raise PrometheusError(too_late)
                return response.status_code, bytes(body)
        except httpx.TimeoutException:
            raise PrometheusError(too_late) from None
        except httpx.ConnectError as error:
            raise PrometheusError(
                f"cannot reach {url}: {error}; is it the right address, and does it listen?{_tls_hint(error)}"
            ) from None
        except httpx.HTTPError as error:
            raise PrometheusError(f"{url}: {error or type(error).__name__}") from None


def _refusal(url: str, status: int, body: bytes, document: Mapping[str, Any] | None) -> str:
    """Return what an API's refusal means, with its own words."""
    said = str(document.get("error", "")) if document else ""
    said = said[:_SHOWN_CHARACTERS] or _excerpt(body)
    match status:
        case 401 | 403:
            todo = (
                "give --prometheus-bearer-token-file, --prometheus-basic-auth-file"
                " or the tenant: --prometheus-header X-Scope-OrgID=TENANT"
            )
        case 404:
            todo = (
                "there is no Prometheus API at this path; Mimir's ends in /prometheus,"
                " a VictoriaMetrics cluster's in /select/0/prometheus"
            )
        case 400 | 422:
            todo = "the API refuses the query: a shorter span or one --server may be within its limits"
        case 429:
            todo = "it has too many queries at the moment: try again, or name one --server"
        case 503 | 504:
            todo = "it is starting, overloaded or gave up: try again, or a shorter span"
        case _ if httpx.codes.is_redirect(status):
            todo = "it sends us elsewhere, to a login perhaps: give the address behind it"
        case _:
            todo = "see its log"
    return f"{url}: HTTP {status}{f', {said!r}' if said else ''}: {todo}"


def _document(body: bytes) -> Mapping[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _excerpt(body: bytes) -> str:
    return " ".join(body[:_SHOWN_CHARACTERS].decode("utf-8", errors="replace").split())[:80]


def _headers(access: Access) -> dict[str, str]:
    headers = {"User-Agent": f"kvwatch/{__version__}", "Accept": "application/json", **access.headers}
    if access.bearer_token_file is not None:
        headers["Authorization"] = f"Bearer {_secret(access.bearer_token_file)}"
    elif access.basic_auth_file is not None:
        pair = _secret(access.basic_auth_file)
        if ":" not in pair:
            raise PrometheusError(f"{access.basic_auth_file} does not hold one line user:password")
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return headers


def _secret(path: Path) -> str:
    """Return the one line that a file holds; its content is never part of a message."""
    try:
        with path.open("rb") as file:
            text = file.read(_SECRET_LIMIT_BYTES).decode("utf-8", errors="replace").strip()
    except OSError as error:
        raise PrometheusError(f"{path}: {error.strerror}") from None
    if not text or not text.isprintable():
        raise PrometheusError(f"{path} does not hold one line of text")
    return text


def _tls_context(access: Access) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if access.ca_file is None else str(access.ca_file))
    except (OSError, ssl.SSLError):
        raise PrometheusError(f"{access.ca_file} holds no PEM certificates that can be read") from None


def _tls_hint(error: httpx.ConnectError) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return " Its certificate is of no authority known here: give --prometheus-ca-file."
    return " It seems to speak plain HTTP: try http://" if "WRONG_VERSION_NUMBER" in text else ""


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _number(value: float) -> str:
    """Return seconds as every API reads them: a plain decimal, to the millisecond."""
    return str(int(value)) if math.isfinite(value) and value == int(value) else f"{value:.3f}"
