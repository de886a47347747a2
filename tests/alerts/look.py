"""Run the demo with Prometheus and Alertmanager beside it, to look at: make demo-alerts.

Options are the hour to begin with, such as 12:00.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

from tests.alerts.scenes import demo
from tests.alerts.stack import stack


async def main(clock: str) -> None:
    """Run until interrupted."""
    hours, minutes = clock.split(":")
    told: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory(prefix="kvwatch-demo-alerts-") as folder:
        async with (
            demo(int(hours) + int(minutes) / 60, told=told) as address,
            stack(Path(folder), {"demo": address}) as one,
        ):
            print(f"the page      http://{address}/")
            print(f"Prometheus    {one.prometheus}/alerts")
            print(f"Alertmanager  {one.alertmanager}/")
            shown_lines = shown_notices = 0
            while True:
                for _, line in told[shown_lines:]:
                    print(line)
                for notice in one.notices[shown_notices:]:
                    print(f"      {notice.status:8} {notice.annotations['summary']}")
                shown_lines, shown_notices = len(told), len(one.notices)
                await asyncio.sleep(0.2)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "08:00"))
