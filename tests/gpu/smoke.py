"""kvwatch beside `nvidia-smi` on a real GPU: totals, processes, ledger, while a process takes and gives back memory.

    python tests/gpu/smoke.py [--mib 1024] [--wheels DIR] [--output FILE]

Needs this repository, Python 3.11 and nvidia-ml-py (installed, or its wheel in DIR). Exit status: 0 all figures
agree, 1 some do not, 3 no GPU here or too little to tell. See README.md beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from kvwatch.inputs import Inputs  # noqa: E402
from kvwatch.join import join  # noqa: E402
from kvwatch.readings import ProcessTable  # noqa: E402
from kvwatch.sources.nvml import NvmlSource  # noqa: E402
from kvwatch.sources.procfs import ProcfsSource, ServerAddress  # noqa: E402
from kvwatch.target import Target  # noqa: E402
from nvidia_smi import FIELDS, NoGpuError, Smi, look  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.join import Joined
    from kvwatch.readings import NvmlReading

MIB = 1 << 20
ROUNDING = 1
"""MiB: nvidia-smi rounds to whole ones."""
TRIES = 4
"""Others may allocate between two looks."""
READY_SECONDS = 60.0
GONE_SECONDS = 15.0
AGREES, DIFFERS, UNTOLD = "ok", "DIFFERS", "-"
FINE, PROBLEMS, CANNOT_TELL = 0, 1, 3


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
    """What kvwatch saw between two looks of nvidia-smi."""

    before: Smi
    reading: NvmlReading
    joined: Joined
    private: bool | None
    after: Smi


class Observer:
    """kvwatch's own sources and join, with the allocating process as a configured server."""

    def __init__(self) -> None:
        self._nvml = NvmlSource(deadline_seconds=10.0, env=dict(os.environ))
        self._procfs = ProcfsSource()

    async def see(self, pid: int | None) -> Sight:
        """Look once; `pid` is the allocator's."""
        before = look()
        reading = await self._nvml.poll()
        targets = () if pid is None else (Target(name="smoke", url="http://h:1", host="h", port=1, pid=pid),)
        addresses = [ServerAddress(name="smoke", host="h", port=1, pid=pid) for _ in targets]
        pids = {process.pid for device in reading.devices for process in device.processes}
        private = self._procfs.private_pid_namespace
        table = self._procfs.read(pids, addresses) if not private else ProcessTable()
        joined = join(
            Inputs(targets=targets, engines={}, models={}, devices=reading.devices, processes=table)
        )
        return Sight(before=before, reading=reading, joined=joined, private=private, after=look())

    async def close(self) -> None:
        """End the child that asks the driver."""
        await self._nvml.close()


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
        ours = {process.pid: process for process in device.processes}
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
    gone = pid not in {process.pid for process in after.joined.processes}
    yield Row(what=f"process {pid} is gone", kvwatch=None, nvidia_smi="", verdict=AGREES if gone else DIFFERS)


def _row(what: str, value: int | None, smi: list[int | None], why: str = "") -> Row:
    known = [number for number in smi if number is not None]
    shown = "-".join(str(number) for number in sorted(set(known))) or "N/A"
    if value is None or not known:
        # N/A on both sides agrees; on one side only, somebody reads what the other does not.
        alike = value is None and not known
        verdict = UNTOLD if alike or why else DIFFERS
        return Row(what=what, kvwatch=None if value is None else value / MIB, nvidia_smi=shown, verdict=verdict,
                   why=why or ("neither says" if alike else ""))  # fmt: skip
    agrees = min(known) - ROUNDING <= value / MIB <= max(known) + ROUNDING
    return Row(
        what=what, kvwatch=value / MIB, nvidia_smi=shown, verdict=AGREES if agrees else DIFFERS, why=why
    )


def _used(sight: Sight) -> float | None:
    values = [device.used_bytes for device in sight.reading.devices if not device.divided]
    known = [value for value in values if value is not None]
    return sum(known) / MIB if values and len(known) == len(values) else None


def _smi_used(smi: Smi) -> int:
    return sum(memory["used"] or 0 for memory in smi.memory.values())


async def compare(observer: Observer, pid: int | None) -> tuple[Sight, list[Row]]:
    """Look until both agree, a few times: others may allocate in between."""
    for attempt in range(TRIES):
        sight = await observer.see(pid)
        rows = [*device_rows(sight), *process_rows(sight), *ledger_rows(sight)]
        if all(row.verdict != DIFFERS for row in rows) or attempt == TRIES - 1:
            break
        await asyncio.sleep(0.5)
    return sight, rows


async def run(options: argparse.Namespace) -> tuple[list[Row], str]:
    """Compare at rest, with the allocation, and after it; the text says why the latter two are missing."""
    observer = Observer()
    try:
        until = time.monotonic() + READY_SECONDS
        while (await observer.see(None)).reading.outcomes[0].reason == "timeout" and time.monotonic() < until:
            pass  # the child that asks the driver is still starting
        before, rows = await compare(observer, None)
        command = [*(options.allocator or [sys.executable, str(Path(__file__).with_name("allocate.py"))]),
                   str(options.mib)]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            if process.stdin is None or process.stdout is None or process.stderr is None:
                return rows, "no pipes"
            line = await asyncio.wait_for(process.stdout.readline(), READY_SECONDS)
            if not line.startswith(b"ready"):
                return rows, (await process.stderr.read()).decode().strip() or "the allocator ended"
            during, more = await compare(observer, process.pid)
            rows += more
            process.stdin.close()
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        until = time.monotonic() + GONE_SECONDS
        while True:
            after = await observer.see(None)
            more = list(allocation_rows(before, during, after, process.pid, options.mib))
            if all(row.verdict != DIFFERS for row in more) or time.monotonic() > until:
                return rows + more, f"allocated by {line.decode().split()[1]}"
            await asyncio.sleep(0.5)
    finally:
        await observer.close()


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


def main() -> int:
    """Run, print, and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=1024, help="MiB to allocate (default 1024)")
    parser.add_argument("--wheels", type=Path, help="folder with the nvidia-ml-py wheel, used as it is")
    parser.add_argument("--output", type=Path, help="file to keep the comparison in, as JSON")
    parser.add_argument("--allocator", nargs="+", help="another command that allocates; gets the MiB")
    options = parser.parse_args()
    if options.wheels:
        # A pure wheel can be imported as it is; the NVML child finds it by this variable.
        wheels = [str(wheel.resolve()) for wheel in sorted(options.wheels.glob("*.whl"))]
        os.environ["PYTHONPATH"] = os.pathsep.join([*wheels, *filter(None, [os.environ.get("PYTHONPATH")])])
    started = time.monotonic()
    try:
        look()
        rows, note = asyncio.run(run(options))
    except NoGpuError as error:
        print(f"no GPU here: {error}")
        return CANNOT_TELL
    print(table(rows))
    differ = sum(row.verdict == DIFFERS for row in rows)
    agree = sum(row.verdict == AGREES for row in rows)
    allocated = any(row.what.startswith("memory in use") for row in rows)
    print(f"{agree} agree, {differ} differ, {len(rows) - agree - differ} not told; {note}; "
          f"{time.monotonic() - started:.0f} s")  # fmt: skip
    status = PROBLEMS if differ else FINE if allocated and agree else CANNOT_TELL
    if options.output:
        kept: Mapping[str, Any] = {"status": status, "note": note, "rows": [asdict(row) for row in rows]}
        options.output.write_text(json.dumps(kept, indent=2) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
