"""A short soak of the real daemon, and that a soak sees what is wrong; `make soak` goes on for longer."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.soak.faults import Fault, faults, nothing
from tests.soak.run import soak

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

CHOSEN = (
    "chat: sends a huge page",
    "split: is somebody else at every poll",
    "hybrid: dies",
    "NVML child: killed",
    "disk: no byte can be written",
    "scrapers: fifty that do not read",
    "daemon: stopped and continued",
    "daemon: SIGKILL and a new start",
)
"""One of each kind that no other test tries against a whole daemon."""
BRIEFLY = (0.5, 1.0)


def named(name: str) -> Fault:
    """Return a fault by its name."""
    (found,) = (fault for fault in faults() if fault.name == name)
    return found


async def test_a_fault_after_another_leaves_nothing_behind(tmp_path: Path) -> None:
    """After each fault every series is as before within two polls, and nothing is still held."""
    report = await soak(
        tmp_path,
        [named(name) for name in CHOSEN],
        random.Random(7),  # noqa: S311
        last_seconds=BRIEFLY,
    )
    assert report.complaints == []
    assert sorted(report.faults) == sorted(CHOSEN)


async def test_a_soak_sees_what_is_wrong(tmp_path: Path) -> None:
    """A server that does not come back, and one that should be down and is not, are both told."""
    dies = named("split: dies")
    broken = [
        replace(dies, name="stays away", end=nothing, seconds=0.0),
        replace(dies, name="never went", begin=nothing, end=nothing),
    ]
    told = (await soak(tmp_path, broken, random.Random(7), last_seconds=(0.1, 0.1))).complaints  # noqa: S311
    assert any(complaint.startswith("stays away: not as before: kvwatch_") for complaint in told)
    assert any("never went: the reason is None" in complaint for complaint in told)
