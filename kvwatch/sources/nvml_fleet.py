"""Joins one poll's answers with the devices of earlier polls, so that none vanishes silently. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.readings import DeviceReading, NvmlReading, Outcome, Reason, Source
from kvwatch.sources.nvml_reasons import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.sources.nvml_wire import DriverAnswer, GpuAnswer

GONE = Failure(reason=Reason.NOT_FOUND, detail="no longer in the driver's list")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """A device seen before: what does not change for a UUID, and where it was."""

    uuid: str
    index: int
    name: str | None
    parent_uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollAnswer:
    """All that one poll brought."""

    driver: DriverAnswer
    """Carries a failure when the driver as a whole did not answer."""
    gpus: tuple[GpuAnswer, ...] = ()
    unread: Failure | None = None
    """Why GPUs are missing from `gpus`; None after a poll that ended."""
    unread_by_index: Mapping[int, Failure]
    """The same for single GPUs: the one that hung, those that are left alone for a while."""
    duration_seconds: float


def assemble(
    answer: PollAnswer, known: tuple[KnownDevice, ...]
) -> tuple[NvmlReading, tuple[KnownDevice, ...]]:
    """Return the reading of a poll and the devices to remember.

    A GPU that was seen before and cannot be read stays, with the reason; so do its MIG instances, until a
    reading of their parent shows that they were removed. One that was never identified is `index:N`.
    """
    names = {device.uuid: device.name for device in known}
    devices: dict[str, DeviceReading] = {}
    outcomes: dict[str, Outcome] = {}
    failed: dict[int, Failure] = {}
    for gpu in answer.gpus:
        if gpu.failure:
            failed[gpu.index] = gpu.failure
        for device, outcome in zip(gpu.devices, gpu.outcomes, strict=True):
            if device.uuid in devices:
                failed.setdefault(
                    gpu.index, Failure(reason=Reason.IMPLAUSIBLE, detail=f"UUID {device.uuid} twice")
                )
                continue
            name = device.name or names.get(device.uuid)
            devices[device.uuid] = replace(device, name=name, driver=answer.driver.version)
            outcomes[device.uuid] = outcome
    answered = {gpu.index for gpu in answer.gpus}
    for index in range(answer.driver.count or 0):
        failure = answer.unread_by_index.get(index, answer.unread)
        if index not in answered and failure:
            failed[index] = failure

    identified = set()
    unread: dict[str, Failure] = {}
    missing = [seen for seen in known if seen.uuid not in devices]
    for seen in missing:
        if seen.parent_uuid is None:
            identified.add(seen.index)
            if answer.driver.failure:
                unread[seen.uuid] = answer.unread_by_index.get(seen.index, answer.driver.failure)
            else:
                unread[seen.uuid] = failed.get(seen.index, GONE)
    for seen in missing:
        if seen.parent_uuid is not None:
            failure = _instance_failure(seen.parent_uuid, answer, devices, unread)
            if failure:
                unread[seen.uuid] = failure
    for seen in missing:
        if seen.uuid in unread:
            devices[seen.uuid] = _unread(seen, unread[seen.uuid].reason)
            outcomes[seen.uuid] = _outcome(seen.uuid, unread[seen.uuid])
    for index in sorted(failed.keys() - identified):
        outcomes[f"index:{index}"] = _outcome(f"index:{index}", failed[index])

    ordered = sorted(devices.values(), key=lambda device: (device.index, device.parent_uuid is not None))
    driver = _outcome("driver", answer.driver.failure, answer.duration_seconds)
    return (
        NvmlReading(devices=tuple(ordered), outcomes=(driver, *outcomes.values())),
        tuple(
            KnownDevice(
                uuid=device.uuid, index=device.index, name=device.name, parent_uuid=device.parent_uuid
            )
            for device in ordered
        ),
    )


def _instance_failure(
    parent: str,
    answer: PollAnswer,
    devices: Mapping[str, DeviceReading],
    unread: Mapping[str, Failure],
) -> Failure | None:
    """Return why a MIG instance is not there; None when it was removed."""
    if parent not in devices:
        return unread.get(parent, GONE)
    for gpu in answer.gpus:
        if any(read.uuid == parent for read in gpu.devices):
            return gpu.instances_failure
    return None


def _unread(device: KnownDevice, reason: Reason) -> DeviceReading:
    return DeviceReading(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        driver=None,
        parent_uuid=device.parent_uuid,
        memory_reason=reason,
        processes_reason=reason,
    )


def _outcome(target: str, failure: Failure | None, duration_seconds: float | None = None) -> Outcome:
    return Outcome(
        source=Source.NVML,
        target=target,
        reason=failure.reason if failure else None,
        detail=failure.detail if failure else "",
        duration_seconds=duration_seconds,
    )
