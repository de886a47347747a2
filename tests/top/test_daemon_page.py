"""What a daemon answers, or whoever else is there: a document, or in words why there is none."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvwatch.top.daemon_page import Daemon
from kvwatch.top.origins import refresh_of
from tests.top.sights import rush

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Answer(http.server.BaseHTTPRequestHandler):
    """Answers as the first folder of the path says."""

    def do_GET(self) -> None:
        case = self.path.split("/")[1]
        if case == "secret" and self.headers.get("Authorization") != "Basic YWxpY2U6b3Blbg==":
            case = "401"
        if case == "slow":
            threading.Event().wait(0.5)
        if case == "garbage":
            self.wfile.write(b"\x00\xff no HTTP at all\r\n\r\n")
            return
        self.send_response(int(case) if case.isdigit() else 200)
        if case == "302":
            self.send_header("Location", "/good/api/v1/snapshot")
        self.end_headers()
        bodies = {
            "text": b"hello",
            "list": b"[]",
            "other": b'{"status": "ok"}',
            "deep": b"[" * 100_000,
            "half": b'{"servers": [',
            "digits": b'{"servers": ' + b"9" * 5000 + b"}",
        }
        self.wfile.write(bodies.get(case, json.dumps(rush()).encode()))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """Serve one folder for each way to answer."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "case, words",
    [
        ("401", "wants a password"),
        ("404", "is not kvwatch"),
        ("429", "asked too often"),
        ("503", "has not finished its first poll"),
        ("500", "HTTP 500"),
        ("302", "HTTP 302"),
        ("text", "has no snapshot"),
        ("list", "has no snapshot"),
        ("other", "has no snapshot"),
        ("deep", "has no snapshot"),
        ("half", "has no snapshot"),
        ("digits", "has no snapshot"),
        ("garbage", "is not kvwatch"),
        ("slow", "does not answer within 0.2 s"),
        ("secret", "wants a password"),
    ],
)
def test_what_is_no_snapshot_is_told_in_words(host: str, case: str, words: str) -> None:
    """Each other answer is a sentence of its own; a redirect is not followed."""
    answer = Daemon(url=f"{host}/{case}").snapshot(timeout_seconds=0.2 if case == "slow" else 5.0)
    assert isinstance(answer, str)
    assert words in answer


def test_snapshot_is_read_with_the_password_of_the_file(host: str, tmp_path: Path) -> None:
    """The document comes through a path before it; the password is read anew each time."""
    file = tmp_path / "password"
    daemon = Daemon(url=f"{host}/secret", user="alice", password_file=file)
    assert "--password-file cannot be read (No such file" in str(daemon.snapshot(timeout_seconds=5.0))
    file.write_text("shut\n", encoding="utf-8")
    assert "wants a password" in str(daemon.snapshot(timeout_seconds=5.0))
    file.write_text("open\n", encoding="utf-8")
    answer = daemon.snapshot(timeout_seconds=5.0)
    assert isinstance(answer, dict)
    assert [server["target"]["name"] for server in answer["servers"]] == ["chat", "embedding"]


def test_closed_port_and_wrong_protocol_are_told_in_words(host: str) -> None:
    """Nobody there, or somebody who speaks no TLS: the sentence says which."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = Daemon(url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert (
            closed.snapshot(timeout_seconds=5.0)
            == "kvwatch does not answer (unreachable: Connection refused)"
        )
    plain = Daemon(url=host.replace("http:", "https:")).snapshot(timeout_seconds=5.0)
    assert "TLS is refused" in str(plain)
    missing = Daemon(url="https://127.0.0.1:1", ca_file=Path("/nowhere.pem"))
    assert "--ca-file or --password-file cannot be read" in str(missing.snapshot(timeout_seconds=5.0))


@pytest.mark.parametrize(
    "interval, refresh", [(0.2, 1.0), (3, 3.0), (600, 5.0), (None, 1.0), ("x", 1.0), (-1, 1.0)]
)
def test_daemon_is_asked_as_often_as_it_polls(interval: object, refresh: float) -> None:
    """Neither oftener than each second nor seldomer than each 5 s, so that silence is soon noticed."""
    assert refresh_of(interval) == refresh
