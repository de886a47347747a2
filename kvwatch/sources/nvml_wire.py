"""Reads the lines of the NVML child into readings. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvwatch.readings import DeviceReading, Outcome, Reason, SourceError
from kvwatch.sources.nvml_device import UUID_LENGTH, count_of, is_uuid, read_device, without_shared_memory
from kvwatch.sources.nvml_reasons import Failure, failure_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COUNT_LIMIT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAnswer:
    """What NVML said of itself."""

    version: str | None = None
    count: int | None = None
    code: int | str | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAnswer:
    """What NVML said of one GPU: itself first and then its MIG instances, or why it has no identity."""

    index: int
    devices: tuple[DeviceReading, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    failure: Failure | None = None
    instances_failure: Failure | None = None
    """Set when there may be instances that are not among the devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the child."""

    poll: int
    touching: int | None = None
    """The GPU that is asked next, and may hang."""
    driver: DriverAnswer | None = None
    gpu: GpuAnswer | None = None
    end: bool = False


def read_line(line: bytes) -> Line:
    """Read one line; raises SourceError where it is none of the child's."""
    try:
        fields = json.loads(line)
        poll = count_of(fields["poll"])
        if "opening" in fields or "asking" in fields:
            return Line(poll=poll, touching=count_of(fields["opening" if "opening" in fields else "asking"]))
        if "driver" in fields:
            return Line(poll=poll, driver=_driver(fields["driver"]))
        if "device" in fields:
            return Line(poll=poll, gpu=_gpu(fields["device"]))
        return Line(poll=poll, end=fields["end"] is True)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        detail = f"{type(error).__name__} in a line of the NVML child: {line[:120]!r}"
        raise SourceError(Reason.PARSE_ERROR, detail) from None


def _driver(fields: Mapping[str, Any]) -> DriverAnswer:
    if "error" in fields:
        return DriverAnswer(code=fields["error"][0], failure=failure_of(fields["error"]))
    version, count = fields["version"], count_of(fields["count"])
    if count > COUNT_LIMIT:
        return DriverAnswer(failure=Failure(reason=Reason.IMPLAUSIBLE, detail=f"{count} GPUs"))
    return DriverAnswer(version=version if isinstance(version, str) else None, count=count)


def _gpu(fields: Mapping[str, Any]) -> GpuAnswer:
    index, errors, uuid = count_of(fields["index"]), fields["errors"], fields["uuid"]
    if "device" in errors:
        return GpuAnswer(index=index, failure=failure_of(errors["device"]))
    if not is_uuid(uuid):
        return GpuAnswer(
            index=index,
            failure=Failure(reason=Reason.IMPLAUSIBLE, detail=f"UUID {str(uuid)[:UUID_LENGTH]!r}"),
        )
    seconds = float(fields["seconds"])
    read = [read_device(fields, index=index, parent=None, seconds=seconds)]
    instances_failure = failure_of(errors["instances"]) if "instances" in errors else None
    instances = [instance for instance in fields.get("instances", ()) if is_uuid(instance["uuid"])]
    if len(instances) < len(fields.get("instances", ())):
        instances_failure = Failure(reason=Reason.IMPLAUSIBLE, detail="UUID of a MIG instance")
    members = _members(instances)
    for instance in instances:
        device, outcome = read_device(instance, index=index, parent=uuid, seconds=seconds)
        together = members.get(instance.get("gpu_instance"), ())
        if len(together) > 1:
            device, outcome = without_shared_memory(
                device, outcome, instance=instance["gpu_instance"], holder=together[0]
            )
        read.append((device, outcome))
    return GpuAnswer(
        index=index,
        devices=tuple(device for device, _ in read),
        outcomes=tuple(outcome for _, outcome in read),
        instances_failure=instances_failure,
    )


def _members(instances: Sequence[Mapping[str, Any]]) -> dict[int, list[str]]:
    """Return the UUIDs of the compute instances of each GPU instance, as far as the driver told."""
    members: dict[int, list[str]] = {}
    for instance in instances:
        if "gpu_instance" in instance:
            members.setdefault(count_of(instance["gpu_instance"]), []).append(instance["uuid"])
    return members
