"""A scripted day through the real pipeline: pages and devices -> the poller's own read and join -> snapshots.

Only the outside worlds are scripted. Windows that matter are polled every minute, the time between now and
then; two polls of a hole are no farther apart than the day's script is interesting.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.cost.hf import read_hf_config
from kvwatch.lives import Lives
from kvwatch.plan import Model
from kvwatch.poller import Poller, Watch
from kvwatch.readings import (
    DeviceReading,
    GpuProcess,
    NvmlReading,
    Outcome,
    Page,
    ProcessIdentity,
    ProcessTable,
    Reason,
    Source,
)
from kvwatch.sources.contract import Sources
from kvwatch.sources.local import LocalReading
from kvwatch.target import Target
from tests.scenarios.crowd import Rank
from tests.scenarios.pages import pages
from tests.scenarios.world import CARD_BYTES, DAY, HOUR, MIB, MINUTE, NOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvwatch.observation import StartWindow
    from kvwatch.snapshot import Snapshot
    from tests.scenarios.world import Day, Life, ServerScript

INTERVAL_SECONDS = 60.0
_CONTEXT_BYTES = 450 * MIB
_COARSE_SECONDS = 30 * MINUTE
_STEPS_AROUND_A_START = (20.0, 12 * MINUTE)
_WARM_UP_SECONDS = 6 * MINUTE


@dataclass
class _Engine:
    """One server as it is now: its process and its ranks."""

    script: ServerScript
    random: random.Random
    pid: int
    life: Life | None = None
    ranks: dict[str, Rank] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)

    def play(self, until: float, *, closely: bool) -> None:
        """Let time pass, restarts included."""
        life = self.script.life_at(until)
        if life is None:
            self.life, self.ranks, self.pages = None, {}, {}
            return
        if life is not self.life:
            self.life = life
            self.pid += 1
            ready = max(life.start + life.ready_after, -1e12)
            self.ranks = {
                str(rank): Rank(life, self.random, ready, self.script.token_seconds)
                for rank in range(life.ranks)
            }
        gone = {rank for rank, since in self.script.rank_gone if since <= until}
        self.ranks = {rank: own for rank, own in self.ranks.items() if rank not in gone}
        asleep = any(start <= until < end for start, end, _ in self.script.asleep)
        for own in self.ranks.values():
            if until <= own.now:
                continue
            if asleep:
                own.now = until
            elif closely and until - own.now <= 2 * _WARM_UP_SECONDS:
                self._play_minutes(own, until)
            else:
                middle = until - _WARM_UP_SECONDS
                if own.now < middle:
                    self._skip(own, middle)
                if closely:
                    self._play_minutes(own, until)
                else:
                    self._skip(own, until)
        self.pages = self._render(until, asleep=asleep)

    def _play_minutes(self, own: Rank, until: float) -> None:
        while own.now < until:
            step = min(until, own.now + MINUTE)
            own.play(step, self.script.traffic(step))

    def _skip(self, own: Rank, until: float) -> None:
        while own.now < until:
            step = min(until, own.now + HOUR) if until - own.now < 2 * DAY else until
            own.skip(step, self.script.traffic(step))

    def _render(self, at: float, *, asleep: bool) -> Mapping[str, str]:
        life = self.life
        if life is None or at < life.start + life.ready_after:
            return {}
        return pages(
            life,
            self.ranks,
            started_at=NOW + life.start,
            asleep=asleep,
            blocks=self._blocks(at, life),
            stalled=self.script.traffic(at).stalled,
        )

    def _blocks(self, at: float, life: Life) -> int:
        woken = [size for _, end, size in self.script.asleep if life.start <= end <= at and size]
        return woken[-1] // life.plan.bytes_per_block if woken else life.blocks

    def held_bytes(self, at: float) -> int | None:
        """Return what the process holds of its device: it grows while it starts, and sleeps lightly."""
        life = self.life
        if life is None:
            return None
        pool = self._blocks(at, life) * life.plan.bytes_per_block
        if any(start <= at < end for start, end, _ in self.script.asleep):
            return _CONTEXT_BYTES + 2048 * MIB
        part = min(1.0, (at - life.start) / life.ready_after) if life.ready_after else 1.0
        grown = int(life.weights_bytes * min(1.0, part * 1.6))
        return _CONTEXT_BYTES + grown + (pool + 1400 * MIB if part >= 1 else 0)


class World:
    """The outside worlds of one day: device source, process and model source, page source, two clocks."""

    def __init__(self, day: Day, seed: int) -> None:
        self.day = day
        self.at = 0.0
        self.engines = {
            script.name: _Engine(script, _seeded(f"{seed}/{day.name}/{script.name}"), 1000 * (index + 1))
            for index, script in enumerate(day.servers)
        }
        self._models: dict[str, Model] = {}

    def play(self, until: float, *, closely: bool) -> None:
        """Let time pass."""
        self.at = until
        for engine in self.engines.values():
            engine.play(until, closely=closely)

    def wall_clock(self) -> float:
        """Return Unix seconds as the machine has them."""
        return NOW + self.at + sum(by for at, by in self.day.clock_steps if at <= self.at)

    def clock(self) -> float:
        """Return monotonic seconds."""
        return 100 * DAY + self.at

    def targets(self) -> tuple[Target, ...]:
        """Return what is configured, as the servers' command lines say it."""
        return tuple(
            self._target(name, index, engine) for index, (name, engine) in enumerate(self.engines.items())
        )

    @staticmethod
    def _target(name: str, index: int, engine: _Engine) -> Target:
        life = engine.life or engine.script.lives[0]
        return Target(
            name=name,
            url=f"http://127.0.0.1:{8000 + index}",
            host="127.0.0.1",
            port=8000 + index,
            engine="vllm",
            request_limit=life.request_limit,
            max_num_batched_tokens=life.batched_tokens,
            tensor_parallel=life.tensor_parallel,
            pipeline_parallel=1,
            hybrid_manager=life.hybrid_manager,
        )

    async def poll(self) -> NvmlReading:
        """Be the device source."""
        ranks = [(engine.script.device, engine.script.lives[0].ranks) for engine in self.engines.values()]
        count = max(device + own for device, own in ranks)
        devices = []
        for index in range(count):
            processes = [
                GpuProcess(pid=pid, used_bytes=used)
                for device, pid, used, _ in self._held()
                if device == index
            ]
            used = sum(process.used_bytes or 0 for process in processes) + 3 * MIB
            devices.append(
                DeviceReading(
                    uuid=f"GPU-{self.day.name}-{index}",
                    index=index,
                    name="NVIDIA H100 80GB HBM3",
                    driver="580.126.09",
                    total_bytes=CARD_BYTES,
                    used_bytes=used,
                    free_bytes=CARD_BYTES - used - 600 * MIB,
                    reserved_bytes=600 * MIB,
                    memory_version=2,
                    processes=tuple(processes),
                )
            )
        return NvmlReading(
            devices=tuple(devices),
            outcomes=tuple(Outcome(source=Source.NVML, target=one.uuid, reason=None) for one in devices),
        )

    def _held(self) -> Iterator[tuple[int, int, int, str]]:
        """Yield (device, pid, bytes, name) of every process."""
        for engine in self.engines.values():
            used = engine.held_bytes(self.at)
            if used is None or engine.life is None:
                continue
            for rank in range(engine.life.ranks):
                if str(rank) in engine.ranks:
                    yield engine.script.device + rank, engine.pid + 10 * rank + 10, used, "VLLM::EngineCor"
        for squatter in self.day.squatters:
            held = squatter.held(self.at)
            if held is not None:
                yield squatter.device, squatter.pid, held, squatter.name

    @property
    def private_pid_namespace(self) -> bool:
        """Be the process source: PIDs are the host's."""
        return False

    def read(self, *_: object) -> LocalReading:
        """Be the processes and model files of this machine."""
        processes: dict[int, ProcessIdentity] = {}
        listeners: dict[str, tuple[int, ...]] = {}
        models: dict[str, Model] = {}
        for name, engine in self.engines.items():
            life = engine.life
            if life is None:
                continue
            listeners[name] = (engine.pid,)
            processes[engine.pid] = ProcessIdentity(
                pid=engine.pid, start_ticks=engine.pid, parent_pid=1, name="vllm", started_at=NOW + life.start
            )
            for rank in engine.ranks:
                child = engine.pid + 10 * int(rank) + 10
                processes[child] = ProcessIdentity(
                    pid=child, start_ticks=child, parent_pid=engine.pid, name="VLLM::EngineCor"
                )
            if life.model_known:
                models[name] = self._model(life)
        for squatter in self.day.squatters:
            processes[squatter.pid] = ProcessIdentity(
                pid=squatter.pid, start_ticks=7, parent_pid=1, name=squatter.name
            )
        table = ProcessTable(
            processes=processes,
            listeners=listeners,
            outcomes=tuple(Outcome(source=Source.PROCFS, target=name, reason=None) for name in listeners),
        )
        return LocalReading(processes=table, models=models)

    def _model(self, life: Life) -> Model:
        key = repr(life.model)
        if key not in self._models:
            digest = f"{_seeded(key).getrandbits(48):012x}"
            self._models[key] = Model(spec=read_hf_config(dict(life.model)), hash=digest)
        return self._models[key]

    async def fetch(self, url: str, path: str, **_: object) -> Page:
        """Be the page source."""
        engine = list(self.engines.values())[int(url.rpartition(":")[2]) - 8000]
        body = engine.pages.get(path)
        if body is None:
            return Page(path=path, body=None, reason=Reason.UNREACHABLE, detail="refused")
        return Page(path=path, body=body, status=200)

    async def run(self, function: Callable[[], LocalReading], **_: object) -> LocalReading:
        """Be the thread beside the event loop."""
        return function()


def moments(day: Day) -> list[tuple[float, bool]]:
    """Return when kvwatch polls, and whether what happens since the poll before matters minute by minute."""
    close: set[float] = set()
    for end in (0.0, -day.span):
        close |= {end - HOUR - 5 * MINUTE + MINUTE * step for step in range(66)}
    length = day.span + 3 * HOUR
    apart = max(_COARSE_SECONDS, day.span / 16 if day.span > DAY else 0.0)
    coarse = {apart * step - length for step in range(int(length / apart))}
    for start in (life.start for script in day.servers for life in script.lives):
        if start > -day.span - 3 * HOUR:
            step, length = _STEPS_AROUND_A_START
            close |= {start - MINUTE + step * count for count in range(int(length / step))}
    for begin, end, _ in (nap for script in day.servers for nap in script.asleep):
        close |= {begin + MINUTE, end - MINUTE, end + MINUTE}
    every = sorted(moment for moment in close | coarse if moment <= 0)
    return [
        (moment, moment in close)
        for moment in every
        if not any(start <= moment < end for start, end in day.unwatched)
    ]


@dataclass(frozen=True, kw_only=True)
class Published:
    """What one poll came to."""

    at: float
    """Unix seconds of a clock that is right, such as Prometheus's."""
    snapshot: Snapshot
    starts: tuple[StartWindow, ...]
    """Those that were over with this poll."""


def play(day: Day, seed: int) -> Iterator[Published]:
    """Yield the polls of one day; kvwatch begins anew after each time it did not watch."""
    world = World(day, seed)
    poller: Poller | None = None
    lives = Lives()
    last: float | None = None
    with asyncio.Runner() as runner:
        for moment, closely in moments(day):
            if poller is None or (last is not None and _was_down(day, last, moment)):
                poller, lives = _poller(world), Lives()
            last = moment
            world.play(moment, closely=closely)
            poller.change(_watch(world.targets()))
            snapshot = runner.run(poller.poll())
            known = {id(window) for window in lives.windows}
            lives = _advanced(lives, snapshot, world)
            starts = tuple(window for window in lives.windows if id(window) not in known)
            yield Published(at=NOW + moment, snapshot=snapshot, starts=starts)


def _advanced(lives: Lives, snapshot: Snapshot, world: World) -> Lives:
    return lives.advance(
        snapshot.taken_at,
        servers=snapshot.servers,
        devices=snapshot.devices,
        processes=snapshot.processes,
        table=world.read().processes,
        reasons={
            source.target: source.reason for source in snapshot.sources if source.source == Source.ENGINE
        },
    )


def _seeded(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311 - no secret


def _was_down(day: Day, before: float, now: float) -> bool:
    return any(start < now and end > before for start, end in day.unwatched)


def _poller(world: World) -> Poller:
    return Poller(
        sources=Sources(
            devices=world,
            local=world,
            pages=world,
            blocking=world,
            page_deadline_seconds=1.0,
            blocking_deadline_seconds=1.0,
        ),
        watch=_watch(world.targets()),
        clock=world.clock,
        wall_clock=world.wall_clock,
    )


def _watch(targets: Sequence[Target]) -> Watch:
    return Watch(
        targets=tuple(targets),
        interval_seconds=INTERVAL_SECONDS,
        typical_window_seconds=15 * MINUTE,
        share_limit_ratio=0.95,
    )
