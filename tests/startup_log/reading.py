"""Read text or a file of these tests as `kvwatch log` reads it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvwatch.startup_log.document import start_document
from kvwatch.startup_log.reading import read_log

if TYPE_CHECKING:
    from kvwatch.startup_log.facts import Log, Start

LOGS = Path(__file__).with_name("logs")
GIB, MIB = 1 << 30, 1 << 20


def read(text: str | bytes) -> Log:
    """Read a log that a test holds."""
    content = text.encode() if isinstance(text, str) else text
    return read_log(io.BufferedReader(io.BytesIO(content)))  # type: ignore[arg-type]


def read_file(path: Path) -> Log:
    """Read a log of a file."""
    with path.open("rb") as stream:
        return read_log(stream)


def only(log: Log) -> Start:
    """Return the one start of a log."""
    (start,) = log.starts
    return start


def documents(text: str | bytes) -> list[dict[str, Any]]:
    """Return a log's starts as the JSON has them."""
    return [start_document(start) for start in read(text).starts]


def gib(value: float) -> int:
    """Return the bytes of a printed number of GiB."""
    return round(value * GIB)


def mib(value: float) -> int:
    """Return the bytes of a printed number of MiB."""
    return round(value * MIB)
