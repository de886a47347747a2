"""Every query of every panel, asked of a real Prometheus that scrapes the demo."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.previews.answers import Asker
from tests.previews.page import page_of
from tests.test_prometheus import prometheus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.prometheus]

FOLDER = Path(__file__).parents[1] / "dashboards" / "json"
SERVER = "chat"
SCRAPED_SECONDS = 20.0
LOOKED_SECONDS = 60.0
INTERVALS = {"$__rate_interval": "5s", "$__range": "20s", "$back": "5s", "$baseline": "1d"}
_NOTHING_DOWN = "no source of the demo is down"
_NO_DEPLOY = "no flags and no version changed while it was watched"
WITHOUT_DATA = {
    "card: Orphan memory: A": "no server of the demo is gone",
    "card: Start windows: B": "no server started while the demo was watched",
    "card: What is not known on these nodes, and why: B": _NOTHING_DOWN,
    "fleet: Sources, those that are down first: B": _NOTHING_DOWN,
    "fleet: What changed in the time range shown: F": "no server started while the demo was watched",
    "server: What is not known about this server, and why: B": _NOTHING_DOWN,
    "triage: By how much others grew while it started: A": "no server started while the demo was watched",
    "triage: What is not known about this server, and why: B": _NOTHING_DOWN,
    "triage: What runs now: C": _NO_DEPLOY,
    "triage: What runs now: D": "the server has a share and no pinned pool",
    "triage: marks: Changed flags": _NO_DEPLOY,
    "triage: marks: New versions": _NO_DEPLOY,
}
"""Queries that may be empty after so short a time, and why; those of Triage are proved on made-up series."""


def queries() -> Iterator[tuple[str, str, bool]]:
    """Yield what every query of a panel or a mark is called, itself, and whether it is of one moment."""
    for path in sorted(FOLDER.glob("*.json")):
        dashboard: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']}: {target['refId']}", target["expr"], target["instant"]
        for mark in dashboard["annotations"]["list"]:
            yield f"{path.stem}: marks: {mark['name']}", mark["target"]["expr"], False


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


def preview(path: Path, url: str, device: str) -> str:
    """Return the page that `make pictures` would photograph."""
    now = time.time()
    chosen = {"server": SERVER, "device": device, "baseline": "1d", "back": "5s"}
    with httpx.Client(trust_env=False, verify=False) as client:  # noqa: S501 - plain HTTP
        asker = Asker(
            url=url, start=now - SCRAPED_SECONDS, end=now, scrape_seconds=1.0, chosen=chosen, client=client
        )
        return page_of(json.loads(path.read_text(encoding="utf-8")), asker)


async def test_every_query_is_answered_and_those_without_data_are_known(tmp_path: Path) -> None:
    """No query fails; each returns data, or stands in the table with the reason; previews can be drawn."""
    empty: set[str] = set()
    async with (
        demo() as target,
        prometheus(tmp_path, target) as url,
        httpx.AsyncClient(trust_env=False, verify=False) as client,  # noqa: S501 - plain HTTP
    ):

        async def ask(expr: str, *, instant: bool = True) -> list[dict[str, Any]]:
            now = time.time()
            if instant:
                path, when = "query", {"time": now}
            else:
                path, when = "query_range", {"start": now - SCRAPED_SECONDS, "end": now, "step": 1.0}
            answer = (await client.get(f"{url}/api/v1/{path}", params={"query": expr, **when})).json()
            assert answer["status"] == "success", (expr, answer)
            result: list[dict[str, Any]] = answer["data"]["result"]
            return result

        await asyncio.sleep(SCRAPED_SECONDS)
        # A look at the history is a process that lets others go first.
        async with asyncio.timeout(LOOKED_SECONDS):
            while not await ask("kvwatch_capacity_change_ratio"):  # noqa: ASYNC110 - Prometheus tells nobody
                await asyncio.sleep(0.5)
        (memory, *_) = await ask(f'kvwatch_server_device_memory_bytes{{server="{SERVER}"}}')
        device = memory["metric"]["device"]
        for name, expr, instant in queries():
            ready = filled(expr, device)
            assert "$" not in ready.replace('"$1"', ""), name
            if not await ask(ready, instant=instant):
                empty.add(name)
        drawn = {
            path.stem: await asyncio.to_thread(preview, path, url, device) for path in FOLDER.glob("*.json")
        }
    assert empty - set(WITHOUT_DATA) == set()
    for name, page in drawn.items():
        assert page.count('class="nothing"') <= len([one for one in WITHOUT_DATA if one.startswith(name)])
    assert set(WITHOUT_DATA) <= {name for name, _, _ in queries()}
