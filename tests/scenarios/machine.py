"""The machine of a scripted day: what the poller asks of the outside world, and two clocks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kvwatch.cost.hf import read_hf_config
from kvwatch.plan import Model
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
from kvwatch.sources.local import LocalReading
from kvwatch.target import Target
from tests.scenarios.server import Engine
from tests.scenarios.world import CARD_BYTES, DAY, MIB, NOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.scenarios.world import Day, Life


class World:
    """The outside worlds of one day: device source, process and model source, page source, two clocks."""

    def __init__(self, day: Day, seed: int) -> None:
        self.day = day
        self.at = 0.0
        self.engines = {
            script.name: Engine(script, seeded(f"{seed}/{day.name}/{script.name}"), 1000 * (index + 1))
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
    def _target(name: str, index: int, engine: Engine) -> Target:
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
            digest = f"{seeded(key).getrandbits(48):012x}"
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


def seeded(seed: str) -> random.Random:
    """Return a source of chance."""
    return random.Random(seed)  # noqa: S311 - no secret
