"""One snapshot as text that a person likes to read: servers, devices, and what is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.fit import Fit
from kvwatch.readings import Reason, short_id
from kvwatch.sources.discovery.found import DISCOVERY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvwatch.snapshot import DeviceState, RankState, ServerState, Snapshot

UNKNOWN = "?"
_BAR_WIDTH = 40
_MIB = 1 << 20
_HEADINGS = (
    "SERVER",
    "ENGINE",
    "FULL LENGTH",
    "POOL USED",
    "RUN",
    "WAIT",
    "FITS NOW",
    "GUARANTEED",
    "EMPTY",
    "HELD",
    "HEADROOM",
)
_PROCESS_HEADINGS = ("DEVICE", "PID", "NAME", "SERVER", "MATCH", "MEMORY", "CONTAINER", "UNIT")


def render_table(snapshot: Snapshot) -> str:
    """Return the snapshot as a text of several paragraphs; `?` stands for unknown, never for zero."""
    paragraphs = [
        *_servers(snapshot.servers),
        *_search(snapshot),
        *_findings(snapshot),
        *_devices(snapshot),
        *_processes(snapshot),
        *_problems(snapshot),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _servers(servers: Sequence[ServerState]) -> Iterator[str]:
    answering = [server for server in servers if server.reading is not None]
    if not answering:
        return
    rows: list[tuple[str, ...]] = [_HEADINGS]
    notes: list[str] = []
    for server in answering:
        rows += [_rank_row(server, rank) for rank in server.ranks]
        if server.target.discovered:
            notes.append(f"  {server.target.name} was found by itself: process {server.target.pid}")
        if server.reading and server.reading.sleeping:
            notes.append(f"  {server.target.name} sleeps: nothing fits until it wakes")
        if any(rank.basis == "admission" for rank in server.ranks):
            notes.append(
                f"  {server.target.name}: only the engine's start-up charge is known; fits are lower bounds"
            )
    yield "\n".join(["Full-length requests by server", *columns(rows), *notes])


def _rank_row(server: ServerState, rank: RankState) -> tuple[str, ...]:
    name = server.target.name if len(server.ranks) == 1 else f"{server.target.name}/{rank.reading.rank}"
    usage = rank.usage_ratio
    fit = rank.full or Fit()
    return (
        name,
        server.reading.engine if server.reading else UNKNOWN,
        _count(server.full_length_tokens),
        UNKNOWN if usage is None else f"{usage:.0%}",
        _count(rank.load.running),
        _count(rank.load.waiting),
        _count(fit.now),
        _count(fit.guaranteed),
        _count(fit.empty),
        _count(fit.resident_limit),
        _count(fit.headroom),
    )


def _search(snapshot: Snapshot) -> Iterator[str]:
    """Say what was looked for where there is no server at all, and what to do."""
    if snapshot.servers:
        return
    looked = [source.detail for source in snapshot.sources if source.target == DISCOVERY]
    what = _one_line(looked[0]) if looked else "none is named, and discovery is off"
    yield "\n".join(
        (
            "No server",
            f"  {what}",
            "  one that starts here is found by itself; name one elsewhere: --server http://HOST:PORT",
        )
    )


def _findings(snapshot: Snapshot) -> Iterator[str]:
    """Say what is wrong and what to do; a rule that must hold for a while is not among the first poll's."""
    if not snapshot.findings:
        return
    width = max(len(finding.severity) for finding in snapshot.findings)
    lines = ["Findings"]
    for finding in snapshot.findings:
        lines.append(f"  {finding.severity:{width}}  {finding.rule}: {_one_line(finding.summary)}")
        lines.append(f"  {'':{width}}  {_one_line(finding.next_step)}")
    yield "\n".join(lines)


def _devices(snapshot: Snapshot) -> Iterator[str]:
    for device in snapshot.devices:
        yield "\n".join(_device(device))


def _device(device: DeviceState) -> Iterator[str]:
    reading = device.reading
    total = reading.total_bytes
    size = "divided by MIG into what follows" if reading.divided else f"{_mib(total)} in all"
    yield f"Device {reading.index}  {reading.name or UNKNOWN}  {reading.uuid}  {size}"
    if reading.divided:
        return
    rows = [
        (
            part.server or "",
            part.component.replace("_", " "),
            _mib(part.bytes),
            "#" * round(_BAR_WIDTH * part.bytes / total) if total else "",
        )
        for part in device.ledger
    ]
    yield from columns(rows) if rows else [f"  {UNKNOWN} ({reading.memory_reason or 'unknown'})"]


def _processes(snapshot: Snapshot) -> Iterator[str]:
    """List what holds the devices; an orphan is marked, and a pod named where that is known."""
    if not snapshot.processes:
        return
    indexes = {device.reading.uuid: device.reading.index for device in snapshot.devices}
    pods = {pod.container: f"{pod.namespace}/{pod.pod}/{pod.name}" for pod in snapshot.pods}
    rows = [
        (
            str(indexes.get(process.device, UNKNOWN)),
            str(process.pid),
            _one_line(process.name or UNKNOWN),
            process.server or "",
            "orphan" if process.orphan else process.match,
            _mib(process.used_bytes),
            _one_line(pods.get(process.container or "", short_id(process.container or ""))),
            _one_line(process.unit or ""),
        )
        for process in snapshot.processes
    ]
    yield "\n".join(["Processes on the devices", *columns([_PROCESS_HEADINGS, *rows])])


def _problems(snapshot: Snapshot) -> Iterator[str]:
    down = [
        source
        for source in snapshot.sources
        if source.reason is not None and source.reason is not Reason.NOT_ENABLED
    ]
    if down:
        rows = [
            (source.source, source.target, source.reason or "", _one_line(source.detail)) for source in down
        ]
        yield "\n".join(["Not known", *columns(rows)])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align: names to the left, figures to the right, the last column as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        ("  " + "  ".join(_cell(text, width) for text, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def _cell(text: str, width: int) -> str:
    figure = text[:1].isdigit() or text[:1] in ("-", UNKNOWN)
    return text.rjust(width) if figure else text.ljust(width)


def _one_line(text: str) -> str:
    """Return foreign text without line feeds and without what a terminal takes for a command."""
    return text if text.isprintable() else repr(text)[1:-1]


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _mib(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value / _MIB:,.0f} MiB"
