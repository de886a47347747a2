"""kvwatch beside `nvidia-smi` on a real GPU, while a process takes memory and gives it back.

    python tests/gpu/smoke.py [--mib 1024] [--wheels DIR] [--output FILE]

Needs this repository, Python 3.11 and nvidia-ml-py (installed, or its wheel in DIR). Exit status: 0 all
figures agree, 1 some do not, 3 no GPU here or too little to tell. See README.md beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from ask_smi import NoGpuError, look  # noqa: E402
from rows import (  # noqa: E402
    AGREES,
    DIFFERS,
    Row,
    Sight,
    allocation_rows,
    device_rows,
    ledger_rows,
    process_rows,
    table,
)

from kvwatch.inputs import Inputs  # noqa: E402
from kvwatch.join import join  # noqa: E402
from kvwatch.readings import ProcessTable  # noqa: E402
from kvwatch.sources.nvml import NvmlSource  # noqa: E402
from kvwatch.sources.procfs import ProcfsSource, ServerAddress  # noqa: E402
from kvwatch.target import Target  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

TRIES = 3
"""Others may allocate between two looks."""
READY_SECONDS = 60.0
FINE, PROBLEMS, CANNOT_TELL = 0, 1, 3


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


async def compare(observer: Observer, pid: int | None) -> tuple[Sight, list[Row]]:
    """Look until both agree, a few times: others may allocate in between."""
    for attempt in range(TRIES):
        sight = await observer.see(pid)
        rows = [*device_rows(sight), *process_rows(sight), *ledger_rows(sight)]
        if all(row.verdict != DIFFERS for row in rows) or attempt == TRIES - 1:
            break
        await asyncio.sleep(0.5)
    return sight, rows


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the allocator's first line; empty when it ended without one."""
    return process.stdout.readline() if process.stdout else ""


async def run(options: argparse.Namespace) -> tuple[list[Row], str]:
    """Compare at rest, with the allocation, and after it; the text says why the latter two are missing."""
    observer = Observer()
    try:
        until = time.monotonic() + READY_SECONDS
        while (await observer.see(None)).reading.outcomes[0].reason == "timeout" and time.monotonic() < until:
            pass  # the child that asks the driver is still starting
        before, rows = await compare(observer, None)
        default = [sys.executable, str(Path(__file__).with_name("allocate.py"))]
        process = subprocess.Popen(  # noqa: ASYNC220 - returns once it runs
            [*(options.allocator or default), str(options.mib)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        ready = threading.Timer(READY_SECONDS, process.kill)
        ready.start()
        try:
            line = await asyncio.to_thread(read_line, process)
            ready.cancel()
            if not line.startswith("ready"):
                return rows, process.communicate()[1].strip() or "the allocator ended"
            during, more = await compare(observer, process.pid)
            rows += more
        finally:
            ready.cancel()
            process.communicate()
        until = time.monotonic() + options.patience
        while True:
            after = await observer.see(None)
            more = list(allocation_rows(before, during, after, process.pid, options.mib))
            if all(row.verdict != DIFFERS for row in more) or time.monotonic() > until:
                return rows + more, f"allocated by {line.split()[1]}"
            await asyncio.sleep(0.5)
    finally:
        await observer.close()


def main() -> int:
    """Run, print, and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=1024, help="MiB to allocate (default 1024)")
    parser.add_argument("--wheels", type=Path, help="folder with the nvidia-ml-py wheel, used as it is")
    parser.add_argument("--patience", type=float, default=15.0, help="seconds until memory is given back")
    parser.add_argument("--output", type=Path, help="file to keep the comparison in, as JSON")
    parser.add_argument("--allocator", nargs="+", help="another command that allocates; gets the MiB")
    options = parser.parse_args()
    if options.wheels:
        # A pure wheel can be imported as it is; the NVML child finds it by this variable.
        wheels = [str(wheel.resolve()) for wheel in sorted(options.wheels.glob("*.whl"))]
        os.environ["PYTHONPATH"] = os.pathsep.join([*wheels, *filter(None, [os.environ.get("PYTHONPATH")])])
        sys.path[1:1] = wheels
    if importlib.util.find_spec("pynvml") is None:
        print("too little to tell: nvidia-ml-py is not installed; see --wheels in tests/gpu/README.md")
        return CANNOT_TELL
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
