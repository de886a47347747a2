"""Every query of every panel, asked of a real Prometheus that scrapes the demo."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.test_prometheus import prometheus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.prometheus]

FOLDER = Path(__file__).parents[1] / "dashboards" / "json"
SERVER = "chat"
SCRAPED_SECONDS = 20.0
INTERVALS = {"$__rate_interval": "5s", "$back": "5s", "$baseline": "1d"}
WITHOUT_DATA: dict[str, str] = {}


def queries() -> Iterator[tuple[str, str]]:
    """Yield every query of a panel or a mark, and what it is called."""
    for path in sorted(FOLDER.glob("*.json")):
        dashboard: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']}: {target['refId']}", target["expr"]
        for mark in dashboard["annotations"]["list"]:
            yield f"{path.stem}: marks: {mark['name']}", mark["target"]["expr"]


def filled(expr: str, device: str) -> str:
    """Return a query as Grafana would send it, all daemons chosen and one server and device."""
    for name, value in INTERVALS.items():
        expr = expr.replace(name, value)
    for name, value in {"job": ".*", "instance": ".*", "server": SERVER, "device": device}.items():
        expr = re.sub(rf"\${name}\b", value, expr)
    return expr


@contextlib.asynccontextmanager
async def demo() -> AsyncIterator[str]:
    """Run the demo; yield host and port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvwatch", "demo", "--listen", "127.0.0.1:0", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        line = ""
        async with asyncio.timeout(30):
            while "http://" not in line:
                line = (await process.stderr.readline()).decode()
        yield line.split("http://")[1].split("/")[0]
    finally:
        process.terminate()
        await process.wait()


async def test_every_query_is_answered_and_those_without_data_are_known(tmp_path: Path) -> None:
    """No query fails; each returns data, or stands in the table with the reason."""
    empty: set[str] = set()
    async with (
        demo() as target,
        prometheus(tmp_path, target) as url,
        httpx.AsyncClient(trust_env=False, verify=False) as client,  # noqa: S501 - plain HTTP
    ):

        async def ask(expr: str) -> list[dict[str, Any]]:
            answer = (await client.get(f"{url}/api/v1/query", params={"query": expr})).json()
            assert answer["status"] == "success", (expr, answer)
            result: list[dict[str, Any]] = answer["data"]["result"]
            return result

        await asyncio.sleep(SCRAPED_SECONDS)
        (device, *_) = await ask(f'kvwatch_server_device_memory_bytes{{server="{SERVER}"}}')
        for name, expr in queries():
            assert "$" not in (ready := filled(expr, device["metric"]["device"])).replace('"$1"', ""), name
            if not await ask(ready):
                empty.add(name)
    assert empty == set(WITHOUT_DATA)
