"""The join: devices, processes, engines and model files as one picture. Pure: values in, values out."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.inputs import Inputs
from kvwatch.ledger import Usage, device_ledger
from kvwatch.owners import Owner, find_owners
from kvwatch.readings import Outcome, ProcessTable, Reason, Source
from kvwatch.servers import join_server
from kvwatch.snapshot import DeviceState, ProcessState, ServerState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.readings import DeviceReading

__all__ = ["Inputs", "Joined", "join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The picture; `outcomes` are those of the model source."""

    devices: tuple[DeviceState, ...]
    processes: tuple[ProcessState, ...]
    servers: tuple[ServerState, ...]
    outcomes: tuple[Outcome, ...]


def join(inputs: Inputs) -> Joined:
    """Join one poll's readings."""
    pids = {process.pid for device in inputs.devices for process in device.processes}
    owners = find_owners(inputs.processes, pids)
    servers: list[ServerState] = []
    outcomes: list[Outcome] = []
    for target in inputs.targets:
        try:
            state, outcome = join_server(target, inputs, owners)
        except Exception:  # noqa: BLE001 - a bug met by one server's data must not blind the others
            state = ServerState(target=target, reading=None)
            outcome = Outcome(
                source=Source.MODEL,
                target=target.name,
                reason=Reason.INTERNAL_ERROR,
                detail=traceback.format_exc(),
            )
        servers.append(state)
        outcomes.append(outcome)
    return Joined(
        devices=tuple(_device(device, inputs, owners, servers) for device in inputs.devices),
        processes=tuple(
            ProcessState(
                device=device.uuid,
                pid=process.pid,
                used_bytes=process.used_bytes,
                name=_name(inputs.processes, process.pid),
                server=owners[process.pid].server,
                match=owners[process.pid].match,
            )
            for device in inputs.devices
            for process in device.processes
        ),
        servers=tuple(servers),
        outcomes=tuple(outcomes),
    )


def _device(
    device: DeviceReading, inputs: Inputs, owners: Mapping[int, Owner], servers: Sequence[ServerState]
) -> DeviceState:
    by_server = {
        server.target.name: server.device_bytes[device.uuid]
        for server in servers
        if device.uuid in server.device_bytes
    }
    nobodys = [process.used_bytes for process in device.processes if owners[process.pid].server is None]
    known = [used for used in nobodys if used is not None]
    whole = device.processes_reason is None and len(known) == len(nobodys)
    untold = any(owners[process.pid].ambiguous for process in device.processes)
    certain = whole and not untold and not (nobodys and _some_owner_unknown(inputs))
    usage = Usage(
        by_server=by_server,
        nobodys_bytes=sum(known) if certain else None,
        kv_bytes={
            server.target.name: server.pool_bytes
            for server in servers
            if server.pool_bytes is not None and device.uuid in server.device_bytes
        },
        weights_bytes={
            server.target.name: server.weights_bytes
            for server in servers
            if server.weights_bytes is not None and device.uuid in server.device_bytes
        },
    )
    return DeviceState(
        reading=device,
        ledger=device_ledger(device, usage),
        share_sum_ratio=_share_sum(device, servers),
    )


def _share_sum(device: DeviceReading, servers: Sequence[ServerState]) -> float | None:
    """Add up what the servers on a device claim of it.

    gpu_memory_utilization is a claim on the whole card; a server without one, or with a pin that overrides
    it, claims what its processes hold.
    """
    claims: list[float] = []
    for server in servers:
        if device.uuid not in server.device_bytes:
            continue
        share, held = server.share_ratio, server.device_bytes[device.uuid]
        if share is None and held is not None and device.total_bytes:
            share = held / device.total_bytes
        if share is None:
            return None
        claims.append(share)
    return sum(claims) if claims else None


def _some_owner_unknown(inputs: Inputs) -> bool:
    """Tell whether a process without an owner may still be a watched server's."""
    return any(outcome.reason is not None for outcome in inputs.processes.outcomes)


def _name(processes: ProcessTable, pid: int) -> str | None:
    identity = processes.processes.get(pid)
    return identity.name if identity else None
