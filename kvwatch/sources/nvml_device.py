"""Reads one device of the NVML child's answers, and judges whether it can be true. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvwatch.readings import DeviceReading, GpuProcess, Outcome, Reason, Source
from kvwatch.sources.nvml_reasons import Failure, failure_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PID_LIMIT = 4_194_304
"""PID_MAX_LIMIT of 64-bit Linux (include/linux/threads.h)."""
MEMORY_SLACK_BYTES = 64 << 20
MEMORY_SLACK_RATIO = 0.02
"""How far the parts of a device's memory may miss its total; garbage misses it by far more."""
UUID_LENGTH = 96


def count_of(value: Any) -> int:
    """Return a whole number that is not negative; raises ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(value)


def is_uuid(value: Any) -> bool:
    """Tell whether a UUID may become a label."""
    return (
        isinstance(value, str) and 0 < len(value) <= UUID_LENGTH and value.isascii() and value.isprintable()
    )


def read_device(
    fields: Mapping[str, Any], *, index: int, parent: str | None, seconds: float
) -> tuple[DeviceReading, Outcome]:
    """Read a GPU or a MIG instance; raises what a record of another shape raises."""
    errors, memory, divided = fields["errors"], fields.get("memory") or {}, "instances" in fields
    memory_failure: Failure | None = None
    processes: tuple[GpuProcess, ...] = ()
    processes_reason: Reason | None = None
    if divided:
        # Memory and processes are told by instance: at one level only, so that nobody counts them twice.
        memory, failures = {}, []
    else:
        memory_failure = _memory_failure(memory) if memory else failure_of(errors["memory"])
        if memory_failure is not None:
            memory = {}
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
        memory_reason=Reason.NOT_SUPPORTED if divided else memory_failure.reason if memory_failure else None,
        divided=divided,
        processes=processes,
        processes_reason=processes_reason or (Reason.NOT_SUPPORTED if divided else None),
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


def without_shared_memory(
    device: DeviceReading, outcome: Outcome, *, instance: int, holder: str
) -> tuple[DeviceReading, Outcome]:
    """Leave the memory of a GPU instance with one of its compute instances, the `holder`.

    Each of them states the memory of the whole GPU instance (NVIDIA's MIG guide: compute instances share
    it), so that shown by each it would be counted again; and no one's processes account for all of it.
    """
    detail = f"its memory is that of GPU instance {instance}, shown at {holder}"
    changed = replace(device, processes_reason=device.processes_reason or Reason.NOT_SUPPORTED)
    if device.uuid == holder:
        detail = f"its memory is that of GPU instance {instance}, shared by other compute instances"
    else:
        changed = replace(
            changed,
            total_bytes=None,
            used_bytes=None,
            free_bytes=None,
            reserved_bytes=None,
            memory_version=None,
            memory_reason=device.memory_reason or Reason.NOT_SUPPORTED,
        )
    if outcome.reason is None:
        return changed, replace(outcome, reason=Reason.NOT_SUPPORTED, detail=detail)
    return changed, outcome


def _worst(failures: list[Failure]) -> Failure | None:
    """Pick the reason to show: what can be repaired goes before what a device never had."""
    if not failures:
        return None
    worst = next((failure for failure in failures if failure.reason != Reason.NOT_SUPPORTED), failures[0])
    return Failure(reason=worst.reason, detail="; ".join(failure.detail for failure in failures))


def _memory_failure(memory: Mapping[str, Any]) -> Failure | None:
    """Reject memory whose parts do not make up its total (nvml.h, nvmlMemory_v2_t)."""
    total, used, free = count_of(memory["total"]), count_of(memory["used"]), count_of(memory["free"])
    reserved = count_of(memory["reserved"]) if count_of(memory["version"]) > 1 else 0
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
        if not 0 < count_of(pid) <= PID_LIMIT:
            yield f"PID {pid}"
        if pid in seen:
            yield f"PID {pid} twice"
        if used is not None and count_of(used) > (used if total is None else total):
            yield f"PID {pid} uses {used} of {total} bytes"
        seen.add(pid)
