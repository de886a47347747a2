"""The fleet: starts the servers, keeps the simulated driver's file in step with them, stops everything."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kvwatch.demo.clock import Clock
from kvwatch.demo.day import CARD, DEFAULT_SPEED, MIB, OPENING, SERVERS
from kvwatch.demo.devices import STATE_VARIABLE
from kvwatch.demo.story import next_scene, opening_scene
from kvwatch.sources.nvml_process import child_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType

    from kvwatch.demo.day import ServerPlan

_START_SECONDS = 30.0
_STOP_SECONDS = 3.0
_DRIVER_BYTES = 3 * MIB
"""What a card's driver holds for nobody in particular."""


class FleetError(Exception):
    """A server of the fleet did not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetServer:
    """A server as a configuration would describe it."""

    name: str
    url: str
    model_config: Path
    """Folder with the model's config.json."""
    request_limit: int
    """max_num_seqs, which vLLM's pages do not say."""


@dataclass(slots=True, kw_only=True)
class _Member:
    """One server process and what it last told."""

    plan: ServerPlan
    process: asyncio.subprocess.Process
    port: int | None = None
    engine_pid: int | None = None
    memory_bytes: int | None = None
    bound: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class Fleet:
    """The demo's servers and card; an asynchronous context manager.

    `speed` is script seconds a second; `opening` the moment of the script to begin with, in seconds.
    Raises FleetError on entry when a server does not answer in time. Everything ends on exit, and with this
    process however that ends.
    """

    def __init__(self, *, speed: float = DEFAULT_SPEED, opening: float = OPENING, seed: int = 1) -> None:
        if speed <= 0:
            raise ValueError(f"the script cannot run {speed} times as fast as the wall")
        self._clock = Clock(began=time.monotonic(), speed=speed, opening=opening)
        self._seed = seed
        self._folder = Path()
        self._members: list[_Member] = []
        self._listeners: list[asyncio.Task[None]] = []

    @property
    def servers(self) -> tuple[FleetServer, ...]:
        """The servers, ready to be watched."""
        return tuple(
            FleetServer(
                name=member.plan.name,
                url=f"http://127.0.0.1:{member.port}",
                model_config=self._folder / member.plan.name,
                request_limit=member.plan.max_num_seqs,
            )
            for member in self._members
        )

    @property
    def history(self) -> Path:
        """Where the daemon may keep its history; it goes with the fleet."""
        return self._folder / "history.db"

    @property
    def nvml_command(self) -> list[str]:
        """The command of the NVML child that reads the simulated driver."""
        return list(child_command("kvwatch.demo.devices"))

    @property
    def nvml_env(self) -> dict[str, str]:
        """The whole environment of the NVML child."""
        return {**os.environ, STATE_VARIABLE: str(self._devices)}

    async def story(self) -> AsyncIterator[str]:
        """Tell what happens in the script, each line when it happens."""
        moment = self._clock.script()
        yield str(opening_scene(moment))
        while True:
            scene = next_scene(moment)
            await asyncio.sleep(self._clock.engine_at(scene.at) - self._clock.engine())
            yield str(scene)
            moment = scene.at

    async def __aenter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="kvwatch-demo-"))
        try:
            self._write_models()
            self._write_devices()
            for plan in SERVERS:
                process = await self._start(plan)
                member = _Member(plan=plan, process=process)
                self._members.append(member)
                self._listeners.append(asyncio.create_task(self._listen(member)))
            async with asyncio.timeout(_START_SECONDS):
                await self._begin()
        except TimeoutError:
            await self._stop()
            raise FleetError(f"the demo's servers did not answer within {_START_SECONDS:.0f} s") from None
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self, plan: ServerPlan) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "kvwatch.demo.server", plan.name),
            *("--speed", str(self._clock.speed), "--opening", str(self._clock.opening)),
            *("--seed", str(self._seed), "--parent-pid", str(os.getpid())),
            *("--model-root", str(self._folder / plan.name)),
            env={**os.environ, "PYTHONPATH": _import_path()},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # A group of its own: a Ctrl-C of the terminal is the daemon's to handle.
            process_group=0,
        )

    async def _listen(self, member: _Member) -> None:
        """Take what a server tells until it ends."""
        output = member.process.stdout
        while output is not None and (line := await output.readline()):
            state = json.loads(line)
            if "port" in state:
                member.port = state["port"]
                member.bound.set()
                continue
            member.engine_pid = state["engine_pid"]
            member.memory_bytes = state["memory_bytes"]
            self._write_devices()
            if state["ready"]:
                member.answered.set()
        member.engine_pid = member.memory_bytes = None
        self._write_devices()

    async def _begin(self) -> None:
        """Wait for the servers' processes, begin the day, wait until the servers answer."""
        await self._wait({member.plan.name: member.bound for member in self._members})
        self._clock = replace(self._clock, began=time.monotonic())
        for member in self._members:
            if member.process.stdin is not None:
                member.process.stdin.write(f"{self._clock.began}\n".encode())
                # One that has ended meanwhile is found out right below.
                with suppress(ConnectionError):
                    await member.process.stdin.drain()
        await self._wait({member.plan.name: member.answered for member in self._members})

    async def _wait(self, events: Mapping[str, asyncio.Event]) -> None:
        """Wait for an event of each server, or for a server's end, which is an error."""
        for (name, event), listener in zip(events.items(), self._listeners, strict=True):
            wait = asyncio.create_task(event.wait())
            await asyncio.wait({wait, listener}, return_when=asyncio.FIRST_COMPLETED)
            wait.cancel()
            if not event.is_set():
                raise FleetError(f"the demo's {name} server ended while it was starting")

    async def _stop(self) -> None:
        for member in self._members:
            with suppress(ProcessLookupError):
                member.process.terminate()
        for member in self._members:
            with suppress(TimeoutError):
                await asyncio.wait_for(member.process.wait(), _STOP_SECONDS)
            # The group is gone when all in it ended by themselves.
            with suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGKILL)
            await member.process.wait()
        try:
            await asyncio.gather(*self._listeners)
        finally:
            shutil.rmtree(self._folder)

    @property
    def _devices(self) -> Path:
        return self._folder / "devices.json"

    def _write_models(self) -> None:
        for plan in SERVERS:
            folder = self._folder / plan.name
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(plan.config, indent=2))

    def _write_devices(self) -> None:
        processes = [
            (member.engine_pid, member.memory_bytes)
            for member in self._members
            if member.engine_pid is not None and member.memory_bytes is not None
        ]
        device: Mapping[str, object] = {
            "uuid": CARD.uuid,
            "name": CARD.name,
            "total_bytes": CARD.total_bytes,
            "reserved_bytes": CARD.reserved_bytes,
            "driver_bytes": _DRIVER_BYTES,
            "processes": processes,
        }
        written = self._devices.with_suffix(".new")
        written.write_text(json.dumps({"driver": CARD.driver, "devices": [device]}))
        written.replace(self._devices)


def _import_path() -> str:
    """Return a PYTHONPATH with which children import the kvwatch that runs here, wherever it was found."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
