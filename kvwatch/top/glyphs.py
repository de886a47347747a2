"""The characters of bars and marks: Unicode blocks, or ASCII where the terminal may not have them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.top.cells import Style

if TYPE_CHECKING:
    from collections.abc import Mapping

STYLES: Mapping[str, Style] = {
    "kv_cache": Style.KV_CACHE,
    "weights": Style.WEIGHTS,
    "weights_and_working": Style.WEIGHTS,
    "undivided": Style.WEIGHTS,
    "working": Style.WORKING,
    "other": Style.OTHER,
    "unattributed": Style.OTHER,
    "orphan": Style.ORPHAN,
    "reserved": Style.RESERVED,
    "free": Style.FREE,
    "unknown": Style.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """One set of characters; each takes one cell."""

    ascii_only: bool
    used: str
    rest: str
    """Of a pool that is not used."""
    cut: str
    """Where text was left out."""
    dot: str
    """Between two facts."""
    fills: Mapping[str, str]
    """Component -> how its part of a bar is filled: parts differ without any colour."""

    def fill(self, component: str) -> str:
        """Return the fill of a component; of one that this version does not know that of `other`."""
        return self.fills.get(component, self.fills["other"])

    def shown(self, text: str) -> str:
        """Return a text in characters that this set may use."""
        if not self.ascii_only or text.isascii():
            return text
        return text.encode("ascii", "backslashreplace").decode("ascii")


UNICODE = Glyphs(
    ascii_only=False,
    used="█",
    rest="·",
    cut="…",
    dot="·",
    fills={
        "kv_cache": "█",
        "weights": "▒",
        "weights_and_working": "▒",
        "undivided": "▒",
        "working": "░",
        "other": "o",
        "unattributed": "~",
        "orphan": "!",
        "reserved": "-",
        "free": "·",
        "unknown": "?",
    },
)
ASCII = Glyphs(
    ascii_only=True,
    used="#",
    rest=".",
    cut="~",
    dot="-",
    fills={
        "kv_cache": "#",
        "weights": "=",
        "weights_and_working": "=",
        "undivided": "=",
        "working": ":",
        "other": "o",
        "unattributed": "~",
        "orphan": "!",
        "reserved": "-",
        "free": ".",
        "unknown": "?",
    },
)
