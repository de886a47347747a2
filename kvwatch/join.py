"""The join: devices, processes, engines and model files as one picture. Pure: values in, values out."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.attribution import attribute
from kvwatch.inputs import Inputs
from kvwatch.ledger import device_ledger
from kvwatch.owners import find_owners
from kvwatch.readings import Outcome, Reason, Source
from kvwatch.servers import join_server
from kvwatch.shares import claimed_ratio, device_claims, gave_memory_back
from kvwatch.snapshot import DeviceState, ProcessState, ServerState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.attribution import Attribution
    from kvwatch.custody import Custody
    from kvwatch.owners import Owner
    from kvwatch.readings import DeviceReading, GpuProcess, ProcessTable

__all__ = ["Inputs", "Joined", "join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The picture; `outcomes` are those of the model source, and why memory could not be attributed."""

    devices: tuple[DeviceState, ...]
    processes: tuple[ProcessState, ...]
    servers: tuple[ServerState, ...]
    outcomes: tuple[Outcome, ...]
    custody: Custody
    """For the next poll."""


def join(inputs: Inputs) -> Joined:
    """Join one poll's readings."""
    pids = {process.pid for device in inputs.devices for process in device.processes}
    custody, owners = inputs.custody.advance(
        inputs.processes,
        find_owners(inputs.processes, pids),
        watched={target.name: target.url for target in inputs.targets},
        at=inputs.at,
    )
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
    attributions = [attribute(device, inputs.processes, owners, servers) for device in inputs.devices]
    outcomes += [attribution.outcome for attribution in attributions if attribution.outcome is not None]
    return Joined(
        custody=custody,
        devices=tuple(
            _device(device, inputs, owners, servers, attribution)
            for device, attribution in zip(inputs.devices, attributions, strict=True)
        ),
        processes=tuple(
            _process(device.uuid, process, owners[process.pid], inputs.processes)
            for device in inputs.devices
            for process in device.processes
        ),
        servers=tuple(servers),
        outcomes=tuple(outcomes),
    )


def _device(
    device: DeviceReading,
    inputs: Inputs,
    owners: Mapping[int, Owner],
    servers: Sequence[ServerState],
    attribution: Attribution,
) -> DeviceState:
    counts = Counter(server for process in device.processes if (server := owners[process.pid].server))
    claims = device_claims(device, servers, counts, inputs.awake_bytes)
    claims_complete = attribution.owners_known
    return DeviceState(
        reading=device,
        ledger=device_ledger(device, attribution.usage),
        share_sum_ratio=claimed_ratio(claims, asleep=False) if claims_complete else None,
        share_asleep_ratio=claimed_ratio(claims, asleep=True)
        if claims_complete and not _some_sleeper_unplaced(inputs, servers)
        else None,
        claims=claims,
        claims_complete=claims_complete,
    )


def _some_sleeper_unplaced(inputs: Inputs, servers: Sequence[ServerState]) -> bool:
    """Tell whether a server of this machine sleeps of which it is not known what it would take back where."""
    here = {outcome.target for outcome in inputs.processes.outcomes}
    return any(
        gave_memory_back(server)
        and server.target.name in here
        and not server.device_bytes
        and server.target.name not in inputs.awake_bytes
        for server in servers
    )


def _process(device: str, process: GpuProcess, owner: Owner, processes: ProcessTable) -> ProcessState:
    identity = processes.processes.get(process.pid)
    state = ProcessState(
        device=device,
        pid=process.pid,
        used_bytes=process.used_bytes,
        name=None,
        server=owner.server or owner.orphan_of or None,
        match=owner.match,
        orphan=owner.orphan_of is not None,
    )
    if identity is None:
        return state
    return replace(
        state,
        name=identity.name,
        container=identity.container,
        pod_uid=identity.pod_uid,
        unit=identity.unit,
    )
