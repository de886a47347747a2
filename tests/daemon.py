"""The real daemon inside the test's event loop, on a port of its own, and its exposition as a dictionary."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvwatch.app import Daemon
from kvwatch.config import parse_config
from kvwatch.engines import ADAPTERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kvwatch.config import Config
    from kvwatch.wiring import Devices

Series = dict[str, dict[tuple[tuple[str, str], ...], float]]


@dataclass
class Running:
    """A running daemon."""

    url: str
    client: httpx.AsyncClient
    daemon: Daemon

    async def text(self, path: str = "/metrics") -> str:
        """Return a page."""
        return (await self.client.get(self.url + path)).text

    async def series(self) -> Series:
        """Return the exposition as name -> labels -> value."""
        return parse(await self.text())

    async def until(self, condition: Callable[[Series], bool], *, seconds: float = 10.0) -> Series:
        """Scrape until `condition` holds; fail with the exposition when it does not in time."""
        text = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    text = await self.text()
                    series = parse(text)
                    if condition(series):
                        return series
                    await asyncio.sleep(0.02)
        raise AssertionError(f"did not come true within {seconds} s; the last exposition:\n{text}")


def parse(text: str) -> Series:
    """Read an exposition; a series that is there twice is an error."""
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in series.setdefault(sample.name, {}), (sample.name, labels)
            series[sample.name][labels] = sample.value
    return series


def value(series: Series, name: str, **labels: str) -> float | None:
    """Return the value of the one series of `kvwatch_NAME` that carries these labels; None when absent."""
    found = [
        number
        for own, number in series.get(f"kvwatch_{name}", {}).items()
        if labels.items() <= dict(own).items()
    ]
    assert len(found) <= 1, (name, labels, found)
    return found[0] if found else None


def reason(series: Series, source: str, target: str) -> str | None:
    """Return why a source is down; None when it is up."""
    up = value(series, "source_up", source=source, target=target)
    reasons = [
        dict(labels)["reason"]
        for labels in series.get("kvwatch_source_reason", {})
        if ("source", source) in labels and ("target", target) in labels
    ]
    assert up is not None, f"no kvwatch_source_up for {source} {target}"
    assert (up == 1) == (not reasons), (up, reasons)
    assert len(reasons) <= 1
    return reasons[0] if reasons else None


def config(
    text: str,
    *,
    nvml: str = "{enabled: false}",
    interval: str = "200ms",
    typical_window: str = "15m",
    discovery: bool = False,
    history: str = "off",
) -> Config:
    """Return a test's configuration: any port, polls often; NVML, discovery and history only if asked."""
    head = f"listen: 127.0.0.1:0\ninterval: {interval}\ntypical_window: {typical_window}\nnvml: {nvml}\n"
    head += f"discovery: {str(discovery).lower()}\nhistory: {history}\n"
    return parse_config(head + text, "kvwatch.yaml", ADAPTERS)


@contextlib.asynccontextmanager
async def running(
    configuration: Config, *, devices: Devices | None = None, load: Callable[[], Config] | None = None
) -> AsyncIterator[Running]:
    """Run the daemon until the block ends; it must then end cleanly within two seconds."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    daemon = Daemon(
        configuration,
        devices=devices,
        load=load,
        on_listen=lambda host, port: listening.set_result(f"http://{host}:{port}"),
    )
    task = asyncio.create_task(daemon.run())
    try:
        await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=5) as client:  # noqa: S501 - plain HTTP
            yield Running(listening.result(), client, daemon)
    finally:
        daemon.stop()
        async with asyncio.timeout(2):
            await task
