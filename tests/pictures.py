"""Draw the pictures of the page in the README: `python -m tests.pictures`, by the real pipeline."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.config import default_config
from kvwatch.triage.live import changes_in
from kvwatch.wiring import Devices, open_poller
from tests.browser import chromium, open_tab
from tests.page import page_of
from tests.scenarios.days import DAYS
from tests.scenarios.history_path import write_history
from tests.scenarios.rehearsal import rehearse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvwatch.snapshot import Snapshot

IMAGES = Path(__file__).parents[1] / "docs" / "images"
DAY = "two-servers-start-at-once"
VIEWS = {"page": (1200, False), "page-dark": (1200, True), "page-narrow": (390, False)}


def end_of(name: str, folder: Path) -> Snapshot:
    """Return the last snapshot of a scripted day, with what its history says of it."""
    (day,) = [day for day in DAYS if day.name == name]
    published = rehearse(day, 0).published
    history = folder / "history.db"
    write_history(history, published)
    now = time.time()
    last = published[-1].snapshot
    shift = now - last.taken_at
    return replace(
        last,
        taken_at=now,
        monotonic_at=time.monotonic(),
        capacity_changes=changes_in(history, now=last.taken_at),
        findings=tuple(replace(finding, since=finding.since + shift) for finding in last.findings),
    )


@contextlib.asynccontextmanager
async def serving(snapshot: Snapshot) -> AsyncIterator[str]:
    """Serve the page of one snapshot."""
    async with open_poller(default_config(), Devices()) as poller:
        poller.snapshot = snapshot
        async with page_of(poller) as url:
            yield url


async def draw(snapshot: Snapshot, browser: str) -> None:
    """Write a picture of each view."""
    async with serving(snapshot) as url:
        for name, (width, dark) in VIEWS.items():
            async with open_tab(browser, width=width, dark=dark) as tab:
                await tab.visit(url)
                await asyncio.sleep(0.5)  # bars grow to their length
                shot = await tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
                picture = IMAGES / f"{name}.png"
                picture.write_bytes(base64.b64decode(shot["data"]))
                print(picture)


def main() -> int:
    """Draw all of them."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        snapshot = end_of(DAY, Path(folder))
        with chromium(Path(folder) / "profile") as browser:
            asyncio.run(draw(snapshot, browser))
    return 0


if __name__ == "__main__":
    sys.exit(main())
