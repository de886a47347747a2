"""The models of a web configuration file, in the format of Prometheus' exporter-toolkit.

Its keys, defaults and meanings were read from docs/web-configuration.md and web/tls_config.go of
github.com/prometheus/exporter-toolkit (2026-07).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo

from kvwatch.config_models import Count, Strict, Switch
from kvwatch.config_values import RefusedValueError
from kvwatch.web_config_values import (
    NO_CLIENT_CERT,
    parse_cipher_suites,
    parse_client_auth,
    parse_curve_preferences,
    parse_hash,
    parse_headers,
    parse_http2,
    parse_interval,
    parse_sans,
    parse_tls_version,
)


def _path(value: object, info: ValidationInfo) -> Path:
    """Return an absolute path; a relative one starts at the folder of the web configuration."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise RefusedValueError("this is not a path; allowed: the path of a PEM file")
    folder: Path = (info.context or {}).get("folder", Path())
    return folder / value


def _pem(value: object) -> bytes:
    if not isinstance(value, str) or "-----BEGIN " not in value:
        raise RefusedValueError("this is no PEM; allowed: the text of a PEM file, as a block after `|`")
    return value.encode("utf-8")


PemPath = Annotated[Path, BeforeValidator(_path)]
Pem = Annotated[bytes, BeforeValidator(_pem)]
TlsVersion = Annotated[str, BeforeValidator(parse_tls_version)]


class TlsServer(Strict):
    """How connections are encrypted, and whose are taken."""

    cert: Pem | None = None
    key: Pem | None = Field(default=None, repr=False)
    client_ca: Pem | None = None
    cert_file: PemPath | None = None
    key_file: PemPath | None = None
    client_auth_type: Annotated[str, BeforeValidator(parse_client_auth)] = NO_CLIENT_CERT
    client_ca_file: PemPath | None = None
    client_allowed_sans: Annotated[frozenset[str], BeforeValidator(parse_sans)] | None = None
    min_version: TlsVersion = "TLS12"
    max_version: TlsVersion = "TLS13"
    cipher_suites: Annotated[tuple[str, ...], BeforeValidator(parse_cipher_suites)] = ()
    """OpenSSL's names; empty: OpenSSL's own choice."""
    prefer_server_cipher_suites: Switch = True
    curve_preferences: Annotated[tuple[str, ...], BeforeValidator(parse_curve_preferences)] = ()


class HttpServer(Strict):
    """Headers that are added to every answer."""

    http2: Annotated[bool, BeforeValidator(parse_http2)] = False
    headers: Annotated[tuple[tuple[str, str], ...], BeforeValidator(parse_headers)] = ()


class RateLimit(Strict):
    """A token bucket over all requests together."""

    interval_seconds: Annotated[float, BeforeValidator(parse_interval)] = Field(default=0.0, alias="interval")
    """Between two requests in the long run; 0 is no limit."""
    burst: Count | None = None
    """How many requests may come at once."""


class WebConfig(Strict):
    """Everything a web configuration may say."""

    tls_server_config: TlsServer | None = None
    http_server_config: HttpServer = HttpServer()
    basic_auth_users: dict[str, Annotated[bytes, BeforeValidator(parse_hash)]] = Field(
        default_factory=dict, repr=False
    )
    """User name to bcrypt hash."""
    rate_limit: RateLimit = RateLimit()


SECTIONS: dict[str, type[Strict]] = {
    "tls_server_config": TlsServer,
    "http_server_config": HttpServer,
    "rate_limit": RateLimit,
}
"""The model of each mapping in the file."""
