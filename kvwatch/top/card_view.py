"""The cards of a snapshot's document: ledgers that sum to the card, what is not known included. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.byte_sizes import size
from kvwatch.top.fields import fields, number, rows, text, whole, word
from kvwatch.top.views import Card, Part
from kvwatch.top.why import source_why

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN_PART = "unknown"
_NAMES = {
    "kv_cache": "KV cache",
    "working": "working memory",
    "weights_and_working": "weights+working",
    "undivided": "all of it",
    "other": "other processes",
}
_MATCHES = {
    "configured": "configured PID",
    "port": "listening port",
    "tree": "process tree",
    "cgroup": "cgroup",
    "none": "no server",
}


def cards_of(document: Mapping[str, Any]) -> tuple[Card, ...]:
    """Return the cards in the driver's order."""
    labels = labels_of(document)
    return tuple(_card(device, document, labels) for device in rows(document.get("devices")))


def labels_of(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what each card is called, by its UUID: `GPU 0`; its MIG instances `GPU 0/0`, `GPU 0/1` ..."""
    labels: dict[str, str] = {}
    instances: dict[str, int] = {}
    for device in rows(document.get("devices")):
        reading = fields(device.get("reading"))
        index = whole(reading.get("index"))
        label = "GPU ?" if index is None else f"GPU {index}"
        if reading.get("parent_uuid") is not None:
            number = instances.setdefault(label, 0)
            instances[label] += 1
            label = f"{label}/{number}"
        labels[str(reading.get("uuid"))] = label
    return labels


def _card(device: Mapping[str, Any], document: Mapping[str, Any], labels: Mapping[str, str]) -> Card:
    reading = fields(device.get("reading"))
    uuid = text(reading.get("uuid"))
    total = whole(reading.get("total_bytes"))
    parts = tuple(_part(row) for row in rows(device.get("ledger")) if whole(row.get("bytes")) is not None)
    rest = 0 if total is None else total - sum(part.bytes for part in parts)
    return Card(
        label=labels[str(reading.get("uuid"))],
        name=word(reading.get("name")),
        uuid=uuid,
        divided=reading.get("divided") is True,
        total_bytes=total,
        used_bytes=whole(reading.get("used_bytes")),
        free_bytes=whole(reading.get("free_bytes")),
        parts=_with_rest(parts, rest) if parts else (),
        excess_bytes=max(0, -rest),
        why=source_why(document, "nvml", str(reading.get("uuid")))
        or text(reading.get("memory_reason"))
        or "the driver does not say",
        claimed_ratio=number(device.get("share_sum_ratio")),
        limit_ratio=number(document.get("share_limit_ratio")),
        claims=tuple(_claim(row) for row in rows(device.get("claims"))),
        processes=tuple(
            _process(row)
            for row in rows(document.get("processes"))
            if row.get("device") == reading.get("uuid")
        ),
        processes_why=text(reading.get("processes_reason")),
    )


def _part(row: Mapping[str, Any]) -> Part:
    component = text(row.get("component"))
    name = _NAMES.get(component, component.replace("_", " "))
    return Part(
        component=component,
        name=f"{text(row.get('server'))} {name}".strip(),
        bytes=whole(row.get("bytes")) or 0,
    )


def _with_rest(parts: tuple[Part, ...], rest: int) -> tuple[Part, ...]:
    """Return the parts and, before what is free, what is left of the total: neither used nor free."""
    if rest <= 0:
        return parts
    free = next((at for at, part in enumerate(parts) if part.component == "free"), len(parts))
    unknown = Part(component=UNKNOWN_PART, name="unknown", bytes=rest)
    return (*parts[:free], unknown, *parts[free:])


def _claim(row: Mapping[str, Any]) -> str:
    claimed = number(row.get("ratio"))
    figure = (
        f"unknown: {text(row.get('why'))}"
        if claimed is None
        else f"{claimed:.1%} by {text(row.get('basis'))}"
    )
    return f"{text(row.get('server'))} {figure}" + (" (asleep)" if row.get("asleep") is True else "")


def _process(row: Mapping[str, Any]) -> str:
    used = whole(row.get("used_bytes"))
    pid = whole(row.get("pid"))
    match = text(row.get("match"))
    server = text(row.get("server"))
    owner = f"{server} by {_MATCHES.get(match, match)}" if server else "no server"
    if row.get("orphan") is True:
        owner = f"orphan of {server}" if server else "orphan"
    place = text(row.get("unit")) or text(row.get("container"))[:12]
    return "  ".join(
        filter(
            None,
            (
                "?" if pid is None else str(pid),
                word(row.get("name")) or "name unknown: its /proc entry cannot be read",
                "memory unknown: the driver says N/A" if used is None else size(used),
                owner,
                place,
            ),
        )
    )
