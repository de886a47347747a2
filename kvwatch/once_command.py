"""`kvwatch once`: one poll as a table or as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from kvwatch.document import snapshot_document
from kvwatch.logs import set_up_logging
from kvwatch.readings import Reason
from kvwatch.table import render_table
from kvwatch.wiring import Devices, open_poller

if TYPE_CHECKING:
    from kvwatch.config import Config
    from kvwatch.snapshot import Snapshot

_FINE, _PROBLEMS, _CANNOT_TELL = 0, 1, 3


def run_once(config: Config, *, as_json: bool) -> int:
    """Print what one poll knows; return the exit status."""
    set_up_logging("logfmt", "error")  # the table says what is not known

    async def poll() -> Snapshot:
        async with open_poller(config, Devices()) as poller:
            if config.discovery:
                await poller.discover()
            return await poller.poll()

    snapshot = asyncio.run(poll())
    if as_json:
        print(json.dumps(snapshot_document(snapshot), indent=2, ensure_ascii=False))
    else:
        print(render_table(snapshot), end="")
    return _status(snapshot, driver_needed=config.nvml.enabled is True)


def _status(snapshot: Snapshot, *, driver_needed: bool) -> int:
    """Return 0 when all was readable, 3 when no server and no device was, 1 between.

    With `nvml: {enabled: auto}` a machine without the driver's library is no problem.
    """
    servers = any(server.reading is not None for server in snapshot.servers)
    devices = any(device.reading.used_bytes is not None for device in snapshot.devices)
    if not servers and not devices:
        return _CANNOT_TELL
    forgiven = {None, Reason.NOT_ENABLED, None if driver_needed else Reason.LIBRARY_NOT_FOUND}
    return _PROBLEMS if any(source.reason not in forgiven for source in snapshot.sources) else _FINE
