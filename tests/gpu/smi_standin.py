"""`nvidia-smi` as a stand-in: the two queries of the smoke test, asked of libnvidia-ml.so.1 through pynvml.

It shares no code with kvwatch. SMI_SCENARIO names another scenario file than the one that kvwatch reads, so
that the two disagree.
"""

from __future__ import annotations

import os
import sys

if "SMI_SCENARIO" in os.environ:
    os.environ["KVWATCH_NVML_SCENARIO"] = os.environ["SMI_SCENARIO"]

import pynvml

MIB = 1 << 20


def mib(value: int | None) -> str:
    """Return bytes as nvidia-smi rounds them."""
    return "[N/A]" if value is None else str(round(value / MIB))


def main() -> int:
    """Print what was asked for."""
    query = sys.argv[1]
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    if not handles:
        print("No devices were found")
        return 6
    for handle in handles:
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        if query.startswith("--query-gpu="):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            values = [memory.total, memory.used, memory.free, memory.reserved]
            print(", ".join([uuid, *map(mib, values)]))
        else:
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle):
                print(f"{uuid}, {process.pid}, {mib(process.usedGpuMemory)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
