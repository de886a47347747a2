"""The real daemon and its history: what it says, what is in the file when it ends, and two of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from kvwatch.history.reader import HistoryReader
from tests.daemon import config, parse, reason, running, value
from tests.replay import replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kvwatch.observation import Observation

pytestmark = pytest.mark.anyio


def observations(path: Path, server: str = "s") -> tuple[Observation, ...]:
    """Return all that is kept of a server."""
    with HistoryReader(path) as reader:
        return reader.observations(server, 0, 1e12)


async def test_the_exposition_says_how_history_is(tmp_path: Path) -> None:
    """Up, with the file's size; the first row's time once there is one; a second daemon's reason."""
    path = tmp_path / "history.db"
    async with replaying(vllm_pages("idle")) as replay:
        text = f"servers: [{{name: s, url: '{replay.url}'}}]"
        async with running(config(text, history=f"{{path: {path}}}")) as daemon:
            series = await daemon.until(
                lambda series: value(series, "source_up", source="history", target="store") == 1
            )
            assert value(series, "history_size_bytes") == pytest.approx(path.stat().st_size, abs=2 << 20)
            assert value(series, "history_oldest_timestamp_seconds") is None
            async with running(config(text, history=f"{{path: {path}}}")) as second:
                series = await second.until(lambda series: reason_or_none(series) is not None)
                assert reason(series, "history", "store") == "ambiguous"
                assert "kvwatch_history_size_bytes" not in series
                assert value(series, "requests_running", server="s") == 0
        assert len(observations(path)) >= 1
        async with running(
            config(text, history=f"{{path: {path}, retention: 7d, max_size: 64MiB}}")
        ) as daemon:
            series = await daemon.until(
                lambda series: value(series, "history_oldest_timestamp_seconds") is not None
            )
            assert value(series, "history_oldest_timestamp_seconds") == observations(path)[0].at


def reason_or_none(series: dict[str, dict[tuple[tuple[str, str], ...], float]]) -> str | None:
    """Return the history's reason; None while it was not tried."""
    up = value(series, "source_up", source="history", target="store")
    return None if up is None else reason(series, "history", "store")


async def test_off_means_no_file_and_no_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a folder is made."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    async with (
        replaying(vllm_pages("idle")) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        series = await daemon.until(lambda series: value(series, "requests_running", server="s") == 0)
        assert value(series, "source_up", source="history") is None
    assert not (tmp_path / "state").exists()


@asynccontextmanager
async def process(*arguments: str, **environment: str) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """Run the daemon as its own process; return it with its address."""
    command = [
        sys.executable,
        "-m",
        "kvwatch",
        "run",
        "--no-discovery",
        "--listen",
        "127.0.0.1:0",
        *arguments,
    ]
    with subprocess.Popen(  # noqa: ASYNC220 - it starts at once
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as started:
        assert started.stderr is not None
        try:
            line = await asyncio.to_thread(started.stderr.readline)
            while "listens on" not in line:
                assert line, "it ended"
                line = await asyncio.to_thread(started.stderr.readline)
            yield started, line.split()[-1].rstrip("/")
        finally:
            started.kill()
            started.wait()


async def polled(url: str, times: int) -> None:
    """Wait until the daemon has polled so often."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - plain HTTP
        for _ in range(500):
            answer = await client.get(f"{url}/api/v1/snapshot")
            up = parse((await client.get(f"{url}/metrics")).text).get("kvwatch_history_size_bytes")
            if answer.status_code == 200 and answer.json()["sequence"] >= times and up:
                return
            await asyncio.sleep(0.02)
    raise AssertionError(url)


async def test_sigterm_writes_the_open_minute(tmp_path: Path) -> None:
    """A daemon that is started anew every few seconds loses nothing: a minute's parts are put together."""
    path = tmp_path / "history.db"
    begun = time.time()
    async with replaying(vllm_pages("idle")) as replay:
        options = ("--interval", "200ms", "--history", str(path), "--server", replay.url)
        for _ in range(3):
            async with process(*options) as (daemon, url):
                await polled(url, 3)
                daemon.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(daemon.wait, 5) == 0
                assert not path.with_name("history.db-wal").exists(), "it was closed"
        name = replay.url.removeprefix("http://")
        rows = observations(path, name)
        assert 1 <= len(rows) <= 2
        assert begun - 60 < rows[0].at <= time.time()
        assert {row.at % 60 for row in rows} == {0}
        assert rows[0].finished == 0
        assert (rows[0].setup.engine, rows[0].setup.version) == ("vllm", "0.32.0")
        async with process(*options) as (daemon, url):
            await polled(url, 3)
            daemon.kill()
            daemon.wait()
        assert observations(path, name)[: len(rows)] == rows


async def test_a_secret_of_the_command_line_is_not_kept(tmp_path: Path) -> None:
    """The file holds what the server's page says, and none of its arguments or tokens."""
    path = tmp_path / "history.db"
    token = tmp_path / "token"
    token.write_text("sesame-open")
    async with (
        replaying(vllm_pages("idle")) as replay,
        running(
            config(
                f"servers: [{{name: s, url: '{replay.url}', bearer_token_file: {token}}}]",
                history=f"{{path: {path}}}",
            )
        ) as daemon,
    ):
        await daemon.until(lambda series: value(series, "history_size_bytes") is not None)
    assert observations(path)
    assert b"sesame" not in path.read_bytes()
    assert str(token).encode() not in path.read_bytes()
