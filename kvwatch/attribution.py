"""What of a device's memory is whose, and why a part of that cannot be said. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.kinship import role, speakers
from kvwatch.ledger import Usage
from kvwatch.readings import Outcome, ProcessRole, Reason, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvwatch.owners import Owner
    from kvwatch.readings import DeviceReading, GpuProcess, ProcessTable
    from kvwatch.snapshot import ServerState

Doubt = tuple[Reason, str]
_NAMESPACE_FIX = "run kvwatch in the host's PID namespace (hostPID: true, docker --pid=host)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """A device's memory by owner; the outcome says why a part of it is not known."""

    usage: Usage
    owners_known: bool
    """Every process there has a known owner, or certainly none of the servers."""
    outcome: Outcome | None
    """None for a device whose memory is told by its instances."""


def attribute(
    device: DeviceReading,
    table: ProcessTable,
    owners: Mapping[int, Owner],
    servers: Sequence[ServerState],
) -> Attribution:
    """Add up a device's processes by owner."""
    own = [process for process in device.processes if owners[process.pid].server is not None]
    left = [process for process in device.processes if owners[process.pid].orphan_of is not None]
    rest = [
        process
        for process in device.processes
        if owners[process.pid].server is None and owners[process.pid].orphan_of is None
    ]
    states = {server.target.name: server for server in servers if device.uuid in server.device_bytes}
    by_server = {
        name: states[name].device_bytes[device.uuid] if name in states else None
        for name in sorted({str(owners[process.pid].server) for process in own})
    }
    listed = device.processes_reason is None and not device.divided
    doubts = list(_doubts_of_owners(rest, table, owners, servers))
    usage = Usage(
        by_server=by_server,
        orphans={
            server: _sum(process for process in left if owners[process.pid].orphan_of == server)
            for server in sorted({owners[process.pid].orphan_of or "" for process in left})
        },
        nobodys_bytes=_sum(rest) if listed and not doubts else None,
        kv_bytes={name: state.pool_bytes for name, state in states.items() if state.pool_bytes is not None},
        weights_bytes={
            name: state.weights_bytes for name, state in states.items() if state.weights_bytes is not None
        },
    )
    known = listed and not doubts
    doubts = [*_doubts_of_list(device), *doubts, *_doubts_of_bytes(device, usage)]
    outcome = Outcome(
        source=Source.PROCFS,
        target=device.uuid,
        reason=doubts[0][0] if doubts else None,
        detail="; ".join(dict.fromkeys(detail for _, detail in doubts)),
    )
    return Attribution(usage=usage, owners_known=known, outcome=None if device.divided else outcome)


def _sum(processes: Iterable[GpuProcess]) -> int | None:
    known = [process.used_bytes for process in processes]
    return None if None in known else sum(used for used in known if used is not None)


def _doubts_of_list(device: DeviceReading) -> Iterator[Doubt]:
    """Say why the list of processes may be incomplete, or does not say what each holds."""
    if device.processes_reason is Reason.NAMESPACE:
        yield Reason.NAMESPACE, f"the driver's PIDs mean nothing here: {_NAMESPACE_FIX}"
    elif device.processes_reason is not None:
        yield device.processes_reason, "the driver's list of processes is incomplete"
    silent = [str(process.pid) for process in device.processes if process.used_bytes is None]
    if silent:
        yield Reason.NOT_SUPPORTED, f"the driver does not say what these processes hold: {', '.join(silent)}"


def _doubts_of_owners(
    rest: Sequence[GpuProcess],
    table: ProcessTable,
    owners: Mapping[int, Owner],
    servers: Sequence[ServerState],
) -> Iterator[Doubt]:
    """Say why a process without a server may be one's."""
    for process in rest:
        owner = owners[process.pid]
        if owner.ambiguous:
            yield owner.reason or Reason.AMBIGUOUS, owner.detail or f"process {process.pid}: no certain owner"
    if not rest:
        return
    names = {server.target.name for server in servers}
    for outcome in table.outcomes:
        if outcome.reason is not None and outcome.target in names:
            yield outcome.reason, f"the processes of {outcome.target} are not known"
    matched = {owner.server for owner in owners.values()}
    for server, pids in speakers(table).items():
        if server not in matched and all(role(table, pid) is ProcessRole.OTHER for pid in pids):
            who = f"process {pids[0]} ({table.processes[pids[0]].name})"
            yield (
                Reason.AMBIGUOUS,
                f"{who} listens for {server} and holds no memory: a proxy? configure container or unit",
            )


def _doubts_of_bytes(device: DeviceReading, usage: Usage) -> Iterator[Doubt]:
    """Say where figures contradict each other, so that a part would be negative."""
    seen = usage.seen_bytes
    if seen is not None and device.used_bytes is not None and seen > device.used_bytes:
        yield (
            Reason.IMPLAUSIBLE,
            f"processes claim {seen} bytes of {device.used_bytes} in use: shared buffers are counted twice",
        )
    for server, used in usage.by_server.items():
        pool, weights = usage.kv_bytes.get(server), usage.weights_bytes.get(server, 0)
        if used is not None and pool is not None and pool > used:
            yield (
                Reason.IMPLAUSIBLE,
                f"{server}'s pool of {pool} bytes is more than its processes hold, {used}",
            )
        elif used is not None and pool is not None and pool + weights > used:
            yield (
                Reason.IMPLAUSIBLE,
                f"{server}'s weights of {weights} bytes do not fit beside its pool into {used}",
            )
