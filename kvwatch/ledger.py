"""Where a device's memory went: parts that add up to its total, or are left out when not known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.snapshot import Component, LedgerPart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.readings import DeviceReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A device's memory by owner; a server's sum is None where one of its processes is N/A."""

    by_server: Mapping[str, int | None]
    nobodys_bytes: int | None
    """Processes of no known server; None where that cannot be said."""
    kv_bytes: Mapping[str, int]
    """Each server's KV pool on this device, where it is known."""
    weights_bytes: Mapping[str, int]
    """Each server's weights on this device, where they are known."""
    orphans: Mapping[str, int | None] = field(default_factory=dict)
    """Processes that outlived their server, by its name; empty where that is not known."""

    @property
    def seen_bytes(self) -> int | None:
        """What all processes hold; None where that of one is not known."""
        shares = [*self.by_server.values(), *self.orphans.values(), self.nobodys_bytes]
        return None if None in shares else sum(share for share in shares if share is not None)


def device_ledger(device: DeviceReading, usage: Usage) -> tuple[LedgerPart, ...]:
    """Divide a device's memory; nothing is clamped: a negative part is left out, like an unknown one."""
    parts: list[LedgerPart] = []
    for server, used in sorted(usage.by_server.items()):
        parts += _server_parts(server, used, usage.kv_bytes.get(server), usage.weights_bytes.get(server))
    parts += [
        LedgerPart(component=Component.ORPHAN, server=server, bytes=held)
        for server, held in sorted(usage.orphans.items())
        if held is not None
    ]
    seen = usage.seen_bytes
    rest = None
    if seen is not None and device.used_bytes is not None and device.processes_reason is None:
        rest = device.used_bytes - seen
    for component, value in (
        (Component.OTHER, usage.nobodys_bytes),
        (Component.UNATTRIBUTED, rest),
        (Component.RESERVED, device.reserved_bytes),
        (Component.FREE, device.free_bytes),
    ):
        if value is not None and value >= 0:
            parts.append(LedgerPart(component=component, bytes=value))
    return tuple(parts)


def _server_parts(
    server: str, used: int | None, kv_bytes: int | None, weights_bytes: int | None
) -> list[LedgerPart]:
    if used is None:
        return []
    if kv_bytes is None or kv_bytes > used:
        return [LedgerPart(component=Component.UNDIVIDED, server=server, bytes=used)]
    rest = used - kv_bytes
    divided = {Component.KV_CACHE: kv_bytes, Component.WEIGHTS_AND_WORKING: rest}
    if weights_bytes is not None and weights_bytes <= rest:
        divided = {
            Component.WEIGHTS: weights_bytes,
            Component.KV_CACHE: kv_bytes,
            Component.WORKING: rest - weights_bytes,
        }
    return [LedgerPart(component=part, server=server, bytes=size) for part, size in divided.items()]
