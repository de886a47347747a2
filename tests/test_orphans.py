"""An engine that outlives its server, through the real daemon: real processes, pynvml over the stand-in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.daemon import config, running
from tests.discovery.stand_ins import free_port
from tests.nvml_standin.build import write_scenario
from tests.replay import CAPTURES
from tests.test_devices import NVML, ledger, standin, two_cards

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

# `vllm serve`: a server, and the engine core that it forks, with the title that vLLM gives it.
PROGRAM = """
import ctypes, http.server, os, pathlib, sys, time
core = os.fork()
if core == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(15, b"VLLM::EngineCor")
    while True:
        time.sleep(60)
pathlib.Path(sys.argv[0] + ".core").write_text(str(core))
pages = PAGES
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = pathlib.Path(pages[self.path]).read_bytes() if self.path in pages else None
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""
PAGES = {
    "/metrics": str(CAPTURES / "vllm" / "0.32.0-idle.metrics"),
    "/v1/models": str(CAPTURES / "vllm" / "0.32.0-models.json"),
    "/version": str(CAPTURES / "vllm" / "0.32.0-version.json"),
}


async def test_an_engine_left_behind_becomes_an_orphan(tmp_path: Path) -> None:
    """Its bytes leave the server's part for one of their own, which names PID and server."""
    program, port = tmp_path / "vllm", free_port()
    program.write_text(PROGRAM.replace("PAGES", repr(PAGES), 1))
    words = [sys.executable, program, "serve", "tiny", "--port", str(port)]
    server = subprocess.Popen(words)  # noqa: ASYNC220 - returns at once
    scenario = tmp_path / "nvml.scn"
    core = 0
    try:
        text = config(f"servers: [{{name: s, url: 'http://127.0.0.1:{port}'}}]", nvml=NVML)
        write_scenario(scenario, two_cards())
        async with running(text, devices=standin(scenario)) as daemon:
            await daemon.until(lambda series: "kvwatch_requests_running" in series)
            core = int((tmp_path / "vllm.core").read_text())
            write_scenario(scenario, two_cards(f"proc gpu=0 pid={core} type=C used=500MiB"))
            held = await daemon.until(lambda series: ("s", "undivided") in ledger(series, "GPU-a"))
            assert ledger(held, "GPU-a")["s", "undivided"] == 500
            server.kill()
            server.wait()
            left = await daemon.until(lambda series: ("s", "orphan") in ledger(series, "GPU-a"), seconds=40)
            parts = ledger(left, "GPU-a")
            assert parts["s", "orphan"] == 500
            assert ("s", "undivided") not in parts
            assert sum(parts.values()) == 1000
            (labels,) = (dict(key) for key in left["kvwatch_process_info"])
            assert (labels["pid"], labels["server"], labels["match"]) == (str(core), "s", "none")
    finally:
        server.kill()
        server.wait()
        with contextlib.suppress(ProcessLookupError):
            if core:
                os.kill(core, signal.SIGKILL)
