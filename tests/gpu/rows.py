"""One look of kvwatch between two of nvidia-smi, and what they say of the same things, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ask_smi import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ask_smi import Smi

    from kvwatch.join import Joined
    from kvwatch.readings import NvmlReading

MIB = 1 << 20
ROUNDING = 1
"""MiB: nvidia-smi rounds to whole ones."""
AGREES, DIFFERS, UNTOLD = "ok", "DIFFERS", "-"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison; figures in MiB."""

    what: str
    kvwatch: float | None
    nvidia_smi: str
    verdict: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What kvwatch saw, between two looks of nvidia-smi."""

    before: Smi
    reading: NvmlReading
    joined: Joined
    private: bool | None
    after: Smi


def device_rows(sight: Sight) -> Iterator[Row]:
    """Compare each device's memory."""
    seen = {device.uuid: device for device in sight.reading.devices}
    for uuid in sight.before.memory:
        device = seen.get(uuid)
        if device is None:
            yield Row(what=f"{uuid} present", kvwatch=None, nvidia_smi="yes", verdict=DIFFERS)
            continue
        for name in FIELDS:
            smi = [look.memory.get(uuid, {}).get(name) for look in (sight.before, sight.after)]
            value = getattr(device, f"{name}_bytes")
            why = "MIG: told by its instances" if device.divided else ""
            yield _row(f"{uuid} {name}", value, smi, why)


def process_rows(sight: Sight) -> Iterator[Row]:
    """Compare what nvidia-smi lists of processes; kvwatch lists graphics too."""
    for device in sight.reading.devices:
        # nvidia-smi lists what is on a MIG instance under its GPU.
        here = [own for own in sight.reading.devices if device.uuid in (own.uuid, own.parent_uuid)]
        ours = {process.pid: process for own in here for process in own.processes}
        for pid, first in sight.before.processes.get(device.uuid, {}).items():
            last = sight.after.processes.get(device.uuid, {}).get(pid, first)
            name = f"{device.uuid} process {pid}"
            if pid in ours:
                yield _row(name, ours[pid].used_bytes, [first, last])
            elif pid in sight.after.processes.get(device.uuid, {}):
                yield Row(what=name, kvwatch=None, nvidia_smi=str(first), verdict=DIFFERS, why="not listed")


def ledger_rows(sight: Sight) -> Iterator[Row]:
    """Check that each device's parts add up to its total, or say which part is missing."""
    for device in sight.joined.devices:
        total, parts = device.reading.total_bytes, sum(part.bytes for part in device.ledger)
        what = f"{device.reading.uuid} ledger"
        if total is None:
            yield Row(what=what, kvwatch=None, nvidia_smi="", verdict=UNTOLD, why="no total")
            continue
        names = {str(part.component) for part in device.ledger}
        missing = {"other", "unattributed", "free"} - names
        agrees = parts == total
        why = f"without {', '.join(sorted(missing))}" if missing else ""
        if sight.private and not agrees:
            why = "kvwatch is in a private PID namespace: owners are unknown"
        verdict = AGREES if agrees else UNTOLD if missing else DIFFERS
        yield Row(
            what=what, kvwatch=parts / MIB, nvidia_smi=f"{total / MIB:.0f} total", verdict=verdict, why=why
        )


def allocation_rows(before: Sight, during: Sight, after: Sight, pid: int, mib: int) -> Iterator[Row]:
    """Check that the allocation was seen where it was, by whom, and that it went."""
    used = [_used(sight) for sight in (before, during, after)]
    smi = [_smi_used(sight.after) for sight in (before, during, after)]
    for name, index, sign in (("grew by", 1, 1), ("fell by", 2, -1)):
        ours = None if None in used else sign * (used[index] - used[index - 1])  # type: ignore[operator]
        theirs = sign * (smi[index] - smi[index - 1])
        enough = ours is not None and ours >= mib - ROUNDING and theirs >= mib - ROUNDING
        yield Row(what=f"memory in use {name}", kvwatch=ours, nvidia_smi=f"{theirs}, at least {mib}",
                  verdict=AGREES if enough else DIFFERS)  # fmt: skip
    listed = {process.pid: process for process in during.joined.processes}
    if during.private:
        why = "a private PID namespace: run with the host's (hostPID, docker --pid=host)"
        yield Row(what="the process and its ledger", kvwatch=None, nvidia_smi="", verdict=UNTOLD, why=why)
        return
    own = listed.get(pid)
    held = None if own is None else own.used_bytes
    enough = held is not None and held >= mib * MIB
    yield Row(what=f"process {pid} holds", kvwatch=None if held is None else held / MIB,
              nvidia_smi=f"at least {mib}", verdict=AGREES if enough else DIFFERS)  # fmt: skip
    owned = [part for device in during.joined.devices for part in device.ledger if part.server == "smoke"]
    charged = sum(part.bytes for part in owned)
    yield Row(what="its server's part of the ledger", kvwatch=charged / MIB, nvidia_smi="the same",
              verdict=AGREES if held is not None and charged == held else DIFFERS)  # fmt: skip
    left = sum(process.used_bytes or 0 for process in after.joined.processes if process.pid == pid) / MIB
    verdict = DIFFERS if left else AGREES
    yield Row(what=f"process {pid} afterwards", kvwatch=left, nvidia_smi="none", verdict=verdict)


def _row(what: str, value: int | None, smi: list[int | None], why: str = "") -> Row:
    known = [number for number in smi if number is not None]
    shown = "-".join(str(number) for number in sorted(set(known))) or "N/A"
    if value is None or not known:
        # N/A on both sides agrees; on one side only, somebody reads what the other does not.
        alike = value is None and not known
        verdict = UNTOLD if alike or why else DIFFERS
        why = why or ("neither says" if alike else "")
        ours = None if value is None else value / MIB
        return Row(what=what, kvwatch=ours, nvidia_smi=shown, verdict=verdict, why=why)
    agrees = min(known) - ROUNDING <= value / MIB <= max(known) + ROUNDING
    return Row(
        what=what, kvwatch=value / MIB, nvidia_smi=shown, verdict=AGREES if agrees else DIFFERS, why=why
    )


def _used(sight: Sight) -> float | None:
    values = [device.used_bytes for device in sight.reading.devices if not device.divided]
    return None if None in values else sum(value for value in values if value is not None) / MIB


def _smi_used(smi: Smi) -> int:
    return sum(memory["used"] or 0 for memory in smi.memory.values())


def table(rows: list[Row]) -> str:
    """Return the comparisons as text."""
    cells = [("", "WHAT", "KVWATCH", "NVIDIA-SMI", "")]
    cells += [
        (row.verdict, row.what, "?" if row.kvwatch is None else f"{row.kvwatch:.0f}", row.nvidia_smi, row.why)
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
