"""The scalar values of a web configuration: bcrypt hashes, TLS versions, cipher suites, headers. Pure.

Each parser raises `RefusedValueError`: what is wrong; what is allowed. A message never repeats a secret.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress

from kvwatch.config_values import RefusedValueError, parse_choice, parse_duration, shown

TLS_VERSIONS = ("TLS12", "TLS13")
_OLD_TLS_VERSIONS = ("TLS10", "TLS11")

VERIFIED = "RequireAndVerifyClientCert"
VERIFIED_IF_GIVEN = "VerifyClientCertIfGiven"
NO_CLIENT_CERT = "NoClientCert"
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")

CIPHER_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""The suites that Go offers for TLS 1.2 (crypto/tls, CipherSuites, 1.22 and newer), and OpenSSL's names."""
_TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")

CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}

HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
"""The headers that may be set, and their values where only some are allowed."""

_HASH = re.compile(r"\$2[abxy]\$([0-9]{2})\$[./A-Za-z0-9]{53}", re.ASCII)
_LEAST_COST, _MOST_COST = 4, 16
"""2^16 rounds take about four seconds; the format goes on to 31, which takes a day."""
_HASH_ALLOWED = "allowed: a bcrypt hash in quotes, as `htpasswd -nBC 10 NAME` prints after the colon"
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,4096}", re.ASCII)


def parse_hash(value: object) -> bytes:
    """Return a bcrypt hash."""
    match = _HASH.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise RefusedValueError(f"this is not a bcrypt hash; {_HASH_ALLOWED}")
    if not _LEAST_COST <= int(match[1]) <= _MOST_COST:
        raise RefusedValueError(
            f"a check of this hash takes 2^{int(match[1])} rounds; "
            f"allowed: a cost from {_LEAST_COST} to {_MOST_COST}"
        )
    return match[0].encode("ascii")


def parse_tls_version(value: object) -> str:
    """Return `TLS12` or `TLS13`."""
    if value in _OLD_TLS_VERSIONS:
        raise RefusedValueError(
            f"{value} is broken, and OpenSSL 3 speaks it no longer; allowed: TLS12, TLS13"
        )
    return parse_choice(value, TLS_VERSIONS)


def parse_client_auth(value: object) -> str:
    """Return a policy that looks at client certificates, or at none."""
    if value in _UNVERIFIED:
        raise RefusedValueError(
            f"{value} takes any certificate unchecked, which proves nothing and which Python's ssl cannot; "
            f"allowed: {VERIFIED}, {VERIFIED_IF_GIVEN}, {NO_CLIENT_CERT}"
        )
    return parse_choice(value, (VERIFIED, VERIFIED_IF_GIVEN, NO_CLIENT_CERT))


def parse_cipher_suites(value: object) -> tuple[str, ...]:
    """Return OpenSSL's names of suites for TLS 1.2, in the order given."""
    names = _texts(value, "cipher suites")
    for name in names:
        if name in _TLS13_SUITES:
            raise RefusedValueError(
                f"{name} is of TLS 1.3, whose suites Python's ssl cannot choose (all of them are safe); "
                "leave it out, or leave TLS 1.3 out with max_version: TLS12"
            )
        if name not in CIPHER_SUITES:
            raise RefusedValueError(
                f"{shown(name)} is not a cipher suite; allowed: {', '.join(CIPHER_SUITES)}"
            )
    return tuple(CIPHER_SUITES[name] for name in names)


def parse_curve_preferences(value: object) -> tuple[str, ...]:
    """Return OpenSSL's name of one curve; several in an order are more than Python's ssl can set."""
    names = _texts(value, "curves")
    for name in names:
        if name not in CURVES:
            raise RefusedValueError(f"{shown(name)} is not a curve; allowed: {', '.join(CURVES)}")
    if len(names) > 1:
        raise RefusedValueError(
            "Python's ssl takes one curve, not an order of several; give one, or leave the key out"
        )
    return tuple(CURVES[name] for name in names)


def parse_sans(value: object) -> frozenset[str]:
    """Return names that a client's certificate may carry; addresses in their shortest spelling."""
    return frozenset(plain_san(name) for name in _texts(value, "names"))


def plain_san(name: str) -> str:
    """Return a name as it is, an IP address in its shortest spelling, as OpenSSL does not write it."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(name.strip("[]")))
    return name


def parse_http2(value: object) -> bool:
    """Return False; kvwatch has no HTTP/2."""
    if value is not False:
        raise RefusedValueError(
            "kvwatch speaks HTTP/1.1 only, as every scraper does too; write false or leave the key out"
        )
    return False


def parse_headers(value: object) -> tuple[tuple[str, str], ...]:
    """Return headers to set; one with an empty value is not set."""
    if not isinstance(value, dict):
        raise RefusedValueError(f"{shown(value)} is not a mapping; allowed: the headers {', '.join(HEADERS)}")
    for name, text in value.items():
        if name not in HEADERS:
            raise RefusedValueError(
                f"the header {shown(name)} cannot be configured; allowed: {', '.join(HEADERS)}"
            )
        if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):
            raise RefusedValueError(f"the value of {name} is not one line of plain text; put it in quotes")
        if text and HEADERS[name] and text not in HEADERS[name]:
            raise RefusedValueError(
                f"{shown(text)} is no value of {name}; allowed: {', '.join(HEADERS[name])}"
            )
    return tuple((name, text) for name, text in value.items() if text)


def parse_interval(value: object) -> float:
    """Return seconds between two requests; 0 switches the limit off."""
    if value in (0, "0") and not isinstance(value, bool):
        return 0.0
    seconds = parse_duration(value)
    longest = 3600
    if seconds > longest:
        raise RefusedValueError(f"{shown(value)} is out of range; allowed: 0 to 1h")
    return seconds


def _texts(value: object, things: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise RefusedValueError(f"this is not a list of {things}; allowed: `- NAME` lines")
    return value
