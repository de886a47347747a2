"""A real Prometheus with the shipped rules on a faster clock, a real Alertmanager, and whom it tells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import yaml
from aiohttp import web

from tests.alerts.scale import alertmanager, rules

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

DEPLOY = Path(__file__).parents[2] / "deploy"
SCALE = 1 / 60
"""A rule's minute is a second, as it is for the findings of the demo."""
_START_SECONDS = 60.0
_FIRST = -10
"""As nice(1) counts."""
_SCRAPE_SECONDS = 1.0
_EVALUATION_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One alert of one notification."""

    at: float
    status: str
    """firing or resolved."""
    alert: str
    instance: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(kw_only=True)
class Stack:
    """What runs, and what was delivered so far."""

    prometheus: str
    alertmanager: str
    client: httpx.AsyncClient
    notices: list[Notice] = field(default_factory=list)
    muted: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """(instance, alert) that Alertmanager kept quiet -> because of which alerts."""

    async def query(self, expression: str, **when: float) -> list[dict[str, Any]]:
        """Return an instant query's series, or a range query's where start, end and step are given."""
        path = "query_range" if when else "query"
        answer = await self.client.get(
            f"{self.prometheus}/api/v1/{path}", params={"query": expression, **when}
        )
        document = answer.json()
        assert document["status"] == "success", (expression, document)
        series: list[dict[str, Any]] = document["data"]["result"]
        return series

    async def fired(self, since: Mapping[str, float]) -> dict[str, dict[str, list[float]]]:
        """Return instance -> alert -> the moments at which it was firing: Unix seconds, one an evaluation.

        `since` is from when on, for each instance.
        """
        found: dict[str, dict[str, list[float]]] = {}
        for one in await self._over_time('ALERTS{alertstate="firing"}', since):
            name, alert = one["metric"].get("instance", ""), one["metric"]["alertname"]
            moments = [float(at) for at, _ in one["values"] if float(at) >= since[name]]
            if moments:
                found.setdefault(name, {}).setdefault(alert, []).extend(moments)
        return {name: {alert: sorted(at) for alert, at in own.items()} for name, own in found.items()}

    async def _over_time(self, expression: str, since: Mapping[str, float]) -> list[dict[str, Any]]:
        start = min(since.values())
        return await self.query(expression, start=start, end=time.time(), step=_EVALUATION_SECONDS)

    async def firing(self) -> set[tuple[str, str]]:
        """Return the (instance, alert) that fire now."""
        series = await self.query('ALERTS{alertstate="firing"}')
        return {(one["metric"].get("instance", ""), one["metric"]["alertname"]) for one in series}

    async def lost(self, since: Mapping[str, float]) -> set[str]:
        """Return the daemons of which a scrape failed; `since` is from when on, for each instance."""
        return {
            name
            for one in await self._over_time("up == 0", since)
            if any(float(at) >= since[name := one["metric"]["instance"]] for at, _ in one["values"])
        }

    async def scrapes(self, count: int) -> None:
        """Wait until so many daemons are scraped, and none is called absent any more."""
        async with asyncio.timeout(_START_SECONDS):
            while True:
                scraped = len(await self.query("up == 1"))
                if scraped == count and "KvwatchDaemonAbsent" not in {one for _, one in await self.firing()}:
                    return
                await asyncio.sleep(0.1)

    async def look(self) -> None:
        """Note what Alertmanager keeps quiet at this moment, and why."""
        alerts = (await self.client.get(f"{self.alertmanager}/api/v2/alerts")).json()
        names = {one["fingerprint"]: one["labels"]["alertname"] for one in alerts}
        for one in alerts:
            key = (one["labels"].get("instance", ""), one["labels"]["alertname"])
            reasons = {names.get(by, "") for by in one["status"]["inhibitedBy"]}
            if reasons:
                self.muted.setdefault(key, set()).update(reasons)

    def delivered(self, instance: str) -> set[str]:
        """Return the alerts of a daemon that the receiver was told of."""
        return {one.alert for one in self.notices if (one.instance, one.status) == (instance, "firing")}


@contextlib.asynccontextmanager
async def stack(folder: Path, targets: Mapping[str, str], *, scale: float = SCALE) -> AsyncIterator[Stack]:
    """Run both over daemons: `targets` is instance -> host:port; `folder`/data may be a database already."""
    addresses = {name: f"127.0.0.1:{free_port()}" for name in ("prometheus", "alertmanager")}
    async with contextlib.AsyncExitStack() as running:
        client = await running.enter_async_context(
            httpx.AsyncClient(trust_env=False, verify=False, timeout=30)  # noqa: S501 - plain HTTP
        )
        one = Stack(
            prometheus=f"http://{addresses['prometheus']}",
            alertmanager=f"http://{addresses['alertmanager']}",
            client=client,
        )
        webhook = await running.enter_async_context(_receiver(one.notices))
        shipped = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text("utf-8"))
        _write(folder / "alertmanager.yml", alertmanager(shipped, scale, webhook))
        _write(folder / "prometheus.yml", _configuration(folder, targets, addresses["alertmanager"], scale))
        await running.enter_async_context(
            _program(
                "prometheus-alertmanager",
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'silences'}",
                f"--web.listen-address={addresses['alertmanager']}",
                "--cluster.listen-address=",
                "--log.level=error",
            )
        )
        await _ready(client, f"{one.alertmanager}/-/ready")
        await running.enter_async_context(
            _program(
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address={addresses['prometheus']}",
                "--rules.alert.resend-delay=1s",
                "--log.level=error",
            )
        )
        await _ready(client, f"{one.prometheus}/-/ready")
        yield one


@contextlib.contextmanager
def first_in_line() -> Iterator[None]:
    """Go before other work where that is allowed: what is proved here runs by the wall clock."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, usual)


def _configuration(
    folder: Path, targets: Mapping[str, str], manager: str, scale: float
) -> Mapping[str, object]:
    """Return Prometheus's configuration, and write the rules that it names."""
    files = sorted((DEPLOY / "prometheus").glob("*.rules.yml"))
    for file in files:
        _write(folder / file.name, rules(yaml.safe_load(file.read_text("utf-8")), scale))
    return {
        "global": {
            "scrape_interval": f"{round(_SCRAPE_SECONDS * 1000)}ms",
            "scrape_timeout": f"{round(_SCRAPE_SECONDS * 1000)}ms",
            "evaluation_interval": f"{round(_EVALUATION_SECONDS * 1000)}ms",
        },
        "rule_files": [file.name for file in files],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager]}]}]},
        "scrape_configs": [
            {
                "job_name": "kvwatch",
                "static_configs": [
                    {"targets": [address], "labels": {"instance": instance}}
                    for instance, address in targets.items()
                ],
            }
        ],
    }


def _write(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


@contextlib.asynccontextmanager
async def _receiver(notices: list[Notice]) -> AsyncIterator[str]:
    """Listen for notifications; yield the address."""

    async def take(request: web.Request) -> web.Response:
        for alert in (await request.json())["alerts"]:
            labels = alert["labels"]
            notices.append(
                Notice(
                    at=time.time(),
                    status=alert["status"],
                    alert=labels["alertname"],
                    instance=labels.get("instance", ""),
                    labels=labels,
                    annotations=alert["annotations"],
                )
            )
        return web.Response()

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _program(*command: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _ready(client: httpx.AsyncClient, url: str) -> None:
    """Wait until a program answers."""
    async with asyncio.timeout(_START_SECONDS):
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(url)).status_code == httpx.codes.OK:
                    return
            await asyncio.sleep(0.05)


def free_port() -> int:
    """Return a port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
