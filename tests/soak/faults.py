"""The faults of a soak: how each begins and ends, and what the exposition must say meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.daemon import Series, reason
from tests.replay import Answer, llamacpp_pages, replaying, vllm_pages
from tests.soak.stage import INTERVAL_SECONDS, SERVERS, UUIDS, Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

VICTIMS = ("chat", "hybrid", "split")
"""`unified` never fails: its polls are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        name: for the report.
        begin, end: change the stage; the second undoes the first.
        check: complaints about the exposition while it lasts; None where there is nothing to say.
        polls: within how many polls after its end all must be as before; None: within `seconds`.

    """

    name: str
    begin: Callable[[Stage], Awaitable[None]]
    end: Callable[[Stage], Awaitable[None]]
    check: Callable[[Series], list[str]] | None = None
    polls: int | None = 2
    seconds: float = 20.0


async def nothing(_: Stage) -> None:
    """Leave everything."""


def _server(name: str, what: str, answer: Callable[[Answer], Answer], reasons: set[str]) -> Fault:
    """Return a fault in which one server's pages change."""

    async def begin(stage: Stage) -> None:
        stage.replays[name].pages = {path: answer(page) for path, page in SERVERS[name].items()}

    async def end(stage: Stage) -> None:
        stage.replays[name].pages = dict(SERVERS[name])

    return Fault(
        name=f"{name}: {what}", begin=begin, end=end, check=lambda series: _down(series, name, reasons)
    )


def _down(series: Series, name: str, reasons: set[str]) -> list[str]:
    """Complain where an unreadable server is not down, or still has figures, or takes others along."""
    complaints = []
    told = reason(series, "engine", name)
    if told not in reasons:
        complaints.append(f"the reason is {told}, not one of {sorted(reasons)}")
    left = [
        family
        for family, rows in series.items()
        for labels in rows
        if ("server", name) in labels
        and family.startswith(("kvwatch_kv_", "kvwatch_requests_", "kvwatch_full_length_requests_"))
    ]
    complaints += [f"{family} of {name} is still there" for family in left]
    complaints += [
        f"{other} is down too" for other in SERVERS if other != name and reason(series, "engine", other)
    ]
    return complaints


def _dies(name: str) -> Fault:
    """Return a fault in which a server's port is closed, and opened again."""

    async def begin(stage: Stage) -> None:
        await stage.sites[name].aclose()

    async def end(stage: Stage) -> None:
        port = int(stage.replays[name].url.rpartition(":")[2])
        stage.replays[name] = await stage.sites[name].enter_async_context(replaying(SERVERS[name], port=port))

    return Fault(
        name=f"{name}: dies",
        begin=begin,
        end=end,
        check=lambda series: _down(series, name, {"unreachable"}),
    )


def _flaps(name: str) -> Fault:
    """Return a fault in which a server is another one at every moment; only the page's form is held to."""
    tasks: list[asyncio.Task[None]] = []
    faces = [
        dict(SERVERS[name]),
        {path: Answer(status=500) for path in SERVERS[name]},
        vllm_pages("hybrid-idle"),
        llamacpp_pages("split", "idle"),
        {path: replace(page, body=page.body[: len(page.body) // 2]) for path, page in SERVERS[name].items()},
    ]

    async def turn(stage: Stage) -> None:
        while True:
            for face in faces:
                stage.replays[name].pages = dict(face)
                await asyncio.sleep(INTERVAL_SECONDS / 3)

    async def begin(stage: Stage) -> None:
        tasks.append(asyncio.create_task(turn(stage)))

    async def end(stage: Stage) -> None:
        tasks.pop().cancel()
        stage.replays[name].pages = dict(SERVERS[name])

    return Fault(name=f"{name}: is somebody else at every poll", begin=begin, end=end)


def _driver(what: str, rule: str, targets: tuple[str, ...], *, seconds: float = 40.0) -> Fault:
    """Return a fault of the driver, which may take a back-off to be over."""

    async def begin(stage: Stage) -> None:
        stage.driver(rule)

    async def end(stage: Stage) -> None:
        stage.driver()

    def check(series: Series) -> list[str]:
        complaints = [f"nvml {t} is up" for t in targets if reason(series, "nvml", t) is None]
        for labels in series.get("kvwatch_device_memory_used_bytes", {}):
            device = dict(labels)["device"]
            if device in targets:
                complaints.append(f"the used bytes of {device} are still there")
        complaints += [f"{name} is down too" for name in SERVERS if reason(series, "engine", name)]
        return complaints

    return Fault(name=f"driver: {what}", begin=begin, end=end, check=check, polls=None, seconds=seconds)


def _child(what: str, number: signal.Signals) -> Fault:
    async def begin(stage: Stage) -> None:
        os.kill(stage.children()[0], number)

    return Fault(name=f"NVML child: {what}", begin=begin, end=nothing, polls=None, seconds=40.0)


def _paused() -> Fault:
    async def begin(stage: Stage) -> None:
        stage.process.send_signal(signal.SIGSTOP)

    async def end(stage: Stage) -> None:
        stage.process.send_signal(signal.SIGCONT)

    return Fault(name="daemon: stopped and continued", begin=begin, end=end, polls=4)


def _reload(what: str, text: str | None) -> Fault:
    async def begin(stage: Stage) -> None:
        stage.configure(text)
        stage.process.send_signal(signal.SIGHUP)

    async def end(stage: Stage) -> None:
        stage.configure()
        stage.process.send_signal(signal.SIGHUP)

    # A reload starts sources anew; they are known after their first poll.
    return Fault(name=f"configuration: {what}", begin=begin, end=end, polls=4)


def _limit(what: str, which: int, soft: Callable[[Stage], int]) -> Fault:
    async def begin(stage: Stage) -> None:
        stage.limit(which, soft(stage))

    async def end(stage: Stage) -> None:
        stage.limit(which, None)

    return Fault(name=what, begin=begin, end=end, polls=None, seconds=40.0)


def _slow_scrapers() -> Fault:
    """Forty clients that ask and do not read, and ten that never finish asking."""
    writers: list[asyncio.StreamWriter] = []

    async def begin(stage: Stage) -> None:
        host, _, port = stage.url.removeprefix("http://").partition(":")
        for number in range(50):
            _, writer = await asyncio.open_connection(host, int(port), limit=1)
            ask = "GET /metrics HTTP/1.1\r\nHost: a\r\n"
            writer.write((ask + "\r\n" if number % 5 else ask).encode())
            writers.append(writer)

    async def end(_: Stage) -> None:
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        writers.clear()

    return Fault(
        name="scrapers: fifty that do not read",
        begin=begin,
        end=end,
        check=lambda series: [f"{name} is down" for name in SERVERS if reason(series, "engine", name)],
    )


def _restart(number: signal.Signals) -> Fault:
    """End the daemon at any moment, and start it on the same history."""

    async def begin(stage: Stage) -> None:
        await asyncio.sleep(random.uniform(0, INTERVAL_SECONDS))  # noqa: S311
        status = await stage.end(number)
        expected = 0 if number is signal.SIGTERM else -number
        assert status == expected, f"exit status {status}"
        await stage.start()

    return Fault(name=f"daemon: {number.name} and a new start", begin=begin, end=nothing, polls=4)


def faults() -> list[Fault]:
    """Return every fault."""
    made = []
    for name in VICTIMS:
        made += [
            _server(name, "hangs", lambda page: replace(page, hang=True), {"timeout"}),
            _server(name, "drips", lambda page: replace(page, drip_seconds=0.5), {"timeout"}),
            _server(
                name,
                "talks garbage",
                lambda page: replace(page, body=os.urandom(4096)),
                {"parse_error", "no_engine_series"},
            ),
            _server(
                name,
                "says nothing",
                lambda page: replace(page, body=b""),
                {"parse_error", "no_engine_series"},
            ),
            _server(
                name,
                "sends a huge page",
                lambda page: replace(page, body=b"# " + b"x" * 40_000_000 + b"\n" + page.body),
                {"too_large"},
            ),
            _server(name, "answers 500", lambda page: replace(page, status=500), {"http_error"}),
            _server(
                name,
                "redirects",
                lambda page: replace(page, status=302, headers={"Location": "http://127.0.0.1:1/metrics"}),
                {"redirect"},
            ),
            _dies(name),
            _flaps(name),
        ]
    return [
        *made,
        _driver("hangs", "delay * ms=forever\n", ("driver",)),
        _driver("loses a card", "lost gpu=1\n", (UUIDS[1],)),
        _driver("is unloaded", "fail nvml* code=9\n", ("driver", *UUIDS)),
        _driver("denies a card", "fail nvmlDeviceGetMemoryInfo* code=4 gpu=0\n", (UUIDS[0],)),
        _child("killed", signal.SIGKILL),
        _child("stopped", signal.SIGSTOP),
        _paused(),
        _reload("loaded again", None),
        _reload("broken", "servers: [{nme: chat}]\n"),
        _limit(
            "descriptors: none left",
            resource.RLIMIT_NOFILE,
            lambda stage: stage.resources().descriptors,
        ),
        _limit("disk: no byte can be written", resource.RLIMIT_FSIZE, lambda _: 0),
        _slow_scrapers(),
        _restart(signal.SIGTERM),
        _restart(signal.SIGKILL),
    ]
