"""Inference servers for the benchmark: each replays a captured vLLM page in a process of its own.

    python bench/fleet.py SERVERS WORKERS

prints one line, a JSON list of {"url", "pid", "workers"}, and runs until its standard input ends. Each
server has WORKERS idle child processes, as a vLLM server has: they are the ones that hold a GPU. SIGUSR1
makes a server hang at /metrics, SIGUSR2 heals it. /asked says how often /metrics was asked.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.replay import Answer, Replay, vllm_pages

if TYPE_CHECKING:
    from typing import TextIO

STATE = "after-load"
PR_SET_PDEATHSIG = 1
COUNT_SECONDS = 0.05
KEEPALIVE_SECONDS = 0.4
"""At the usual interval of 5 s every poll connects anew; polls a second apart shall, too."""


def main(servers: int, workers: int) -> None:
    """Fork the servers, say where they are, and wait."""
    starting = [start_server(workers) for _ in range(servers)]
    print(json.dumps([json.loads(read.readline()) for read in starting]), flush=True)
    sys.stdin.read()


def start_server(workers: int) -> TextIO:
    """Fork one server; return the pipe on which it says where it is."""
    readable, writable = os.pipe()
    if fork() == 0:
        os.close(readable)
        pids = [start_worker() for _ in range(workers)]
        asyncio.run(serve(pids, writable))
        os._exit(0)
    os.close(writable)
    return os.fdopen(readable)


def start_worker() -> int:
    """Fork a process that does nothing; return its PID."""
    pid = fork()
    if pid == 0:
        while True:
            signal.pause()
    return pid


def fork() -> int:
    """Fork a process that ends with its parent."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return pid


async def serve(workers: list[int], say: int) -> None:
    """Replay the pages until killed."""
    replay = Replay(vllm_pages(STATE))
    healthy = replay.pages["/metrics"]
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, put, replay, Answer(hang=True))
    loop.add_signal_handler(signal.SIGUSR2, put, replay, healthy)
    app = web.Application()
    app.router.add_get("/{path:.*}", replay.handle)
    runner = web.AppRunner(app, keepalive_timeout=KEEPALIVE_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    os.write(say, json.dumps({"url": url, "pid": os.getpid(), "workers": workers}).encode() + b"\n")
    while True:
        replay.pages["/asked"] = Answer(str(replay.asked.count("/metrics")).encode())
        await asyncio.sleep(COUNT_SECONDS)


def put(replay: Replay, answer: Answer) -> None:
    """Answer /metrics otherwise from now on."""
    replay.pages["/metrics"] = answer


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
