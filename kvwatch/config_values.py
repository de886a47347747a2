"""The scalar values of the configuration: durations, bytes, addresses, URLs. Pure.

Each function takes what YAML gave and raises `RefusedValueError`: what is wrong; what is allowed. A message
never repeats a URL or a path, because a password or a token may stand there by mistake.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_SHOWN_CHARACTERS = 40
_MAX_PORT = 65535

_SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?(B|KiB|MiB|GiB|TiB)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_CONTAINER = re.compile(r"[0-9a-f]{12,64}", re.ASCII)
_UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]{1,247}\.service", re.ASCII)
_DTYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_HOST = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}", re.ASCII)
_PATH = re.compile(r"(?:/(?:[A-Za-z0-9_.~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*/*", re.ASCII)

_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f]")

_LISTEN_ALLOWED = 'allowed: 127.0.0.1:9836, ":9836" (all addresses) or "[::1]:9836"'
_URL_ALLOWED = "allowed: the server's base address, such as http://127.0.0.1:8000"


class RefusedValueError(ValueError):
    """A value that is refused; the text is the whole message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where the daemon listens; `host` None means every address, `port` 0 any free one."""

    host: str | None
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def shown(value: object) -> str:
    """Show a value of the file in a message, in YAML's words and at most 40 characters of it."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str() if "://" in value:
            return "a URL"
        case str() if value.startswith("$2"):
            return "a hash"
        case str() if len(value) > _SHOWN_CHARACTERS:
            return repr(value[:_SHOWN_CHARACTERS] + "...")
        case str():
            return repr(value)
    return str(value)


def is_number(value: object) -> bool:
    """Tell a number from a boolean, which is an int in Python."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_duration(value: object) -> float:
    """Return seconds from a duration such as `250ms`, `5s`, `2m`, `1h` or `30d`."""
    if is_number(value):
        raise RefusedValueError(
            f"{shown(value)} has no unit; write {value}s for seconds (units: ms, s, m, h, d)"
        )
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise RefusedValueError(
            f"{shown(value)} is not a duration; allowed: a number with ms, s, m, h or d, such as 5s"
        )
    return float(Decimal(match[1]) * _SECONDS[match[2]])


def duration_between(low: str, high: str) -> Callable[[object], float]:
    """Return a parser of durations that refuses those outside the two bounds."""
    low_seconds, high_seconds = parse_duration(low), parse_duration(high)

    def parse(value: object) -> float:
        seconds = parse_duration(value)
        if not low_seconds <= seconds <= high_seconds:
            raise RefusedValueError(f"{shown(value)} is out of range; allowed: {low} to {high}")
        return seconds

    return parse


def parse_size(value: object) -> int:
    """Return bytes from a whole number of bytes or a size such as `6.26GiB` (a part of a byte is dropped)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        # GB is refused: engines print GiB and GB for both 10^9 and 2^30, and 7 % is a request or two.
        raise RefusedValueError(
            f"{shown(value)} is not a size; allowed: bytes, or a number with KiB, MiB, GiB or TiB: 6.26GiB"
        )
    return int(Decimal(match[1]) * _BYTES[match[2]])


def size_between(low: str, high: str) -> Callable[[object], int]:
    """Return a parser of sizes that refuses those outside the two bounds."""
    low_bytes, high_bytes = parse_size(low), parse_size(high)

    def parse(value: object) -> int:
        size_bytes = parse_size(value)
        if not low_bytes <= size_bytes <= high_bytes:
            unit = " bytes" if is_number(value) else ""
            raise RefusedValueError(f"{shown(value)}{unit} is out of range; allowed: {low} to {high}")
        return size_bytes

    return parse


def whole_between(low: int, high: int | None = None) -> Callable[[object], int]:
    """Return a parser of whole numbers that refuses those outside the bounds."""
    allowed = f"allowed: a whole number from {low}" + ("" if high is None else f" to {high}")

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise RefusedValueError(f"{shown(value)} is not a whole number; {allowed}")
        if value < low or (high is not None and value > high):
            raise RefusedValueError(f"{shown(value)} is out of range; {allowed}")
        return value

    return parse


def parse_fraction(value: object) -> float:
    """Return a ratio above 0 and at most 1."""
    allowed = "allowed: a fraction above 0 and at most 1, such as 0.9"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RefusedValueError(f"{shown(value)} is not a number; {allowed}")
    if not 0 < value <= 1:
        raise RefusedValueError(f"{shown(value)} is out of range; {allowed}")
    return float(value)


def parse_switch(value: object) -> bool:
    """Return a boolean; only `true` and `false` are ones."""
    if not isinstance(value, bool):
        raise RefusedValueError(f"{shown(value)} is not a boolean; allowed: true, false")
    return value


def parse_auto_switch(value: object) -> object:
    """Return `auto` or a boolean."""
    if value != "auto" and not isinstance(value, bool):
        raise RefusedValueError(f"{shown(value)} is not a choice; allowed: auto, true, false")
    return value


def parse_choice(value: object, choices: Collection[str]) -> str:
    """Return one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise RefusedValueError(f"{shown(value)} is not a choice; allowed: {', '.join(choices)}")
    return value


def parse_name(value: object) -> str:
    """Return a server's name: a label value that needs no quoting anywhere."""
    if not isinstance(value, str):
        raise RefusedValueError(f"{shown(value)} is not text; put it in quotes")
    if not _NAME.fullmatch(value):
        raise RefusedValueError(
            f"{shown(value)} is not a name; allowed: 1 to 64 of the characters A-Z a-z 0-9 _ . : -"
        )
    return value


def parse_container(value: object) -> str:
    """Return the ID of a container, or its beginning."""
    if not isinstance(value, str) or not _CONTAINER.fullmatch(value):
        raise RefusedValueError(f"{shown(value)} is no container ID; allowed: 12 to 64 hex digits, in quotes")
    return value


def parse_unit(value: object) -> str:
    """Return the name of a systemd service."""
    if not isinstance(value, str) or not _UNIT.fullmatch(value):
        raise RefusedValueError(f"{shown(value)} is no service; allowed: its full name, such as vllm.service")
    return value


def parse_dtype(value: object) -> str:
    """Return the name of a data type as the engine spells it."""
    if not isinstance(value, str) or not _DTYPE.fullmatch(value):
        raise RefusedValueError(
            f"{shown(value)} is not a data type; allowed: the engine's own word, such as auto, fp8 or q8_0"
        )
    return value


def parse_listen(value: object) -> Listen:
    """Return host and port of `127.0.0.1:9836`, `[::1]:9836` or `:9836`."""
    if is_number(value):
        raise RefusedValueError(f"{shown(value)} has no address; {_LISTEN_ALLOWED}")
    if not isinstance(value, str):
        raise RefusedValueError(f"{shown(value)} is not an address; {_LISTEN_ALLOWED}")
    host, colon, port = value.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or int(port) > _MAX_PORT:
        raise RefusedValueError(f"{shown(value)} has no port from 0 to {_MAX_PORT}; {_LISTEN_ALLOWED}")
    if host and _plain_host(host) is None:
        raise RefusedValueError(f"the host of {shown(value)} is not a name or an address; {_LISTEN_ALLOWED}")
    return Listen(host=_plain_host(host), port=int(port))


def parse_url(value: object) -> str:
    """Return a base URL without its trailing slash; http or https, no credentials, no query."""
    if not isinstance(value, str):
        raise RefusedValueError(f"this is not a URL; {_URL_ALLOWED}")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise RefusedValueError(f"the host or the port of the URL is malformed; {_URL_ALLOWED}") from None
    # First of all, so that a URL with a password gets the one message that says where it belongs.
    if "@" in parts.netloc:
        raise RefusedValueError("credentials do not belong in the URL; use bearer_token_file")
    if parts.scheme not in ("http", "https") or not value.lower().startswith(f"{parts.scheme}://"):
        raise RefusedValueError(f"the URL does not start with http:// or https://; {_URL_ALLOWED}")
    if "?" in value or "#" in value:
        raise RefusedValueError(f"a query or a fragment does not belong in the URL; {_URL_ALLOWED}")
    # urlsplit drops tabs and line ends without a word.
    if _NOT_IN_A_URL.search(value):
        raise RefusedValueError(f"the URL holds a space or a control character; {_URL_ALLOWED}")
    host = _plain_host(parts.netloc if port is None else parts.netloc.rpartition(":")[0])
    if host is None or port == 0:
        raise RefusedValueError(f"the URL has no valid host; {_URL_ALLOWED}")
    if not _PATH.fullmatch(parts.path) or {".", ".."} & set(parts.path.split("/")):
        raise RefusedValueError(f"the path of the URL is malformed; {_URL_ALLOWED}")
    path = parts.path.rstrip("/")
    if path.endswith("/metrics"):
        raise RefusedValueError(f"the URL names a page; leave out /metrics; {_URL_ALLOWED}")
    netloc = f"[{host.lower()}]" if ":" in host else host.lower()
    return f"{parts.scheme}://{netloc}" + ("" if port is None else f":{port}") + path


def name_of_url(url: str) -> str:
    """Return host:port of a parsed URL: the name of a server that was given none."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or {'http': 80, 'https': 443}[parts.scheme]}"


def _plain_host(text: str) -> str | None:
    """Return a host name or an address without brackets; None where it is neither."""
    if text.startswith("[") and text.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(text[1:-1])) if "%" not in text else None
        except ValueError:
            return None
    return text if _HOST.fullmatch(text) else None
