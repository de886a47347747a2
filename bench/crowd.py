"""Fifty scrapers at once: how long each waits, beside one alone."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import figures
import subjects

if TYPE_CHECKING:
    from results import Results

SCRAPERS = 50
ROUNDS = 4


def measure_crowd(results: Results, url: str) -> None:
    """Let fifty kept connections ask in the same moment, round after round."""
    clients = [subjects.Client(url) for _ in range(SCRAPERS)]
    for client in clients:
        client.get()
    alone = [clients[0].get()[0] for _ in range(20)]
    seconds: list[float] = []
    for _ in range(ROUNDS):
        start = threading.Barrier(SCRAPERS + 1)
        threads = [threading.Thread(target=_ask, args=(client, start, seconds)) for client in clients]
        for thread in threads:
            thread.start()
        start.wait()
        for thread in threads:
            thread.join()
        time.sleep(0.3)
    results.add("one scraper alone, p50", figures.median(alone) * 1000)
    results.add(f"{SCRAPERS} scrapers at once, p50", figures.median(seconds) * 1000)
    results.add(f"{SCRAPERS} scrapers at once, the last", max(seconds) * 1000)
    results.add(f"{SCRAPERS} scrapers at once, answered", len(seconds) / (ROUNDS * SCRAPERS) * 100)


def _ask(client: subjects.Client, start: threading.Barrier, seconds: list[float]) -> None:
    start.wait()
    spent, status, body = client.get()
    if status == 200 and body.endswith(b"\n"):
        seconds.append(spent)
