"""A log is the same log however it was carried: containers, journald, kubectl, colours, JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.replay import CAPTURES
from tests.startup_log.reading import documents, only, read
from tests.startup_log.vllm_prints import v1_log

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = v1_log("0.28.0").splitlines()
LLAMA = (CAPTURES / "llamacpp" / "b11434-split-startup.log").read_text().splitlines()[:160]
CYAN, RESET = "\x1b[1;36m", "\x1b[0;0m"


def _coloured(line: str) -> str:
    """Colour the process as vLLM does."""
    head, bracket, rest = line.partition(") ")
    return f"{CYAN}{head}{bracket.rstrip()}{RESET} {rest}"


CARRIERS: dict[str, Callable[[str], str]] = {
    "docker logs --timestamps": lambda line: f"2026-11-30T20:01:15.123456789Z {line}",
    "docker json-file": lambda line: json.dumps(
        {"log": line + "\n", "stream": "stderr", "time": "2026-11-30T20:01:15.1Z"}
    ),
    "docker json-file, coloured": lambda line: json.dumps(
        {"log": _coloured(line) + "\n", "stream": "stdout"}
    ),
    "docker compose": lambda line: f"chat-1  | {line}",
    "docker compose, coloured": lambda line: f"{CYAN}chat-1  |{RESET} {_coloured(line)}",
    "docker compose --timestamps": lambda line: f"chat-1  | 2026-11-30T20:01:15.123456789Z {line}",
    "kubectl --prefix --timestamps": lambda line: (
        f"[pod/chat-0/vllm] 2026-11-30T20:01:15.123456789+08:00 {line}"
    ),
    "a CRI file": lambda line: f"2026-11-30T20:01:15.123456789Z stdout F {line}",
    "journalctl": lambda line: f"Nov 30 20:01:15 node7 vllm[4711]: {line}",
    "journalctl, precise": lambda line: f"Nov 30 20:01:15.123456 node7 vllm[4711]: {line}",
    "journalctl -o short-iso": lambda line: f"2026-11-30T20:01:15+0000 node7 vllm-chat[4711]: {line}",
    "journalctl -o short-monotonic": lambda line: f"[  123.456789] node7 vllm[4711]: {line}",
    "journalctl -o json": lambda line: json.dumps(
        {"MESSAGE": line, "_SYSTEMD_UNIT": "chat.service", "PRIORITY": "6"}
    ),
    "journalctl -o json, bytes": lambda line: json.dumps({"MESSAGE": list(_coloured(line).encode())}),
    "rsyslog, colours escaped": lambda line: (
        "Nov 30 20:01:15 node7 vllm[4711]: " + _coloured(line).replace("\x1b", "#033")
    ),
    "a terminal's frame": lambda line: f"│ {line}      │",
    "coloured": _coloured,
    "Windows line ends": lambda line: line + "\r",
    "indented": lambda line: "        " + line,
}


@pytest.mark.parametrize("name", CARRIERS)
def test_vllm(name: str) -> None:
    """Nothing of a vLLM start is lost or changed."""
    (carried,) = documents("\n".join(CARRIERS[name](line) for line in LOG))
    (plain,) = documents("\n".join(LOG))
    assert _without_origin(carried) == _without_origin(plain)


@pytest.mark.parametrize("name", CARRIERS)
def test_llamacpp(name: str) -> None:
    """Nothing of a llama-server's start is lost or changed; its lines have no parenthesis to colour."""
    (carried,) = documents("\n".join(CARRIERS[name](line) for line in LLAMA))
    (plain,) = documents("\n".join(LLAMA))
    assert _without_origin(carried) == _without_origin(plain)


def _without_origin(document: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in document.items() if key not in ("source", "moment", "line")}


def test_two_services_of_one_compose_file() -> None:
    """Lines of two servers that alternate are kept apart by their names."""
    chat, embed = v1_log("0.28.0").splitlines(), v1_log("0.26.0").splitlines()
    mixed = [
        f"{name}  | {line}"
        for pair in zip(chat, embed, strict=False)
        for name, line in zip(("chat-1", "embed-1"), pair, strict=True)
    ]
    starts = {start.source: start.version for start in read("\n".join(mixed)).starts}
    assert starts == {"chat-1": "0.28.0", "embed-1": "0.26.0"}


def test_json_lines_of_a_logger() -> None:
    """A logger that writes JSON has the message under `message`."""
    lines = [
        json.dumps(
            {"asctime": "2026-11-30 20:01:15,123", "levelname": "INFO", "message": line.split("] ", 1)[-1]}
        )
        for line in LOG
    ]
    (start,) = documents("\n".join(lines))
    assert (start["kv_tokens"], start["suggested_pin_bytes"]) == (74_704, 9_098_455_040)


def test_llama_servers_json_of_2024() -> None:
    """Builds of 2024 logged JSON, with the numbers beside the message."""
    lines = [
        {"timestamp": 1705364471, "level": "INFO", "function": "main", "line": 2864, "message": "build info",
         "build": 1879, "commit": "3e5ca793"},
        {"function": "initialize", "message": "initializing slots", "n_slots": 4},
        {"function": "initialize", "message": "new slot", "slot_id": 0, "n_ctx_slot": 2048},
        {"function": "main", "message": "model loaded"},
    ]  # fmt: skip
    start = only(read("\n".join(json.dumps(line) for line in lines)))
    assert (start.version, start.ready, start.max_model_len) == ("b1879", True, 2048)
    assert start.slots is not None
    assert start.slots.count == 4


def test_utf16() -> None:
    """PowerShell's redirection writes UTF-16."""
    text = "\r\n".join(LOG)
    (start,) = documents(b"\xff\xfe" + text.encode("utf-16-le"))
    assert start["kv_tokens"] == 74_704


def test_progress_bars() -> None:
    """A bar that overwrites itself with carriage returns shares its line with the next message."""
    text = "\n".join(LOG).replace(
        "(EngineCore pid=90) INFO 11-30 20:01:15 [gpu_model_runner.py:1] Graph",
        "Capturing: 50%|###  |\rCapturing: 100%|#####|\r(EngineCore pid=90) INFO 11-30 20:01:15"
        " [x.py:1] Graph",
    )
    (start,) = documents(text)
    assert start["graphs_bytes"] == 1 << 29
