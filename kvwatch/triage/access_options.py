"""The options that say which API is asked, and as whom."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.config_values import parse_url
from kvwatch.triage.prometheus_series import SelectorError, parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.triage.prometheus_api import Access

_NOT_IN_A_HEADER = set("\r\n\0")


def add_access_options(group: argparse._ArgumentGroup, duration: Callable[[str], float]) -> None:
    """Add the options; `duration` reads seconds such as 30s."""
    group.add_argument(
        "--selector",
        type=_selector,
        default=None,
        metavar="MATCHERS",
        help="label matchers for every query, where names alone are not enough: 'job=\"kvwatch\"'",
    )
    group.add_argument(
        "--prometheus-header",
        type=_header,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header of every request, such as the tenant: X-Scope-OrgID=team-a; may be repeated",
    )
    group.add_argument("--prometheus-bearer-token-file", type=Path, metavar="FILE", help="holds the token")
    group.add_argument(
        "--prometheus-basic-auth-file", type=Path, metavar="FILE", help="holds one line, user:password"
    )
    group.add_argument("--prometheus-ca-file", type=Path, metavar="FILE", help="PEM certificates to trust")
    group.add_argument(
        "--prometheus-timeout", type=duration, default=30.0, metavar="TIME", help="of one query (default 30s)"
    )


def api_url(text: str) -> str:
    """Return the base address of an API; for argparse."""
    try:
        url = parse_url(text)
    except ValueError as error:
        hint = str(error).replace("use bearer_token_file", "use --prometheus-basic-auth-file")
        hint = hint.replace("the server's base address, such as http://127.0.0.1:8000", "http://HOST:9090")
        raise argparse.ArgumentTypeError(hint) from None
    for ending in ("/api/v1/query_range", "/api/v1/query", "/api/v1", "/api", "/graph"):
        url = url.removesuffix(ending)
    return url


def access_of(options: argparse.Namespace) -> Access:
    """Return how to reach the API that the options name."""
    from kvwatch.triage.prometheus_api import Access  # noqa: PLC0415 - help needs no HTTP

    return Access(
        url=options.prometheus,
        bearer_token_file=options.prometheus_bearer_token_file,
        basic_auth_file=options.prometheus_basic_auth_file,
        headers=dict(options.prometheus_header),
        ca_file=options.prometheus_ca_file,
        timeout_seconds=options.prometheus_timeout,
    )


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    token = name.strip()
    if not equals or not token.replace("-", "").isalnum() or not token.isascii() or _bad(value):
        raise argparse.ArgumentTypeError("write NAME=VALUE, such as X-Scope-OrgID=team-a")
    return token, value.strip()


def _bad(value: str) -> bool:
    return not value.strip().isascii() or bool(_NOT_IN_A_HEADER & set(value))


def _selector(text: str) -> str:
    try:
        return parse_selector(text)
    except SelectorError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
