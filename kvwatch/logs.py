"""The daemon's log: one line an event on standard error, as logfmt or JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal


def set_up_logging(style: Literal["logfmt", "json"], level: str) -> None:
    """Send all records of at least `level` to standard error in the given style."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(style))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request as information


class _Formatter(logging.Formatter):
    def __init__(self, style: Literal["logfmt", "json"]) -> None:
        super().__init__()
        self._shape = style

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if self._shape == "json":
            return _json(fields)
        return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())


def _quoted(value: str) -> str:
    """Quote as logfmt readers expect; foreign text cannot start a line of its own."""
    plain = value.isprintable() and not any(character in value for character in ' "=')
    return value if plain and value else _json(value)


def _json(value: str | dict[str, str]) -> str:
    """Return JSON that a terminal shows as it is: what it could take for a command is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
