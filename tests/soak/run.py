"""One soak: faults by chance, one after the other or two at once, each followed by a look at everything."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

from tests.soak.stage import INTERVAL_SECONDS, Resources, Stage, stage

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.soak.faults import Fault

WARM_UP_POLLS = 8
LAST_SECONDS = (1.5, 4.0)
"""How long a fault lasts before it is looked at."""
DESCRIPTORS_SPARE = 12
"""Kept connections to servers and of scrapers that come and go."""
THREADS_SPARE = 6
"""A pool's threads start when they are first needed."""
RESIDENT_SPARE_MIB = 6.0


@dataclass(kw_only=True)
class Report:
    """What a soak found; `complaints` is empty when all was well."""

    faults: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)
    """Seconds until all was as before, the longest of each fault."""
    resident_mib: list[float] = field(default_factory=list)
    """After each fault."""


async def soak(
    folder: Path,
    faults: Sequence[Fault],
    dice: random.Random,
    *,
    seconds: float | None = None,
    last_seconds: tuple[float, float] = LAST_SECONDS,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run faults in a shuffled order, each once, or again and again for `seconds`."""
    report = Report()
    until = None if seconds is None else time.monotonic() + seconds
    async with stage(folder) as running:
        await asyncio.sleep(INTERVAL_SECONDS * WARM_UP_POLLS)
        running.baseline = await running.scrape()
        before = running.resources()
        while True:
            for fault in dice.sample(list(faults), len(faults)):
                if until is not None and time.monotonic() > until:
                    break
                found = await _one(running, fault, dice.uniform(*last_seconds), report)
                now = running.resources()
                report.faults.append(fault.name)
                report.resident_mib.append(now.resident_mib)
                found += await _leaks(running, before)
                report.complaints += [f"{fault.name}: {complaint}" for complaint in found]
                say(f"{fault.name}: {'; '.join(found) or 'well'} ({now.resident_mib:.1f} MiB)")
                if found:
                    # What one fault broke must not be held against the next.
                    await running.end(signal.SIGKILL)
                    await running.start()
                    await asyncio.sleep(INTERVAL_SECONDS * WARM_UP_POLLS)
            if until is None or time.monotonic() > until:
                break
        report.complaints += [f"log: {line}" for line in running.log if "Traceback" in line]
        half = report.resident_mib[len(report.resident_mib) // 2 :]
        if half and half[-1] - half[0] > RESIDENT_SPARE_MIB:
            report.complaints.append(f"memory grew from {half[0]:.1f} to {half[-1]:.1f} MiB")
    return report


async def _one(running: Stage, fault: Fault, seconds: float, report: Report) -> list[str]:
    """Let a fault begin, last and end; return what was wrong."""
    try:
        await fault.begin(running)
        await asyncio.sleep(seconds)
        found = await _checked(running, fault)
    finally:
        await fault.end(running)
    ended, polls = time.monotonic(), running.polls()
    difference = ["nothing was seen"]
    while True:
        try:
            asked = running.polls()
            difference = running.difference(await running.scrape())
        except (httpx.HTTPError, AssertionError) as error:
            difference = [f"{type(error).__name__}: {error}"]
        if not difference:
            break
        # The poll under way when the fault ended does not count, nor the one under way now.
        late = (
            time.monotonic() - ended > fault.seconds
            if fault.polls is None
            else asked - polls > fault.polls + 2
        )
        if late or time.monotonic() - ended > fault.seconds + 20:
            found += ["not as before: " + "; ".join(difference[:4])]
            break
        await asyncio.sleep(INTERVAL_SECONDS / 5)
    report.slowest[fault.name] = max(report.slowest.get(fault.name, 0.0), time.monotonic() - ended)
    return found


async def _checked(running: Stage, fault: Fault) -> list[str]:
    """Return the complaints of a fault's check, which may need a few polls to be true."""
    if fault.check is None:
        return []
    complaints: list[str] = []
    for _ in range(40):
        try:
            complaints = fault.check(await running.scrape())
        except (httpx.HTTPError, AssertionError) as error:
            complaints = [f"{type(error).__name__}: {error}"]
        if not complaints:
            break
        await asyncio.sleep(INTERVAL_SECONDS / 2)
    return complaints


async def _leaks(running: Stage, before: Resources) -> list[str]:
    """Return what the daemon still holds, after a while in which it may let go."""
    for _ in range(60):
        now = running.resources()
        if (
            now.descriptors <= before.descriptors + DESCRIPTORS_SPARE
            and now.threads <= before.threads + THREADS_SPARE
            and now.children <= before.children
        ):
            return []
        await asyncio.sleep(INTERVAL_SECONDS)
    return [f"holds {now}, before {before}"]
