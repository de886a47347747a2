"""A real Prometheus scrapes the real daemon; promtool reads the demo's exposition."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.daemon import config, parse, running, value
from tests.replay import replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.prometheus]


@contextlib.asynccontextmanager
async def prometheus(folder: Path, target: str, *, interval: str = "200ms") -> AsyncIterator[str]:
    """Run Prometheus, scraping `target`; yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    file = folder / "prometheus.yml"
    file.write_text(
        f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\n"
        f"scrape_configs: [{{job_name: kvwatch, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


async def test_a_real_prometheus_stores_the_fits(tmp_path: Path) -> None:
    """The scrape succeeds, queries over the series answer, and a vanished server is absent."""
    async with (
        replaying(vllm_pages("draining")) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
        prometheus(tmp_path, daemon.url.removeprefix("http://")) as url,
        httpx.AsyncClient(trust_env=False, verify=False) as client,  # noqa: S501 - plain HTTP
    ):

        async def query(expression: str) -> list[float]:
            with contextlib.suppress(httpx.HTTPError, ValueError):  # it is still starting
                answer = (await client.get(f"{url}/api/v1/query", params={"query": expression})).json()
                return [float(series["value"][1]) for series in answer["data"]["result"]]
            return []

        async def until(expression: str, expected: list[float]) -> None:
            found: list[float] = []
            for _ in range(150):
                found = await query(expression)
                if found == expected:
                    return
                await asyncio.sleep(0.1)
            raise AssertionError((expression, found))

        await until("up", [1])
        await until("sum(kvwatch_full_length_requests_fit_now)", [1])
        await until("kvwatch_requests_running + on (server, rank) kvwatch_full_length_requests_headroom", [1])
        await until('kvwatch_preemptions_total{server="s"}', [42])
        replay.pages.clear()
        await until("kvwatch_full_length_requests_fit_now", [])
        await until('kvwatch_source_reason{source="engine"}', [1])


async def test_the_demo_is_what_promtool_likes_and_ends_at_once() -> None:
    """The demo's whole exposition passes the check in silence; SIGTERM ends it with status 0."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvwatch", "demo", "--listen", "127.0.0.1:0", stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        url = ""
        async with asyncio.timeout(30):
            while "http://" not in url:
                url = (await process.stderr.readline()).decode()
        metrics = url.split()[-1]
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - plain HTTP
            text = ""
            for _ in range(100):
                text = (await client.get(metrics)).text
                if text.count("kvwatch_full_length_requests_fit_now{") == 2:
                    break
                await asyncio.sleep(0.1)
        series = parse(text)
        fits = value(series, "full_length_requests_fit_guaranteed", server="chat", rank="0")
        assert fits is not None
        assert fits > 0
        check = await asyncio.create_subprocess_exec(
            "promtool", "check", "metrics",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert await check.communicate(text.encode()) == (b"", None)
    finally:
        process.terminate()
        async with asyncio.timeout(5):
            await process.wait()
    assert process.returncode == 0
