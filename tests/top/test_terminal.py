"""The real command in a real terminal: keys, sizes, colours, signals, and the terminal as it was before."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.top.pane import KVWATCH, demo, pane
from tests.top.sights import rush

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.tmux

_COLOUR = re.compile(r"\x1b\[[\d;]*(?:3[0-8]|4[0-8]|9[0-7])[;m]")
_REVERSED = re.compile(r"\x1b\[(?:\d+;)*7m")
_AFTERWARDS = "stty -g > after; cmp before after && echo AS BEFORE"


@pytest.fixture(scope="module")
def noon() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the demo from its noon on: the chat server's pool fills up, requests wait."""
    with demo("--from", "11:59") as running:
        yield running


@pytest.fixture(scope="module")
def still() -> Iterator[str]:
    """Serve one document for ever, as a daemon would; its names try to write on the terminal."""
    document = json.dumps({**rush(), "interval_seconds": 3600.0}).replace(
        '"chat"', json.dumps("chat\x1b]0;owned\x07\x1b[2J\x1b[31m")
    )

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(document.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_on_call_over_ssh(noon: tuple[str, subprocess.Popen[str]], tmp_path: Path) -> None:
    """At 80x24 the server in trouble is first; keys lead where they say; the terminal is left as it was."""
    with pane(tmp_path) as shown:
        shown.type(f"cd {tmp_path}; stty -g > before; {KVWATCH} top --url {noon[0]}; echo status $?")
        full = shown.until("FULL: requests wait")
        lines = full.splitlines()
        assert len(lines) == 24
        assert lines[1].startswith("chat cannot take one more full-length request")
        assert re.match(r">[!* ]chat .*\[█+·?\] .*% +0 ", lines[lines.index(_heading(lines)) + 1])
        assert re.search(r"^\[a█+b▒+c█+d▒+.*·+\]$", full, flags=re.MULTILINE)
        shown.until("CRITICAL")
        assert _COLOUR.search(shown.text(colours=True))
        assert shown.format("alternate_on") == "1"
        assert shown.format("cursor_flag") == "0"

        shown.press("Down", "Enter")
        shown.until("\nembedding\n")
        shown.press("p")
        shown.until("\nchat\n")
        shown.press("End")
        shown.until("the end")
        shown.press("Escape")
        shown.until("SERVER")
        shown.press("/", "e", "m", "b")
        shown.until("1 of 2 servers")
        shown.press("Escape", "s")
        shown.until("s:sort name")
        shown.press("f")
        shown.until("waiting_pool_full")
        shown.press("?")
        shown.until("KEYS")
        shown.press("q", "q")
        shown.until("status 0")
        shown.type(_AFTERWARDS)
        shown.until("AS BEFORE")
        assert shown.format("alternate_on") == "0"
        assert shown.format("cursor_flag") == "1"


def _heading(lines: list[str]) -> str:
    return next(line for line in lines if "SERVER" in line)


def _drawn(text: str) -> bool:
    """Tell whether the whole of the still document's overview is there, not half of a frame."""
    return all(word in text for word in ("FULL: req", "reserved", "FINDINGS", "gave an answer"))


def test_every_size_of_the_window(still: str, tmp_path: Path) -> None:
    """A window that changes its size is drawn anew at once, down to nearly nothing and back."""
    with pane(tmp_path) as shown:
        shown.type(f"{KVWATCH} top --url {still}")
        shown.until("FULL: req")
        for columns, rows, told in (
            (60, 20, "FULL: requests"),
            (200, 50, "GUARANTEED"),
            (20, 5, "SERVER"),
            (2, 1, ""),
            (80, 24, "u:unknown"),
        ):
            shown.tmux("resize-window", "-x", str(columns), "-y", str(rows))
            text = shown.until(
                lambda text, told=told, rows=rows: told in text and len(text.splitlines()) == rows, seconds=5
            )
            assert max(map(len, text.splitlines())) <= columns


def test_hostile_names_do_not_write_on_the_terminal(still: str, tmp_path: Path) -> None:
    """A server named with escape sequences is shown with them as text; the window's title stays."""
    with pane(tmp_path) as shown:
        title = shown.format("pane_title")
        shown.type(f"{KVWATCH} top --url {still}")
        text = shown.until("\\x1b]0;")
        assert "FINDINGS" in text
        assert shown.format("pane_title") == title
        assert "owned" not in shown.format("pane_title")


def test_reversed_row_ends_with_itself(still: str, tmp_path: Path) -> None:
    """The selected row is reversed to its last cell, and the row below it in none."""
    with pane(tmp_path) as shown:
        shown.type(f"{KVWATCH} top --url {still}")
        shown.until(_drawn)
        coloured = shown.text(colours=True).splitlines()
        below = next(at for at, line in enumerate(coloured) if "embedding" in line)
        assert _REVERSED.search(coloured[below - 1])
        assert not _REVERSED.search(coloured[below])


@pytest.mark.parametrize(
    "environment, options, colours, only_ascii",
    [
        ({"NO_COLOR": "1"}, "", False, False),
        ({"TERM": "vt100"}, "", False, False),
        ({}, "--color never --glyphs ascii", False, True),
        ({"LANG": "C"}, "", True, True),
        ({"LANG": ""}, "--glyphs utf-8", True, False),
        ({"TERM": "some-terminal-of-next-year"}, "", True, False),
    ],
)
def test_poor_terminals(
    still: str, tmp_path: Path, environment: dict[str, str], options: str, *, colours: bool, only_ascii: bool
) -> None:
    """Without colours, without Unicode, with a type that this machine does not know: all is said."""
    with pane(tmp_path, environment=environment) as shown:
        shown.type(f"{KVWATCH} top --url {still} {options}")
        text = shown.until(_drawn)
        assert bool(_COLOUR.search(shown.text(colours=True))) is colours
        assert text.isascii() is only_ascii
        assert re.search(r"^\[a.+b.+c.+d.+\]$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminal_is_left_as_it_was_after_a_signal(
    still: str, tmp_path: Path, number: signal.Signals
) -> None:
    """A signal ends the view, its number in the status, and the shell goes on as before."""
    with pane(tmp_path) as shown:
        shown.type(f"cd {tmp_path}; stty -g > before; {KVWATCH} top --url {still}; echo status $?")
        shown.until("FULL: req")
        os.kill(shown.pid_of_top(), number)
        shown.until(f"status {128 + number}")
        shown.type(_AFTERWARDS)
        shown.until("AS BEFORE")
        assert shown.format("alternate_on") == "0"


def test_terminal_is_left_as_it_was_after_an_error(tmp_path: Path) -> None:
    """An error anywhere is read on the shell's own screen."""
    script = tmp_path / "error.py"
    script.write_text(
        "from kvwatch.top.glyphs import ASCII\nfrom kvwatch.top.terminal import Terminal\n"
        "with Terminal(ASCII, colour=True):\n    raise RuntimeError('bang')\n",
        encoding="utf-8",
    )
    with pane(tmp_path) as shown:
        shown.type(f"cd {tmp_path}; stty -g > before; {shlex.quote(sys.executable)} {script}")
        shown.until("RuntimeError: bang")
        shown.type(_AFTERWARDS)
        shown.until("AS BEFORE")
        assert shown.format("alternate_on") == "0"


def test_suspended_and_continued(still: str, tmp_path: Path) -> None:
    """Ctrl-Z gives the shell back, fg the view, as often as one likes."""
    with pane(tmp_path) as shown:
        shown.type(f"cd {tmp_path}; stty -g > before; {KVWATCH} top --url {still}; echo status $?")
        for _ in range(2):
            shown.until("FULL: req")
            shown.press("C-z")
            shown.until("Stopped")
            assert shown.format("alternate_on") == "0"
            shown.type(f"clear; {_AFTERWARDS}")
            shown.until("AS BEFORE")
            shown.type("clear; fg")
        shown.until("FULL: req")
        shown.press("C-c")
        shown.until("$")
        assert shown.format("alternate_on") == "0"


def test_polls_of_its_own(tmp_path: Path) -> None:
    """Without --url it polls what the configuration names; what does not answer is said, with the reason."""
    config = tmp_path / "kvwatch.yaml"
    config.write_text(
        "discovery: false\nnvml: {enabled: false}\ninterval: 1s\n"
        "servers:\n  - {name: chat, url: 'http://127.0.0.1:1'}\n",
        encoding="utf-8",
    )
    with pane(tmp_path) as shown:
        shown.type(f"{KVWATCH} top --config {config}; echo status $?")
        text = shown.until("NO ANSWER: ")
        assert "chat does not answer: unreachable" in text
        assert "No card: reading NVML is switched off" in text
        shown.press("q")
        shown.until("status 0")


@pytest.mark.parametrize(
    "options, told",
    [
        ("--url http://127.0.0.1:1", "needs a terminal"),
        ("--url http://127.0.0.1:1 --no-discovery", "has its own configuration"),
        ("--ca-file x", "belong to --url"),
        ("--url http://127.0.0.1:1 --user x", "belong together"),
        ("--config /nowhere.yaml", "/nowhere.yaml"),
    ],
)
def test_what_cannot_be_is_refused_in_words(options: str, told: str) -> None:
    """Without a terminal, or with options that contradict each other, it says so and ends with status 2."""
    command = [sys.executable, "-m", "kvwatch", "top", *options.split()]
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "\x1b" not in ended.stdout + ended.stderr


def test_terminal_that_cannot_place_text_is_refused_in_words(tmp_path: Path) -> None:
    """On a dumb terminal it says what to use in place of it."""
    with pane(tmp_path, environment={"TERM": "dumb"}) as shown:
        shown.type(f"{KVWATCH} top --url http://127.0.0.1:1; echo status $?")
        assert "kvwatch once" in shown.until("status 2")


def test_daemon_that_goes_is_told_loudly(noon: tuple[str, subprocess.Popen[str]], tmp_path: Path) -> None:
    """A daemon that is ended: within seconds the view says so, and no figure stands as current.

    The last test of the file: it ends what the first one looks at.
    """
    url, process = noon
    with pane(tmp_path) as shown:
        shown.type(f"{KVWATCH} top --url {url}")
        shown.until("embedding")
        process.terminate()
        text = shown.until("STALE: kvwatch does not answer (unreachable")
        assert "NOT current" in text
        assert "was: " in text
        assert re.search(r"embedding +\([█·]+\) +\([\d.]+%\)", text)
