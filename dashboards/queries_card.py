"""PromQL of one card: who holds it, who claims it, what happened while servers started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.queries import BY_SERVER, LEDGER, select
from kvwatch import metrics as m

if TYPE_CHECKING:
    from kvwatch.metrics import Metric

_CARD = {"device": "$device"}
_BY_DEVICE = "job, instance, device"
_BY_PID = "job, instance, device, pid"


def _by_device(metric: Metric, extra: str = "", **labels: str) -> str:
    return f"max by ({_BY_DEVICE}{extra}) ({select(metric, **labels)})"


LEDGER_NOW = f'label_join({LEDGER}, "part", " ", "component", "server")'
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

FINDINGS = f"max by (job, instance, rule, severity, server, device) ({select(m.FINDING, **_CARD)})"
ALL_FINDINGS = f"max by (job, instance, rule, severity, server, device) ({select(m.FINDING)})"
FINDING_COUNT = f"count({select(m.FINDING)}) or 0 * count({select(m.UP)})"
