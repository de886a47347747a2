"""Last week in a Prometheus, where rules and panels compare with it: blocks made of a daemon's exposition."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tests.daemon import parse
from tests.scenarios.prometheus_path import Backfill

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import httpx

WEEK_SECONDS = 7 * 86_400.0
_BEFORE_SECONDS, _AFTER_SECONDS, _STEP_SECONDS = 120.0, 600.0, 5.0
_POLLED_SECONDS = 60.0

SHORT_PROMPTS: Mapping[str, float] = {
    'kvwatch_typical_request_tokens{server="chat",rank="0",part="prompt"}': 400.0,
    'kvwatch_typical_request_tokens{server="chat",rank="0",part="generation"}': 250.0,
    'kvwatch_typical_capacity_requests{server="chat",rank="0"}': 2847 / 41,
    'kvwatch_typical_requests_resident_limit{server="chat",rank="0"}': 69.0,
}
"""The demo's chat server as its history has it of a week ago: 650 tokens are 41 blocks of 16."""


async def exposition(client: httpx.AsyncClient, address: str) -> str:
    """Return what a daemon exports once it knows its servers' pools."""
    async with asyncio.timeout(_POLLED_SECONDS):
        while True:
            text = (await client.get(f"http://{address}/metrics")).text
            if "kvwatch_kv_capacity_blocks{" in text:
                return text
            await asyncio.sleep(0.1)


def write_last_week(folder: Path, instance: str, text: str, then: Mapping[str, float]) -> None:
    """Make a database in `folder`/data: a daemon exported a week ago what it does now, but for `then`."""
    backfill = Backfill()
    now = time.time() - WEEK_SECONDS
    at = now - _BEFORE_SECONDS
    while at < now + _AFTER_SECONDS:
        backfill.add(_lines(text, f'job="kvwatch",instance="{instance}"', then, at), at)
        at += _STEP_SECONDS
    backfill.write(folder)


def _lines(text: str, own: str, then: Mapping[str, float], at: float) -> Iterator[str]:
    """Yield a scrape as OpenMetrics wants it: a name's series together, each with labels and a time."""
    samples: dict[str, dict[str, float]] = {}
    for name, series in parse(text).items():
        for labels, value in series.items():
            samples.setdefault(name, {})[",".join(sorted(f'{key}="{one}"' for key, one in labels))] = value
    for sample, value in then.items():
        name, _, inside = sample.rstrip("}").partition("{")
        samples.setdefault(name, {})[",".join(sorted(inside.split(",")))] = value
    for name, found in samples.items():
        for inside, value in found.items():
            yield f"{name}{{{own}{',' if inside else ''}{inside}}} {value} {at}"
