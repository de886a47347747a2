"""Take a log line out of what carried it: containers, journald, kubectl, JSON, vLLM's own header."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvwatch.startup_log.lines import without_colours

if TYPE_CHECKING:
    from collections.abc import Callable

_DEEPEST = 6
_MAX_NAME = 100
_HEADER_WITHIN = 600

# vLLM: `INFO 11-30 18:15:18 [core.py:133] ` since 0.7.3, `INFO 01-14 12:36:51 model_runner.py:1099] ` before.
_HEADER = re.compile(
    r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL) +(\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? "
    r"\[?[\w./<>-]+:\d+\] ?"
)
# The process that wrote a line: `(EngineCore_DP0 pid=12)`, `(VllmWorker rank=0 pid=12)`, Ray's with `ip=`.
_PROCESS = re.compile(r"\(([A-Za-z][\w.:-]*)((?: \w+=[\w.]+)*?) ?pid=(\d+)(?:, ip=([\w.:]+))?\)\s?")
_COMPOSE = re.compile(r"([A-Za-z0-9][\w.-]{0,80}) +\| ?(.*)", re.DOTALL)
_KUBECTL = re.compile(r"\[(pod/[^\]\s]{1,200})\] (.*)", re.DOTALL)
_TIME = re.compile(
    r"\[?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\]?\s+(.*)", re.DOTALL
)
_CRI = re.compile(r"(?:stdout|stderr) [FP] (.*)", re.DOTALL)
_JOURNAL = re.compile(
    r"(?:(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d+)? |\[ *\d+\.\d+\] |(?P<iso>(?=\S+"
    r" [^\s\[]+\[\d+\]: )))(?P<host>[\w.-]+) (?P<unit>[^\s:\[\](){}]{1,100})(?:\[\d+\])?: ?(?P<text>.*)",
    re.DOTALL,
)
_ROUTED = re.compile(r"\[ ?(\d{4,5})\] (?=\d+\.\d\d\.\d|[a-z])(.*)", re.DOTALL)
_BOXED = re.compile(r"^\s*│\s?(.*?)\s*│?\s*$", re.DOTALL)
_NAMES = ("_SYSTEMD_UNIT", "CONTAINER_NAME", "container_name", "pod")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of an engine, and where it came from."""

    number: int
    """Of the line in the file, from 1."""
    source: str
    """The container, pod, unit or child that the line is of; empty where nothing says."""
    process: str
    """Tells the processes of one engine apart; empty where nothing says."""
    name: str
    """What the engine calls that process."""
    level: str | None
    """None for a line without vLLM's header."""
    moment: str | None
    text: str


def unwrap(number: int, line: str) -> Entry:
    """Return a line of a log without everything that was put before it."""
    text = without_colours(line)
    source, moment = "", None
    for _ in range(_DEEPEST):
        for take in _WRAPPERS:
            taken = take(text)
            if taken is not None:
                inner, name, time = taken
                source = name or source
                moment = moment or time
                text = inner
                break
        else:
            break
    header = _HEADER.search(text, 0, _HEADER_WITHIN)
    level = None
    before = text
    if header is not None:
        level, moment = header.group(1), header.group(2)
        before, text = text[: header.start()], text[header.end() :]
    process, name = "", ""
    found = _PROCESS.match(before) if header is None else _PROCESS.search(before)
    while found is not None:
        process = found.group(3) if found.group(4) is None else f"{found.group(3)}@{found.group(4)}"
        name = (found.group(1) + found.group(2))[:_MAX_NAME]
        if header is None:
            text = text[found.end() :]
            found = _PROCESS.match(text)
        else:
            found = _PROCESS.search(before, found.end())
    return Entry(
        number=number,
        source=source,
        process=process,
        name=name,
        level=level,
        moment=moment,
        text=text.strip(),
    )


_Taken = tuple[str, str | None, str | None]


def _json(text: str) -> _Taken | None:
    """Take the message out of Docker's json-file, `journalctl -o json` and loggers that write JSON."""
    if not text.startswith("{"):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    name = next((fields[key] for key in _NAMES if isinstance(fields.get(key), str)), None)
    time = next((fields[key] for key in ("time", "asctime") if isinstance(fields.get(key), str)), None)
    for key in ("log", "MESSAGE", "message", "msg"):
        inner = _words(fields[key], fields) if key in fields else None
        if inner is not None and not inner.startswith("{"):
            return without_colours(inner).rstrip("\n"), name and name[:_MAX_NAME], time and time[:_MAX_NAME]
    return None


def _words(message: Any, fields: dict[str, Any]) -> str | None:
    """Return a message as text; journald writes bytes that are no text as a list of numbers."""
    if isinstance(message, list):
        try:
            return bytes(message).decode(errors="replace")
        except (TypeError, ValueError):
            return None
    if not isinstance(message, str):
        return None
    # llama-server's JSON of 2024 says the numbers beside the message: {"message":"build info","build":1879}.
    function = fields.get("function")
    if not isinstance(function, str):
        return message
    beside = (f"{key}={value}" for key, value in fields.items() if isinstance(value, str | int | float))
    return f"{function}: {message}: {' '.join(beside)}"


def _compose(text: str) -> _Taken | None:
    found = _COMPOSE.match(text)
    return found and (found.group(2), found.group(1), None)


def _kubectl(text: str) -> _Taken | None:
    found = _KUBECTL.match(text)
    return found and (found.group(2), found.group(1), None)


def _time(text: str) -> _Taken | None:
    """Take a timestamp as containers and journald write it, with the stream's name of a CRI file."""
    found = _TIME.match(text)
    if found is None:
        return None
    stream = _CRI.match(found.group(2))
    return (found.group(2) if stream is None else stream.group(1)), None, found.group(1)


def _journal(text: str) -> _Taken | None:
    found = _JOURNAL.match(text)
    return found and (found["text"], found["unit"], found["time"])


def _routed(text: str) -> _Taken | None:
    """Take the port that llama-server's router puts before each line of a child."""
    found = _ROUTED.match(text)
    return found and (found.group(2), f"port {found.group(1)}", None)


def _boxed(text: str) -> _Taken | None:
    """Take the frame that terminal viewers draw."""
    if "│" not in text:
        return None
    found = _BOXED.match(text)
    return found and (found.group(1), None, None)


_WRAPPERS: tuple[Callable[[str], _Taken | None], ...] = (
    _json,
    _boxed,
    _kubectl,
    _time,
    _journal,
    _compose,
    _routed,
)
