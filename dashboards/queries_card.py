"""PromQL of one card: who holds it, who claims it, what happened while servers started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.queries import BY_SERVER, FREE_PART, OWNED_PARTS, select
from kvwatch import metrics as m
from kvwatch.finding import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.metrics import Metric

NO_RULE = "none"
_CARD = {"device": "$device"}
_BY_DEVICE = "job, instance, device"
_BY_PID = "job, instance, device, pid"
_BY_FINDING = "job, instance, rule, server, device"


def _by_device(metric: Metric, extra: str = "", **labels: str) -> str:
    return f"max by ({_BY_DEVICE}{extra}) ({select(metric, **labels)})"


LEDGER_NOW = f'label_join({OWNED_PARTS} or {FREE_PART}, "part", " ", "component", "server")'
TOTAL = _by_device(m.DEVICE_TOTAL, **_CARD)
USED = _by_device(m.DEVICE_USED, **_CARD)
FREE = _by_device(m.DEVICE_FREE, **_CARD)
# What the ledger does not cover; absent where the total is, and where no part at all is known.
UNCOVERED = f"{TOTAL} - sum by ({_BY_DEVICE}) ({select(m.DEVICE_LEDGER, **_CARD)})"
INFO = _by_device(m.DEVICE_INFO, ", index, name, driver, parent", **_CARD)

SHARE_SUM = _by_device(m.DEVICE_SHARE_SUM, **_CARD)
SHARE_ASLEEP = _by_device(m.DEVICE_SHARE_ASLEEP, **_CARD)
SHARE_LIMIT = _by_device(m.DEVICE_SHARE_LIMIT, **_CARD)

SHARE_OVER = f"{SHARE_SUM} - on ({_BY_DEVICE}) {SHARE_LIMIT}"

_ABOUT = "name, server, container, unit, match"
PROCESSES = f"max by ({_BY_PID}, {_ABOUT}) ({select(m.PROCESS_INFO, **_CARD)})"
PROCESS_MEMORY = (
    f"max by ({_BY_PID}) ({select(m.PROCESS_MEMORY, **_CARD)}) "
    f"* on ({_BY_PID}) group_left ({_ABOUT}) {PROCESSES}"
)

SERVER_MEMORY = f"max by ({BY_SERVER}, device) ({select(m.SERVER_DEVICE_MEMORY, **_CARD)})"
START_GROWTH = f"max by ({BY_SERVER}, device) ({select(m.SERVER_START_GROWTH, **_CARD)})"
_STARTED = f"max by ({BY_SERVER}) ({select(m.SERVER_START)})"


def _on_card(value: str) -> str:
    """Return a server's value once for each device of its own that is chosen."""
    return f"{value} * on ({BY_SERVER}) group_right () (0 * {SERVER_MEMORY} + 1)"


START_AGE = f"time() - ({_on_card(_STARTED)})"
SHARE_OF_SERVER = _on_card(f"max by ({BY_SERVER}) ({select(m.SERVER_SHARE)})")
PIN_OF_SERVER = _on_card(f"max by ({BY_SERVER}) ({select(m.SERVER_PIN)})")
# In milliseconds, as Grafana wants a value that is a time.
STARTS_MS = f"1000 * ({_STARTED} and on ({BY_SERVER}) {SERVER_MEMORY})"

ORPHANS = f"sum by (device, server) ({select(m.DEVICE_LEDGER, component='orphan', **_CARD)})"
ORPHAN_SUM = f"sum({ORPHANS})"
NOBODYS = f"sum({select(m.DEVICE_LEDGER, component='other', **_CARD)})"


def _ranked(found: Callable[[str], str], among: str) -> str:
    """Return findings as 1, 2 or 3 by severity; or rule `none` as 0, where there was something to judge."""
    ranks = " or ".join(f"{rank} * ({found(severity)})" for rank, severity in enumerate(Severity, 1))
    nothing = f'label_replace(0 * max({among}), "rule", "{NO_RULE}", "", "")'
    return f"max by ({_BY_FINDING}) ({ranks}) or on () {nothing}"


def _about_the_card(severity: str) -> str:
    """Return what was found about the card, and about servers that have memory on it."""
    of_servers = select(m.FINDING, severity=severity, server=".+")
    of_card = select(m.FINDING, severity=severity, **_CARD)
    return f"{of_card} or {of_servers} and on ({BY_SERVER}) {SERVER_MEMORY}"


FINDINGS = _ranked(_about_the_card, TOTAL)
ALL_FINDINGS = _ranked(lambda severity: select(m.FINDING, severity=severity), select(m.UP))
FINDING_COUNT = f"count({select(m.FINDING)}) or 0 * count({select(m.UP)})"
