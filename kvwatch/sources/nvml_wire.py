"""Reads the lines of the NVML child into readings, and judges whether they can be true. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvwatch.readings import DeviceReading, GpuProcess, Outcome, Reason, Source, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REASONS: Mapping[int | str, Reason] = {
    1: Reason.INTERNAL_ERROR,  # uninitialized: the child initialises again at its next poll
    2: Reason.INTERNAL_ERROR,  # invalid argument
    3: Reason.NOT_SUPPORTED,
    4: Reason.PERMISSION,
    6: Reason.NOT_FOUND,
    7: Reason.IMPLAUSIBLE,  # insufficient size, after all attempts: a list that never fits
    9: Reason.DRIVER_NOT_LOADED,
    10: Reason.TIMEOUT,
    12: Reason.LIBRARY_NOT_FOUND,
    13: Reason.NOT_SUPPORTED,  # function not found
    15: Reason.DEVICE_LOST,
    16: Reason.DEVICE_LOST,  # reset required
    17: Reason.PERMISSION,  # blocked by the operating system: a device cgroup
    18: Reason.VERSION_MISMATCH,
    25: Reason.NOT_SUPPORTED,  # argument version mismatch
    26: Reason.NOT_SUPPORTED,  # deprecated
    27: Reason.LOADING,  # not ready
    28: Reason.NOT_FOUND,  # GPU not found
    "UnicodeDecodeError": Reason.IMPLAUSIBLE,
    "TypeError": Reason.INTERNAL_ERROR,
    "AttributeError": Reason.INTERNAL_ERROR,
    "NVMLLibraryMismatchError": Reason.NOT_SUPPORTED,
}
"""NVML's return codes (nvml.h, nvmlReturn_t) and what pynvml raises besides; all others are `unreachable`,
999 (unknown) among them: inside a container that lost its device access it is all that NVML says."""

PID_LIMIT = 4_194_304
"""PID_MAX_LIMIT of 64-bit Linux (include/linux/threads.h)."""
MEMORY_SLACK_BYTES = 64 << 20
MEMORY_SLACK_RATIO = 0.02
"""How far the parts of a device's memory may miss its total; garbage misses it by far more."""
UUID_LENGTH = 96
COUNT_LIMIT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no answer."""

    reason: Reason
    detail: str


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
        poll = _count(fields["poll"])
        if "opening" in fields or "asking" in fields:
            return Line(poll=poll, touching=_count(fields["opening" if "opening" in fields else "asking"]))
        if "driver" in fields:
            return Line(poll=poll, driver=_driver(fields["driver"]))
        if "device" in fields:
            return Line(poll=poll, gpu=_gpu(fields["device"]))
        return Line(poll=poll, end=fields["end"] is True)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        detail = f"{type(error).__name__} in a line of the NVML child: {line[:120]!r}"
        raise SourceError(Reason.PARSE_ERROR, detail) from None


def failure_of(error: Any) -> Failure:
    """Say what an error on the wire means."""
    code, text = error
    return Failure(reason=REASONS.get(code, Reason.UNREACHABLE), detail=f"{text} ({code})"[:200])


def _count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(value)


def _driver(fields: Mapping[str, Any]) -> DriverAnswer:
    if "error" in fields:
        return DriverAnswer(code=fields["error"][0], failure=failure_of(fields["error"]))
    version, count = fields["version"], _count(fields["count"])
    if count > COUNT_LIMIT:
        return DriverAnswer(failure=Failure(reason=Reason.IMPLAUSIBLE, detail=f"{count} GPUs"))
    return DriverAnswer(version=version if isinstance(version, str) else None, count=count)


def _gpu(fields: Mapping[str, Any]) -> GpuAnswer:
    index, errors, uuid = _count(fields["index"]), fields["errors"], fields["uuid"]
    if "device" in errors:
        return GpuAnswer(index=index, failure=failure_of(errors["device"]))
    if not _is_uuid(uuid):
        return GpuAnswer(
            index=index,
            failure=Failure(reason=Reason.IMPLAUSIBLE, detail=f"UUID {str(uuid)[:UUID_LENGTH]!r}"),
        )
    seconds = float(fields["seconds"])
    read = [_device(fields, index=index, parent=None, seconds=seconds)]
    instances_failure = failure_of(errors["instances"]) if "instances" in errors else None
    for instance in fields.get("instances", ()):
        if _is_uuid(instance["uuid"]):
            read.append(_device(instance, index=index, parent=uuid, seconds=seconds))
        else:
            instances_failure = Failure(reason=Reason.IMPLAUSIBLE, detail="UUID of a MIG instance")
    return GpuAnswer(
        index=index,
        devices=tuple(device for device, _ in read),
        outcomes=tuple(outcome for _, outcome in read),
        instances_failure=instances_failure,
    )


def _is_uuid(value: Any) -> bool:
    return (
        isinstance(value, str) and 0 < len(value) <= UUID_LENGTH and value.isascii() and value.isprintable()
    )


def _device(
    fields: Mapping[str, Any], *, index: int, parent: str | None, seconds: float
) -> tuple[DeviceReading, Outcome]:
    errors, memory = fields["errors"], fields.get("memory")
    memory_failure = failure_of(errors["memory"]) if memory is None else _memory_failure(memory)
    if memory is None or memory_failure is not None:
        memory = {}
    if "instances" in fields:
        # Its processes are listed by instance: at one level only, so that nobody counts them twice.
        processes: tuple[GpuProcess, ...] = ()
        processes_reason: Reason | None = Reason.NOT_SUPPORTED
        failures = [memory_failure]
    else:
        processes, processes_failure = _processes(fields["lists"], errors, memory.get("total"))
        processes_reason = processes_failure.reason if processes_failure else None
        failures = [memory_failure, processes_failure]
    if "instances" in errors:
        failures.append(failure_of(errors["instances"]))
        processes_reason = processes_reason or failure_of(errors["instances"]).reason
    name = fields.get("name")
    device = DeviceReading(
        uuid=fields["uuid"],
        index=index,
        name=name if isinstance(name, str) else None,
        driver=None,
        parent_uuid=parent,
        total_bytes=memory.get("total"),
        used_bytes=memory.get("used"),
        free_bytes=memory.get("free"),
        reserved_bytes=memory.get("reserved"),
        memory_version=memory.get("version"),
        memory_reason=memory_failure.reason if memory_failure else None,
        processes=processes,
        processes_reason=processes_reason,
    )
    worst = _worst([failure for failure in failures if failure])
    outcome = Outcome(
        source=Source.NVML,
        target=device.uuid,
        reason=worst.reason if worst else None,
        detail=worst.detail if worst else "",
        duration_seconds=seconds,
    )
    return device, outcome


def _worst(failures: list[Failure]) -> Failure | None:
    """Pick the reason to show: what can be repaired goes before what a device never had."""
    if not failures:
        return None
    worst = next((failure for failure in failures if failure.reason != Reason.NOT_SUPPORTED), failures[0])
    return Failure(reason=worst.reason, detail="; ".join(failure.detail for failure in failures))


def _memory_failure(memory: Mapping[str, Any]) -> Failure | None:
    """Reject memory whose parts do not make up its total (nvml.h, nvmlMemory_v2_t)."""
    total, used, free = _count(memory["total"]), _count(memory["used"]), _count(memory["free"])
    reserved = _count(memory["reserved"]) if _count(memory["version"]) > 1 else 0
    slack = max(MEMORY_SLACK_BYTES, int(total * MEMORY_SLACK_RATIO))
    if total and max(used, free, reserved) <= total and abs(total - used - free - reserved) <= slack:
        return None
    return Failure(
        reason=Reason.IMPLAUSIBLE,
        detail=f"memory: total {total}, used {used}, free {free}, reserved {reserved}",
    )


def _processes(
    lists: Mapping[str, Any], errors: Mapping[str, Any], total: int | None
) -> tuple[tuple[GpuProcess, ...], Failure | None]:
    """Merge the process lists: each PID once, with the most that any list says.

    An incomplete answer keeps the processes that it has; an implausible one keeps none, since the layout that
    garbled one entry garbled them all.
    """
    missing = [
        failure_of(errors[name])
        for name in ("compute", "graphics", "mps")
        if name in errors and (name == "compute" or failure_of(errors[name]).reason != Reason.NOT_SUPPORTED)
    ]
    used_bytes: dict[int, int | None] = {}
    for name, entries in lists.items():
        for doubt in _doubts(entries, total):
            return (), Failure(reason=Reason.IMPLAUSIBLE, detail=f"{name} process list: {doubt}")
        for pid, used in entries:
            known = used_bytes.get(pid)
            used_bytes[pid] = known if used is None else used if known is None else max(known, used)
    processes = (GpuProcess(pid=pid, used_bytes=used) for pid, used in sorted(used_bytes.items()))
    return tuple(processes), _worst(missing)


def _doubts(entries: Any, total: int | None) -> Iterator[str]:
    """Say what cannot be true: early R535 drivers write 32-byte entries, read as 24, and report success."""
    seen: set[int] = set()
    for pid, used in entries:
        if not 0 < _count(pid) <= PID_LIMIT:
            yield f"PID {pid}"
        if pid in seen:
            yield f"PID {pid} twice"
        if used is not None and _count(used) > (used if total is None else total):
            yield f"PID {pid} uses {used} of {total} bytes"
        seen.add(pid)
