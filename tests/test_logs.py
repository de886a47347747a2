"""The daemon's log lines."""

from __future__ import annotations

import json
import logging

import pytest

from kvwatch.logs import _Formatter, set_up_logging


def line(style: str, message: str, *arguments: object, error: Exception | None = None) -> str:
    """Return the line of one record, made at the beginning of time."""
    record = logging.LogRecord(
        "kvwatch.health", logging.WARNING, "f.py", 1, message, arguments,
        (type(error), error, None) if error else None,
    )  # fmt: skip
    record.created = 0.0
    return _Formatter(style).format(record)  # type: ignore[arg-type]


def test_logfmt() -> None:
    """One line of key=value, quoted only where it must be."""
    assert line("logfmt", "engine %s: %s", "chat", "timeout") == (
        'ts=1970-01-01T00:00:00.000+00:00 level=warning logger=kvwatch.health msg="engine chat: timeout"'
    )
    assert line("logfmt", "stopped").endswith(" msg=stopped")
    assert line("logfmt", "").endswith(' msg=""')


def test_json() -> None:
    """One object, with the exception where there is one."""
    document = json.loads(line("json", "größer als %d", 5, error=ValueError("no\nnumber")))
    assert document == {
        "ts": "1970-01-01T00:00:00.000+00:00",
        "level": "warning",
        "logger": "kvwatch.health",
        "msg": "größer als 5",
        "exception": "ValueError: no\nnumber",
    }
    assert "größer" in line("json", "größer")


FOREIGN = [
    "a\nlevel=error msg=forged", "a\r\nb", "tab\there", 'quote " and = sign', "back\\slash", "\x1b[2J",
    "\x9b2J", "\u2028next", "\x85next", "\x00", "\u202etxt.exe",
]  # fmt: skip


@pytest.mark.parametrize("style", ["logfmt", "json"])
@pytest.mark.parametrize("text", FOREIGN)
def test_foreign_text_starts_no_line_and_commands_no_terminal(style: str, text: str) -> None:
    """What a server wrote stays inside its value and can be read back."""
    got = line(style, "%s", text)
    assert got.isprintable()
    message = json.loads(got)["msg"] if style == "json" else got.partition(" msg=")[2]
    if style == "logfmt" and message.startswith('"'):
        message = json.loads(message)
    assert message == text


def test_requests_that_worked_are_not_logged() -> None:
    """The client logs each request as information; the daemon makes many."""
    root, httpx = logging.getLogger(), logging.getLogger("httpx")
    before = (root.handlers[:], root.level, httpx.level)
    try:
        set_up_logging("logfmt", "info")
        assert (root.level, len(root.handlers)) == (logging.INFO, 1)
        assert not httpx.isEnabledFor(logging.INFO)
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        httpx.setLevel(before[2])
