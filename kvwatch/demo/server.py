"""One simulated server: an HTTP process, the child that holds its memory, and lives that the script ends.

It tells the fleet its port, waits for a line with the monotonic time at which all begin, and then tells what
happens to it, the whole state each time; JSON lines on standard output:

    {"port": 40123}
    {"engine_pid": 17, "memory_bytes": 27638366208, "ready": true}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from aiohttp import web

from kvwatch.demo.clock import Clock
from kvwatch.demo.day import RUNNING_BEFORE_SECONDS, SERVERS, plan_of
from kvwatch.demo.lives import life_of, memory_of, num_blocks
from kvwatch.demo.page import CONTENT_TYPE, PageSource
from kvwatch.demo.processes import die_with_parent
from kvwatch.demo.simulation import Clients, catch_up, engine_of
from kvwatch.demo.traffic import arrivals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kvwatch.demo.day import ServerPlan
    from kvwatch.demo.lives import Life

_HOST = "127.0.0.1"
_TICK_SECONDS = 0.2


class Server:
    """The lives of one server, one after another."""

    def __init__(
        self,
        plan: ServerPlan,
        clock: Clock,
        clients: Clients,
        *,
        reserved: socket.socket,
        model_root: str,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._clients = clients
        self._model_root = model_root
        # Bound but not listening: refuses connections while the server is down, and keeps its port.
        self._reserved = reserved
        self._told: dict[str, object] = {}

    async def run(self) -> None:
        """Live by the script until cancelled."""
        while True:
            life = life_of(self._plan, self._clock.script())
            while self._clock.script() < life.launched_at:
                self._report()
                await asyncio.sleep(_TICK_SECONDS)
            started_at = time.time()
            if life.launched_at < 0:
                started_at -= RUNNING_BEFORE_SECONDS
            with _engine_core() as core:
                await self._live(life, core, started_at=started_at)
            self._report()

    async def _live(self, life: Life, core: subprocess.Popen[bytes], *, started_at: float) -> None:
        while self._clock.script() < life.ready_at:
            self._report(core)
            await asyncio.sleep(_TICK_SECONDS)
        ready_at = self._clock.engine_at(life.ready_at)
        self._clients.lose(ready_at)
        engine = engine_of(self._plan, num_blocks(self._plan, life), now=ready_at)

        def advance() -> None:
            now, limit = self._clock.engine(), self._plan.outstanding_limit
            catch_up(engine, self._clients, now, outstanding_limit=limit)

        source = PageSource(
            plan=self._plan, engine=engine, started_at=started_at, model_root=self._model_root
        )

        async def metrics(_: web.Request) -> web.Response:
            advance()
            return web.Response(body=source.metrics(), headers={"Content-Type": CONTENT_TYPE})

        async def models(_: web.Request) -> web.Response:
            return web.Response(text=source.models(time.time()), content_type="application/json")

        async def version(_: web.Request) -> web.Response:
            return web.Response(text=source.version(), content_type="application/json")

        async def health(_: web.Request) -> web.Response:
            return web.Response()

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        app.router.add_get("/v1/models", models)
        app.router.add_get("/version", version)
        app.router.add_get("/health", health)
        async with self._listening(app):
            self._report(core, ready=True)
            while self._clock.script() < life.stops_at:
                advance()
                await asyncio.sleep(_TICK_SECONDS)
                if core.poll() is not None:
                    # vLLM's HTTP server does not outlive its engine either.
                    raise RuntimeError(f"{self._plan.name}: the engine process ended with {core.returncode}")

    @asynccontextmanager
    async def _listening(self, app: web.Application) -> AsyncIterator[None]:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.SockSite(runner, _bind(self._reserved.getsockname()[1])).start()
            yield
        finally:
            await runner.cleanup()

    def _report(self, core: subprocess.Popen[bytes] | None = None, *, ready: bool = False) -> None:
        """Tell the fleet the state if it is not what was told last."""
        state: dict[str, object] = {
            "engine_pid": core.pid if core else None,
            "memory_bytes": memory_of(self._plan, self._clock.script()) if core else None,
            "ready": ready,
        }
        if state != self._told:
            self._told = state
            _tell(state)


def _tell(state: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(state) + "\n")
    sys.stdout.flush()


def _bind(port: int) -> socket.socket:
    """Bind one of several sockets of this process to a port; 0 takes a free one."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((_HOST, port))
    return bound


@contextmanager
def _engine_core() -> Iterator[subprocess.Popen[bytes]]:
    """Run the child that holds the memory."""
    command = [sys.executable, "-m", "kvwatch.demo.engine_core", str(os.getpid())]
    core = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # noqa: S603
    try:
        yield core
    finally:
        core.kill()
        core.wait()


async def live(server: Server) -> None:
    """Run the server until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(server.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def main(arguments: list[str] | None = None) -> None:
    """Run one server of the fleet."""
    parser = argparse.ArgumentParser(prog="python -m kvwatch.demo.server", description=main.__doc__)
    parser.add_argument("name", choices=[plan.name for plan in SERVERS])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--speed", type=float, required=True, help="script seconds a second")
    parser.add_argument("--opening", type=float, required=True, help="moment of the script to begin with")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--model-root", required=True, help="folder of the model's config.json")
    parser.add_argument("--parent-pid", type=int, required=True)
    options = parser.parse_args(arguments)
    die_with_parent(options.parent_pid)
    reserved = _bind(options.port)
    _tell({"port": reserved.getsockname()[1]})
    # The servers begin together, however long each of them took to get here.
    began = sys.stdin.readline()
    if not began:
        return
    plan = plan_of(options.name)
    clock = Clock(began=float(began), speed=options.speed, opening=options.opening)
    clients = Clients(arrivals(plan, opening=clock.opening, speed=clock.speed, seed=options.seed))
    server = Server(plan, clock, clients, reserved=reserved, model_root=options.model_root)
    asyncio.run(live(server))


if __name__ == "__main__":
    main()
