"""Draw the previews of the dashboards: `python -m tests.previews`. It takes three minutes.

A real Prometheus scrapes `kvwatch demo` until its evening peak meets the small pool, then Fleet, Server and
Card ask it their committed queries. Triage compares with the day before, so it asks about a scripted day.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.demo.day import CARD, CHAT, DEFAULT_SPEED, HOUR, OPENING
from tests.browser import chromium, open_tab
from tests.previews.answers import Asker
from tests.previews.page import WIDTH, page_of
from tests.previews.scripted import scripted
from tests.test_dashboards_live import demo
from tests.test_prometheus import prometheus

if TYPE_CHECKING:
    from tests.browser import Tab

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
BAD_MOMENT = 19.7 * HOUR
"""Of the demo: the pool is small since the restart of 18:00, and since 19:00 the load is high."""
MOST_BYTES = 250_000
OF_THE_DEMO, OF_A_SCRIPTED_DAY = ("fleet", "server", "card"), ("triage",)
_CUT_OFF = """[...document.querySelectorAll('h3, th, td')]
    .filter(element => element.scrollWidth > element.clientWidth).map(element => element.textContent)"""


async def draw(name: str, asker: Asker, tab: Tab, folder: Path) -> None:
    """Write the picture of a dashboard, and say what it cuts off."""
    dashboard = json.loads((ROOT / "dashboards" / "json" / f"{name}.json").read_text(encoding="utf-8"))
    page = folder / f"{name}.html"
    page.write_text(page_of(dashboard, asker), encoding="utf-8")
    await tab.call("Page.navigate", url=page.as_uri())
    await tab.until("document.fonts.status === 'loaded' && document.querySelector('main') !== null")
    shot = await tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
    picture = IMAGES / f"dashboard-{name}.png"
    picture.write_bytes(base64.b64decode(shot["data"]))
    size = picture.stat().st_size
    print(f"{picture} {size:,} bytes{'' if size < MOST_BYTES else ': too large'}")
    for text in await tab.value(_CUT_OFF):
        print(f"  cut off: {text}")


async def draw_demo(folder: Path, browser: str) -> None:
    """Let the demo's day pass until the bad moment, and draw what is about it."""
    async with demo() as target, prometheus(folder, target, interval="1s") as url:
        start = time.time()
        await asyncio.sleep((BAD_MOMENT - OPENING) / DEFAULT_SPEED)
        chosen = {"server": CHAT, "device": CARD.uuid}
        asker = Asker(url=url, start=start, end=time.time(), scrape_seconds=1.0, chosen=chosen)
        async with open_tab(browser, width=WIDTH) as tab:
            for name in OF_THE_DEMO:
                await draw(name, asker, tab, folder)


async def draw_scripted(folder: Path, browser: str, asker: Asker) -> None:
    """Draw what is about the scripted day."""
    async with open_tab(browser, width=WIDTH) as tab:
        for name in OF_A_SCRIPTED_DAY:
            await draw(name, asker, tab, folder)


def main() -> int:
    """Draw all of them."""
    logging.disable(logging.WARNING)  # servers that restart are the point here, not news
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with chromium(folder / "profile") as browser:
            (folder / "demo").mkdir()
            asyncio.run(draw_demo(folder / "demo", browser))
            (folder / "day").mkdir()
            with scripted(folder / "day") as asker:
                asyncio.run(draw_scripted(folder / "day", browser, asker))
    return 0


if __name__ == "__main__":
    sys.exit(main())
