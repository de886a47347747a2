"""The real daemon beside a llama-server, and a witness between them that writes down what it asks for."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from load import HOST, exchange
from watched import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERVAL_SECONDS = 0.2
PATIENCE_SECONDS = 20.0


class Witness:
    """A server in front of an engine that forwards GET requests and remembers their paths."""

    def __init__(self, port: int) -> None:
        self.asked: list[str] = []
        witness = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                witness.asked.append(self.path)
                try:
                    status, body = exchange(port, "GET", self.path, timeout=PATIENCE_SECONDS)
                except (OSError, http.client.HTTPException):
                    status, body = 502, b""
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                with contextlib.suppress(ConnectionError):  # the daemon was stopped meanwhile
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class Daemon:
    """The daemon at work on one server."""

    def __init__(self, url: str, witness: Witness, log: Path) -> None:
        self.url, self.witness, self.log = url, witness, log

    def text(self) -> str:
        """Return the exposition."""
        port = int(self.url.rpartition(":")[2])
        return exchange(port, "GET", "/metrics", timeout=5)[1].decode()

    def value(self, name: str) -> float | None:
        """Return a series' value, None when it is absent."""
        return value_of(self.text(), f"kvwatch_{name}")

    def until(self, condition: Callable[[], bool], *, seconds: float = 30.0) -> bool:
        """Wait for a condition; return whether it came true."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(INTERVAL_SECONDS / 4)
        return True

    def polls(self, count: int) -> list[str]:
        """Wait for so many more polls and return the paths asked for meanwhile."""
        before = len(self.witness.asked)
        self.until(lambda: self.witness.asked[before:].count("/props") > count)
        return self.witness.asked[before:]

    def sampled(self, names: tuple[str, ...], over: Callable[[], bool]) -> list[dict[str, float | None]]:
        """Read some series until something is over."""
        samples = []
        while not over():
            text = self.text()
            samples.append({name: value_of(text, f"kvwatch_{name}") for name in names})
            time.sleep(INTERVAL_SECONDS / 2)
        return samples


@contextlib.contextmanager
def watching(port: int, options: str = "") -> Iterator[Daemon]:
    """Run the daemon on the engine at a port; `options`: YAML of the server, its engine is found out."""
    witness = Witness(port)
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "kvwatch.yaml", Path(folder) / "log"
        file.write_text(
            f"listen: 127.0.0.1:0\ninterval: {INTERVAL_SECONDS * 1000:.0f}ms\nnvml: {{enabled: false}}\n"
            "discovery: false\nhistory: off\n"
            f"servers: [{{name: s, url: 'http://127.0.0.1:{witness.port}'{options}}}]\n"
        )
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "kvwatch", "run", "--config", str(file)], stderr=output
            )
        try:
            for _ in range(200):
                if found := re.search(r"listens on (\S+)/", log.read_text()):
                    break
                time.sleep(0.1)
            else:
                raise SystemExit(log.read_text())
            yield Daemon(found.group(1), witness, log)
        finally:
            process.terminate()
            process.wait()
            witness.close()
