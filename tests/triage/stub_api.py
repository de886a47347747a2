"""An HTTP server that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

EMPTY = {"status": "success", "data": {"resultType": "matrix", "result": []}}


@dataclass
class Stub:
    """What is answered, and what was asked."""

    body: bytes = json.dumps(EMPTY).encode()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pause_seconds: float = 0.0
    url: str = ""
    paths: list[str] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    sent: list[dict[str, str]] = field(default_factory=list)

    def answer(self, document: object) -> None:
        """Answer with a document."""
        self.body = json.dumps(document).encode()


@contextlib.contextmanager
def stub_api() -> Iterator[Stub]:
    """Serve on 127.0.0.1 until the block ends."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            stub.paths.append(parts.path)
            stub.queries.append({name: values[0] for name, values in parse_qs(parts.query).items()})
            stub.sent.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(stub.status)
            for name, value in stub.headers.items():
                self.send_header(name, value)
            self.end_headers()
            half = len(stub.body) // 2
            with contextlib.suppress(OSError):
                self.wfile.write(stub.body[:half])
                self.wfile.flush()
                time.sleep(stub.pause_seconds)
                self.wfile.write(stub.body[half:])

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
