"""Servers for the scenes: captured pages with other numbers, and programs that hold memory of a card."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.replay import CAPTURES, Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

METRICS = "/metrics"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
WAITING_FOR_CAPACITY = 'vllm:num_requests_waiting_by_reason.*reason="capacity"'
USAGE, PREEMPTIONS = "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total"

# `vllm serve`: a server, and the engine core that it forks, with the title that vLLM gives it. It says the
# core's PID and its own port. The core outlives a server that is killed, and ends by itself some time later.
_PROGRAM = """
import ctypes, http.server, os, pathlib, sys, time
core = os.fork()
if core == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(15, b"VLLM::EngineCor")
    os.close(1)
    time.sleep(600)
    os._exit(0)
pages = PAGES
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = pathlib.Path(pages[self.path]).read_bytes() if self.path in pages else None
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(core, server.server_address[1], flush=True)
server.serve_forever()
"""


def stating(answer: Answer, values: Mapping[str, float]) -> Answer:
    """Return a page whose series, by a pattern of their beginning, have other values; all must be there."""
    body = answer.body.decode()
    for series, value in values.items():
        body, count = re.subn(rf"^({series}[^ ]*) .*$", rf"\g<1> {value}", body, flags=re.MULTILINE)
        assert count, series
    return replace(answer, body=body.encode())


def waiting(count: int) -> dict[str, float]:
    """Return what a page says of so many requests that wait for capacity."""
    return {rf"{WAITING}\{{": count, WAITING_FOR_CAPACITY: count}


class Engine:
    """A server's process, and its engine's, which holds memory of a card."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, core: int) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{port}"
        self.core = core
        """PID of the engine core."""

    async def kill(self) -> None:
        """End the server and leave the engine core behind."""
        self._process.kill()
        await self._process.wait()


@contextlib.asynccontextmanager
async def engine(folder: Path, *, share: float) -> AsyncIterator[Engine]:
    """Run a vLLM that was told a share of its card and no pin; its page is a captured one otherwise."""
    folder.mkdir()  # noqa: ASYNC240 - a test's own folder
    captures = CAPTURES / "vllm"
    page = (captures / "0.32.0-idle.metrics").read_text()
    flags = {"gpu_memory_utilization": share, "kv_cache_memory_bytes": None, "num_gpu_blocks_override": None}
    for label, value in flags.items():
        page, count = re.subn(rf'{label}="[^"]*"', f'{label}="{value}"', page)
        assert count == 1, label
    (folder / "metrics").write_text(page)
    pages = {
        METRICS: str(folder / "metrics"),
        "/v1/models": str(captures / "0.32.0-models.json"),
        "/version": str(captures / "0.32.0-version.json"),
    }
    program = folder / "vllm"
    program.write_text(_PROGRAM.replace("PAGES", repr(pages), 1))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, program, "serve", "tiny"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    core, port = (int(word) for word in (await process.stdout.readline()).split())
    try:
        yield Engine(process, port, core)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(core, signal.SIGKILL)
        await process.wait()
