"""What a soak runs on: four replayed servers, the stand-in driver, the real daemon in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.daemon import Series, parse
from tests.nvml_standin.build import build, environment, write_scenario
from tests.replay import Answer, Replay, llamacpp_pages, replaying, vllm_pages

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Mapping

ROOT = Path(__file__).parents[2]
INTERVAL_SECONDS = 0.25
PATIENCE_SECONDS = 30.0
CARD = 'name="NVIDIA L40S" total=46068MiB reserved=500MiB'
UUIDS = tuple(f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(2))
SERVERS: Mapping[str, dict[str, Answer]] = {
    "chat": vllm_pages("idle"),
    "hybrid": vllm_pages("hybrid-idle"),
    "split": llamacpp_pages("split", "idle"),
    "unified": llamacpp_pages("unified-q8_0", "idle"),
}
SETTINGS = {
    "split": ", pool_tokens: 8192, kv_unified: false",
    "unified": ", pool_tokens: 4096, kv_unified: true",
}
"""What no page of a llama-server states."""
_CHANGING = (
    "kvwatch_source_duration_seconds",
    "kvwatch_source_last_success_timestamp_seconds",
    "kvwatch_source_failures_total",
    "kvwatch_source_reason",
    "kvwatch_history",
    "kvwatch_config_last_reload",
    "kvwatch_capacity_change",
    "kvwatch_finding",
    "kvwatch_server_config_changed_timestamp_seconds",
    "kvwatch_server_start_timestamp_seconds",  # of a process, by the clock: a machine that sleeps moves it
)
"""Families that count, tell the time or remember: what a fault leaves behind in them is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a process holds."""

    descriptors: int
    threads: int
    children: int
    resident_mib: float


@dataclass(kw_only=True)
class Stage:
    """The running whole; faults change it, and `steady` says what is wrong with it."""

    folder: Path
    replays: dict[str, Replay] = field(default_factory=dict)
    sites: dict[str, contextlib.AsyncExitStack] = field(default_factory=dict)
    process: asyncio.subprocess.Process = field(init=False)
    url: str = ""
    log: list[str] = field(default_factory=list)
    reader: asyncio.Task[None] = field(init=False)
    baseline: Series = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """Return the daemon's PID."""
        return self.process.pid

    def driver(self, extra: str = "") -> None:
        """Say what the driver says: two cards, and a process on each that belongs to no server."""
        gpus = "\n".join(f"gpu {index} {CARD} used=10GiB" for index in range(len(UUIDS)))
        held = f"proc gpu=0 pid={os.getpid()} type=C used=9GiB\n"
        write_scenario(self.folder / "nvml.scenario", f"driver 570.172.08\n{gpus}\n{held}{extra}")

    def configure(self, text: str | None = None) -> None:
        """Write the configuration, the daemon's own or another text."""
        lines = [
            "listen: 127.0.0.1:0",
            f"interval: {int(INTERVAL_SECONDS * 1000)}ms",
            "nvml: {enabled: true, deadline: 1s}",
            "discovery: false",
            f"history: {{path: {self.folder / 'history.db'}}}",
            "servers:",
            *(
                f"  - {{name: {name}, url: '{replay.url}'{SETTINGS.get(name, '')}}}"
                for name, replay in self.replays.items()
            ),
        ]
        (self.folder / "kvwatch.yaml").write_text(text if text is not None else "\n".join(lines) + "\n")

    async def start(self) -> None:
        """Start the daemon and wait until it is ready."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "kvwatch", "run", "--config", str(self.folder / "kvwatch.yaml")),
            cwd=ROOT,
            env={**os.environ, **environment(build(), self.folder / "nvml.scenario")},
            stderr=asyncio.subprocess.PIPE,
        )
        listening = asyncio.get_running_loop().create_future()
        self.reader = asyncio.create_task(self._read(listening))
        async with asyncio.timeout(PATIENCE_SECONDS):
            self.url = await listening
            async with httpx.AsyncClient(trust_env=False) as client:
                while (await client.get(f"{self.url}/-/ready")).status_code != httpx.codes.OK:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    async def _read(self, listening: asyncio.Future[str]) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip()
            self.log.append(text)
            if "listens on" in text and not listening.done():
                listening.set_result(text.split()[-1].rstrip("/"))

    async def end(self, number: signal.Signals) -> int:
        """Send the daemon a signal that ends it; return its exit status."""
        self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE_SECONDS):
            status = await self.process.wait()
            await self.reader
        return status

    async def scrape(self) -> Series:
        """Return the exposition; a page that does not parse is an error."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            answer = await client.get(f"{self.url}/metrics")
        answer.raise_for_status()
        return parse(answer.text)

    def polls(self) -> int:
        """Return how often a server that never fails was asked."""
        return sum(1 for path in self.replays["unified"].asked if path == "/metrics")

    def resources(self) -> Resources:
        """Return what the daemon holds now."""
        proc = Path(f"/proc/{self.pid}")
        status = dict(
            line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
        )
        return Resources(
            descriptors=len(list((proc / "fd").iterdir())),
            threads=int(status["Threads"]),
            children=len(self.children()),
            resident_mib=int(status["VmRSS"].split()[0]) / 1024,
        )

    def children(self) -> list[int]:
        """Return the PIDs of the daemon's children."""
        found = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
                found += map(int, (task / "children").read_text().split())
        return found

    def limit(self, what: int, soft: int | None) -> None:
        """Lower a limit of the daemon, or put it back."""
        _, hard = resource.prlimit(self.pid, what)
        resource.prlimit(self.pid, what, (hard if soft is None else soft, hard))

    def difference(self, now: Series) -> list[str]:
        """Say how an exposition differs from the baseline, health and time left out."""
        before, after = _figures(self.baseline), _figures(now)
        return [
            f"{name} {dict(labels)}: {before.get((name, labels))} -> {after.get((name, labels))}"
            for name, labels in sorted(before.keys() | after.keys())
            if before.get((name, labels)) != after.get((name, labels))
        ]


def _figures(series: Series) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (name, labels): value
        for name, rows in series.items()
        if not name.startswith(_CHANGING)
        for labels, value in rows.items()
    }


@contextlib.asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Run servers, driver and daemon until the block ends."""
    made = Stage(folder=folder)
    async with contextlib.AsyncExitStack() as stack:
        for name, pages in SERVERS.items():
            made.sites[name] = await stack.enter_async_context(contextlib.AsyncExitStack())
            made.replays[name] = await made.sites[name].enter_async_context(replaying(pages))
        made.driver()
        made.configure()
        await made.start()
        try:
            yield made
        finally:
            if made.process.returncode is None:
                made.process.kill()
                await made.process.wait()
