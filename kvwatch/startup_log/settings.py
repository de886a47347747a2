"""The settings in a printed configuration: `key=value, key=value` and `{'key': value}`, cut off or not."""

from __future__ import annotations

import re

_OPENING, _CLOSING = "([{", ")]}"
_PART = re.compile(r"\s*['\"]?([A-Za-z_]\w*)['\"]?\s*[:=]\s*(.*?)\s*", re.DOTALL)
_MOST = 500
_LONGEST = 2000


def read_settings(text: str) -> dict[str, str]:
    """Return each setting of the outermost level as it was printed, strings without their quotes."""
    settings: dict[str, str] = {}
    for part in _parts(text):
        found = _PART.fullmatch(part)
        if found is not None and len(settings) < _MOST:
            settings.setdefault(found.group(1), _unquoted(found.group(2)))
    return settings


def _parts(text: str) -> list[str]:
    parts: list[str] = []
    begin, depth, quote = 0, 0, ""
    skip = False
    for at, sign in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = sign == "\\"
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in _OPENING:
            depth += 1
        elif sign in _CLOSING:
            depth -= 1
            if depth < 0:  # the end of the outermost bracket
                return [*parts, text[begin:at]]
        elif sign == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    # What is cut off in the middle of a value says nothing certain.
    return parts if depth or quote else [*parts, text[begin:]]


def _unquoted(value: str) -> str:
    value = value[: _LONGEST + 2]
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
