"""The daemon and the command line with discovery on, beside engines that come, load, and go."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.finder import Finder
from kvwatch.readings import ProcessTable, Reason
from kvwatch.sources.discovery.found import Found, Names
from kvwatch.target import Target
from tests.daemon import config, reason, running, value
from tests.discovery.stand_ins import REPOSITORY, eventually, free_port, llama_server, vllm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.daemon import Running

pytestmark = pytest.mark.anyio


def kvwatch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "kvwatch", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": REPOSITORY, "LD_LIBRARY_PATH": "/nowhere"},
    )


async def servers(daemon: Running) -> dict[str, dict[str, Any]]:
    """Return the servers of the snapshot by name, each with its sequence number."""
    document = json.loads(await daemon.text("/api/v1/snapshot"))
    return {
        server["target"]["name"]: {**server, "sequence": document["sequence"]}
        for server in document.get("servers", ())
    }


async def found(daemon: Running, *names: str) -> dict[str, dict[str, Any]]:
    """Wait until the servers are read; return them."""
    async with asyncio.timeout(15):
        while True:
            seen = await servers(daemon)
            if all(name in seen and seen[name]["reading"] for name in names):
                return seen
            await asyncio.sleep(0.02)


async def test_run_finds_both_engines_within_two_polls(tmp_path: Path) -> None:
    """With nothing configured: their engines, flags, models and fits, and those of one that comes later."""
    with (
        vllm(tmp_path / "v", free_port(), "--max-num-seqs", "2") as first,
        llama_server(tmp_path / "l", free_port() + 500) as second,
    ):
        one, other = f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"
        async with running(config("", interval="1s", discovery=True)) as daemon:
            seen = await found(daemon, one, other)
            assert seen[one]["sequence"] <= 2
            assert seen[one]["target"]["discovered"] is True
            series = await daemon.series()
            assert value(series, "server_info", server=one, engine="vllm") == 1
            assert value(series, "server_info", server=other, engine="llamacpp") == 1
            assert value(series, "request_limit", server=one) == 2
            assert value(series, "full_length_requests_fit_now", server=other) == 4
            assert reason(series, "procfs", one) in (None, "namespace")
            assert value(series, "source_up", source="procfs", target="discovery") is not None
            with vllm(tmp_path / "w", free_port() + 900) as third:
                before = seen[one]["sequence"]
                before = max(before, (await servers(daemon))[one]["sequence"])
                late = f"127.0.0.1:{third.port}"
                seen = await found(daemon, late)
                # The poll that was under way when it came counts as none.
                assert seen[late]["sequence"] <= before + 3
            await daemon.until(
                lambda series: value(series, "source_up", source="engine", target=late) is None
            )
            assert f'"{late}"' not in await daemon.text()
            assert value(await daemon.series(), "server_info", server=one) == 1


async def test_a_server_that_loads_is_there_and_says_so(tmp_path: Path) -> None:
    """Its engine source is down with reason loading; then it is up, under the same name."""
    port = free_port()
    name = f"127.0.0.1:{port}"
    with vllm(tmp_path, port, loads=True) as engine:
        async with running(config("", discovery=True)) as daemon:
            series = await daemon.until(
                lambda series: value(series, "source_up", source="engine", target=name) == 0
            )
            assert reason(series, "engine", name) == "loading"
            assert engine.asked == []
            engine.listen()
            series = await daemon.until(
                lambda series: value(series, "source_up", source="engine", target=name) == 1
            )
            assert value(series, "server_start_timestamp_seconds", server=name) is not None


async def test_a_configured_server_is_not_found_twice(tmp_path: Path) -> None:
    """Under its own name, with what is configured; the other one beside it."""
    with (
        vllm(tmp_path / "v", free_port()) as named,
        llama_server(tmp_path / "l", free_port() + 500) as other,
    ):
        text = f"servers: [{{name: chat, url: 'http://localhost:{named.port}', request_limit: 3}}]"
        async with running(config(text, discovery=True)) as daemon:
            seen = await found(daemon, "chat", f"127.0.0.1:{other.port}")
            assert f"127.0.0.1:{named.port}" not in seen
            assert seen["chat"]["target"]["discovered"] is False
            assert value(await daemon.series(), "request_limit", server="chat") == 3


async def test_switched_off_by_the_configuration_it_lets_go(tmp_path: Path) -> None:
    """On SIGHUP what was found is gone with the next poll, its failures too; and it comes back."""
    with vllm(tmp_path, free_port()) as engine:
        name = f"127.0.0.1:{engine.port}"
        on = config("", discovery=True)
        loads = iter([config("", discovery=False), on])
        async with running(on, load=lambda: next(loads)) as daemon:
            await found(daemon, name)
            os.kill(os.getpid(), 1)
            await daemon.until(
                lambda series: value(series, "source_up", source="engine", target=name) is None
            )
            assert f'"{name}"' not in await daemon.text()
            assert "discovery" not in await daemon.text()
            os.kill(os.getpid(), 1)
            await found(daemon, name)


def test_once_reads_what_it_finds(tmp_path: Path) -> None:
    """One command, no arguments: both engines as JSON and as a table, with what was read of them."""
    with (
        vllm(tmp_path / "v", free_port(), "--max-num-seqs", "2") as first,
        llama_server(tmp_path / "l", free_port() + 500) as second,
    ):
        document = json.loads(kvwatch("once", "--json").stdout)
        seen = {server["target"]["port"]: server for server in document["servers"]}
        assert seen[first.port]["reading"]["engine"] == "vllm"
        assert seen[first.port]["target"]["request_limit"] == 2
        assert seen[first.port]["target"]["discovered"] is True
        assert seen[second.port]["reading"]["engine"] == "llamacpp"
        table = kvwatch("once").stdout
        assert f"127.0.0.1:{first.port} was found by itself: process {first.pid}" in table
        without = kvwatch("once", "--no-discovery")
        assert str(first.port) not in without.stdout
        assert without.returncode == 3
        assert "none is named, and discovery is off" in without.stdout


def test_run_says_what_it_finds_and_what_goes(tmp_path: Path) -> None:
    """One line for each, once; and when nothing is found what was looked for."""
    log = tmp_path / "log"
    line = [sys.executable, "-m", "kvwatch", "run", "--listen", "127.0.0.1:0", "--interval", "200ms"]
    environment = {**os.environ, "PYTHONPATH": REPOSITORY, "LD_LIBRARY_PATH": "/nowhere"}
    with log.open("w") as output, subprocess.Popen(line, stderr=output, env=environment) as daemon:
        try:
            eventually(lambda: "listens on" in log.read_text())
            with vllm(tmp_path / "v", free_port()) as engine:
                name = f"127.0.0.1:{engine.port}"
                eventually(lambda: f"found server {name}: vllm, process {engine.pid}" in log.read_text())
                time.sleep(0.5)
            eventually(lambda: f"server {name} is no longer found" in log.read_text())
            assert log.read_text().count(f"found server {name}") == 1
        finally:
            daemon.terminate()


@dataclass
class Stuck:
    """A look that hangs in the kernel until it is let go."""

    released: threading.Event = field(default_factory=threading.Event)
    reading: int | None = 4242
    result: Found = field(default_factory=Found)

    def read(self, *_: object, **__: object) -> Found:
        """Return the result, late."""
        if not self.released.wait(10):
            raise AssertionError
        return self.result


async def test_a_look_that_hangs_costs_no_server_that_is_known() -> None:
    """A command line that the kernel does not hand out: named, and what was found before stays."""
    chat = Target(name="chat", url="http://127.0.0.1:1", host="127.0.0.1", port=1, discovered=True)
    stuck = Stuck(result=Found(targets=(chat,)))
    stuck.released.set()
    finder = Finder(stuck, deadline_seconds=0.1)
    await finder.look([], ProcessTable(), [], private=False)
    stuck.released.clear()
    for _ in range(2):
        (outcome,) = await finder.look([], ProcessTable(), [], private=False)
        assert (outcome.target, outcome.reason) == ("discovery", Reason.TIMEOUT)
        assert "process 4242" in outcome.detail
        assert finder.targets == (chat,)
    stuck.released.set()
    for _ in range(100):
        if not await finder.look([], ProcessTable(), [], private=False):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not recover")


def test_a_name_stays_with_its_server_and_goes_with_its_address() -> None:
    """Of two that want one name the older has it; what was given stays given while it may."""
    names = Names()
    assert names.give({"a": ("h:1", 10), "b": ("h:1", 20)}, set()) == {"a": "h:1", "b": "h:1-20"}
    assert names.give({"b": ("h:1", 20)}, set()) == {"b": "h:1-20"}
    assert names.give({"c": ("h:1", 5), "b": ("h:1", 20)}, set()) == {"c": "h:1", "b": "h:1-20"}
    assert names.give({"c": ("h:1", 5)}, {"h:1"}) == {"c": "h:1-5"}
    assert names.give({"c": ("h:2", 5)}, {"h:1"}) == {"c": "h:2"}
    (strange,) = names.give({"d": ("a host/" + "x" * 90, 4_194_304)}, set()).values()
    assert strange.startswith("a-host-xxx")
    assert len(strange) <= 64
