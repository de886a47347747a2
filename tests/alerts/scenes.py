"""The scenes of the live proof: a daemon with one kind of trouble, and the alerts that it must raise."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tests.alerts.servers import (
    METRICS,
    PREEMPTIONS,
    RUNNING,
    USAGE,
    Engine,
    engine,
    stating,
    waiting,
)
from tests.daemon import config, running
from tests.nvml_standin.build import write_scenario
from tests.replay import CAPTURES, Answer, Replay, llamacpp_pages, replaying, vllm_pages
from tests.test_devices import standin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
    from pathlib import Path

T = TypeVar("T")

_LOADING = Answer(b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', status=503)
_INTERVAL = "1s"
_CARD_MIB = 46_068
_READY_SECONDS = 60.0
_ANOTHER_MODEL = (
    f"max_num_batched_tokens: 2048, model_config: {CAPTURES / 'vllm' / 'tiny-gemma3-config.json'}"
)


class Stage:
    """What one scene has running; everything ends when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        """For a daemon whose address must be known before it runs; 0 is any."""
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.folder.mkdir()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the daemon and all that it watches."""
        await self._open.aclose()

    async def enter(self, context: contextlib.AbstractAsyncContextManager[T]) -> T:
        """Keep something running until the end."""
        return await self._open.enter_async_context(context)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside until the end."""
        task = asyncio.create_task(work)
        self._open.callback(task.cancel)

    async def daemon(self, text: str, **settings: Any) -> str:
        """Run the daemon; return host and port once it has polled."""
        devices = settings.pop("devices", None)
        configuration = config(text, **{"interval": _INTERVAL, **settings})
        one = await self.enter(running(configuration, devices=devices))
        await one.until(lambda series: "kvwatch_source_up" in series, seconds=_READY_SECONDS)
        return one.url.removeprefix("http://")

    async def replay(self, pages: Mapping[str, Answer]) -> Replay:
        """Serve pages."""
        return await self.enter(replaying(pages))

    async def demo(self, hour: float) -> str:
        """Run `kvwatch demo` from an hour of its script on; return host and port."""
        return await self.enter(demo(hour, self.port))


@contextlib.asynccontextmanager
async def demo(hour: float, port: int = 0, told: list[tuple[float, str]] | None = None) -> AsyncIterator[str]:
    """Run `kvwatch demo`; yield host and port. `told` gets what it tells, and when (Unix seconds)."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvwatch", "demo", "--listen", f"127.0.0.1:{port}", "--from", clock(hour)),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    story = process.stderr

    async def read() -> None:
        while line := (await story.readline()).decode():
            if told is not None:
                told.append((time.time(), line.strip()))

    try:
        line = ""
        async with asyncio.timeout(_READY_SECONDS):
            while "http://" not in line:
                line = (await story.readline()).decode()
                assert line, "the demo ended"
        rest = asyncio.create_task(read())
        yield line.split("http://")[1].split("/")[0]
        rest.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def clock(hour: float) -> str:
    """Return an hour of the day as a clock shows it."""
    return f"{int(hour):02}:{round(hour % 1 * 60):02}"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One daemon and what happens to it."""

    name: str
    what: str
    open: Callable[[Stage], Awaitable[str]]
    """Returns host and port of the daemon."""
    fires: frozenset[str] = frozenset()
    late: bool = False
    """Opened when all else runs, at a port that is known: its day waits for nobody."""
    muted: Mapping[str, str] = field(default_factory=dict)
    """Alerts of `fires` that Alertmanager keeps quiet -> the alert that says why."""


def watched(url: str, options: str = "") -> str:
    """Return the configuration of one server."""
    return f"servers: [{{name: s, url: '{url}', {options}}}]"


async def replayed(stage: Stage, values: Mapping[str, float], options: str = "", state: str = "idle") -> str:
    """Watch a captured vLLM whose page has other numbers."""
    pages = vllm_pages(state)
    pages[METRICS] = stating(pages[METRICS], values)
    replay = await stage.replay(pages)
    return await stage.daemon(watched(replay.url, f"request_limit: 16, {options}"))


async def quiet_llama(stage: Stage) -> str:
    """Watch a llama-server whose slots have a pool each."""
    replay = await stage.replay(llamacpp_pages("split", "idle"))
    return await stage.daemon(watched(replay.url, "kv_unified: false"))


async def overcommitted(stage: Stage) -> str:
    """Watch a llama-server whose four slots share a pool of one full-length request."""
    replay = await stage.replay(llamacpp_pages("unified-q8_0", "idle"))
    return await stage.daemon(watched(replay.url, "pool_tokens: 4096, kv_unified: true"))


async def counting(stage: Stage) -> str:
    """Watch an engine whose preemption counter goes up, twice a second."""
    pages = vllm_pages("idle")
    replay = await stage.replay(pages)

    async def count() -> None:
        preemptions = 0
        while True:
            preemptions += 1
            replay.pages[METRICS] = stating(pages[METRICS], {PREEMPTIONS: preemptions})
            await asyncio.sleep(0.5)

    stage.start(count())
    return await stage.daemon(watched(replay.url))


async def swapping(stage: Stage) -> str:
    """Watch an engine that throws out its two running requests now and then, and takes them back."""
    pages = vllm_pages("idle")
    replay = await stage.replay(pages)

    async def swap() -> None:
        while True:
            for out, seconds in ((0, 1.5), (2, 1.0)):
                values = {rf"{RUNNING}\{{": 2 - out, **waiting(out), USAGE: 0.1}
                replay.pages[METRICS] = stating(pages[METRICS], values)
                await asyncio.sleep(seconds)

    stage.start(swap())
    return await stage.daemon(watched(replay.url))


async def unreachable(stage: Stage) -> str:
    """Watch a server that is gone after the first polls."""
    replay = await stage.replay(vllm_pages("idle"))
    address = await stage.daemon(watched(replay.url, "engine: vllm"))
    replay.pages.clear()
    return address


async def loading(stage: Stage) -> str:
    """Watch a llama-server that has been loading all the time."""
    replay = await stage.replay(dict.fromkeys(("/props", METRICS, "/slots", "/health"), _LOADING))
    return await stage.daemon(watched(replay.url, "engine: llamacpp"))


async def stale(stage: Stage) -> str:
    """Run a daemon that has polled once and will not for an hour."""
    replay = await stage.replay(vllm_pages("idle"))
    return await stage.daemon(watched(replay.url), interval="1h", typical_window="2h")


async def neighbours(stage: Stage, *, shares: tuple[float, float]) -> str:
    """Watch two servers on one card that were each told a share of it."""
    engines = [
        await stage.enter(engine(stage.folder / f"engine-{index}", share=share))
        for index, share in enumerate(shares)
    ]
    return await on_a_card(stage, engines)


async def on_a_card(stage: Stage, engines: list[Engine]) -> str:
    """Watch servers whose engine cores hold a fifth of one card each."""
    scenario = stage.folder / "nvml.scn"
    held = _CARD_MIB // 5
    card = f"gpu 0 uuid=GPU-{stage.folder.name} name=A total={_CARD_MIB}MiB reserved=500MiB"
    processes = [f"proc gpu=0 pid={one.core} type=C used={held}MiB" for one in engines]
    write_scenario(scenario, "\n".join([f"{card} used={len(engines) * held}MiB", *processes, ""]))
    servers = ", ".join(f"{{name: s{index}, url: '{one.url}'}}" for index, one in enumerate(engines))
    return await stage.daemon(
        f"servers: [{servers}]", nvml="{enabled: true, deadline: 5s}", devices=standin(scenario)
    )


async def left_behind(stage: Stage) -> str:
    """Watch a server that is killed, and whose engine core stays."""
    one = await stage.enter(engine(stage.folder / "engine", share=0.4))
    address = await on_a_card(stage, [one])
    await one.kill()
    return address


_HALVED = "KvwatchCapacityHalved"
"""At every scene of the demo until the server starts anew: its prompts have grown since last week."""

MORNING = Scene(
    name="demo-morning",
    what="the demo's night and calm morning",
    open=partial(Stage.demo, hour=3.0),
    fires=frozenset({_HALVED}),
)
DEMOS = (
    MORNING,
    Scene(
        name="demo-noon",
        what="the demo's rush: the pool fills up, requests queue, some are recomputed",
        late=True,
        open=partial(Stage.demo, hour=11.5),
        fires=frozenset(
            {
                _HALVED,
                "KvwatchRecomputeSuspected",
                "KvwatchPreemptions",
                "KvwatchRequestsWaiting",
                "KvwatchNoRoom",
            }
        ),
        muted={"KvwatchNoRoom": "KvwatchRequestsWaiting"},
    ),
    Scene(
        name="demo-evening",
        what="the demo's servers restart at once, and one comes back with a third of its pool",
        late=True,
        open=partial(Stage.demo, hour=17.25),
        fires=frozenset(
            {
                "KvwatchSourceDown",
                "KvwatchPoolChangedSameFlags",
                "KvwatchRecomputeSuspected",
                "KvwatchPreemptions",
                "KvwatchRequestsWaiting",
                "KvwatchNoRoom",
            }
        ),
        muted={"KvwatchNoRoom": "KvwatchRequestsWaiting"},
    ),
)

SCENES: tuple[Scene, ...] = (
    Scene(name="idle", what="an idle vLLM", open=partial(replayed, values={})),
    Scene(name="idle-llama", what="an idle llama-server with split slots", open=quiet_llama),
    Scene(
        name="full",
        what="a full pool before which requests wait",
        open=partial(replayed, values={}, state="pool-full"),
        fires=frozenset({"KvwatchRequestsWaiting", "KvwatchNoRoom"}),
        muted={"KvwatchNoRoom": "KvwatchRequestsWaiting"},
    ),
    Scene(
        name="filled",
        what="a full pool before which nobody waits",
        open=partial(replayed, values=waiting(0), state="pool-full"),
        fires=frozenset({"KvwatchNoRoom"}),
    ),
    Scene(
        name="stalled",
        what="an engine that admits nobody though its pool is free",
        open=partial(replayed, values={rf"{RUNNING}\{{": 1, **waiting(3), USAGE: 0.1}),
        fires=frozenset({"KvwatchStalledWithRoom", "KvwatchNoRoom"}),
        muted={"KvwatchNoRoom": "KvwatchStalledWithRoom"},
    ),
    Scene(
        name="overcommitted",
        what="four slots that share the pool of one",
        open=overcommitted,
        fires=frozenset({"KvwatchWorstCaseOverPool"}),
    ),
    Scene(
        name="swapping",
        what="requests that go back to waiting",
        open=swapping,
        fires=frozenset({"KvwatchRecomputeSuspected"}),
    ),
    Scene(
        name="counting",
        what="a preemption counter that goes up",
        open=counting,
        fires=frozenset({"KvwatchPreemptions"}),
    ),
    Scene(
        name="claimed",
        what="two servers that claim more than their card",
        open=partial(neighbours, shares=(0.6, 0.5)),
        fires=frozenset({"KvwatchShareSumOverLimit", "KvwatchUnpinnedNeighbours"}),
        muted={"KvwatchUnpinnedNeighbours": "KvwatchShareSumOverLimit"},
    ),
    Scene(
        name="neighbours",
        what="two servers with a share of one card and no pin",
        open=partial(neighbours, shares=(0.4, 0.4)),
        fires=frozenset({"KvwatchUnpinnedNeighbours"}),
    ),
    Scene(
        name="orphan",
        what="an engine core whose server was killed",
        open=left_behind,
        fires=frozenset({"KvwatchOrphanMemory", "KvwatchSourceDown"}),
    ),
    Scene(
        name="disagrees",
        what="a model file that is another model's",
        open=partial(replayed, values={}, options=_ANOTHER_MODEL),
        fires=frozenset({"KvwatchModelDisagreesWithEngine"}),
    ),
    Scene(
        name="unreachable",
        what="a server that does not answer",
        open=unreachable,
        fires=frozenset({"KvwatchSourceDown"}),
    ),
    Scene(
        name="loading",
        what="a server that goes on loading",
        open=loading,
        fires=frozenset({"KvwatchEngineStillLoading"}),
    ),
    Scene(
        name="stale",
        what="a daemon that serves and no longer reads",
        open=stale,
        fires=frozenset({"KvwatchDataStale"}),
    ),
    Scene(
        name="dies",
        what="a daemon that goes while its server preempts",
        open=counting,
        fires=frozenset({"KvwatchPreemptions", "KvwatchDaemonAbsent"}),
        muted={"KvwatchPreemptions": "KvwatchDaemonAbsent"},
    ),
)
DIES = SCENES[-1]
SCENES += DEMOS
