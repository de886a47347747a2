"""The simulated driver: what the NVML child calls when it is told `--module kvwatch.demo.devices`.

It knows nothing of its own. The fleet writes what the card holds into a file, with the PIDs of real
processes, and every call reads it again. The names and the meaning of each function are NVML's (nvml.h).
"""

# ruff: noqa: N802, N816  # the names are NVML's own

from __future__ import annotations

import json
import os
from collections import namedtuple

TYPE_CHECKING = False  # as in the module that imports this one: it must stay small
if TYPE_CHECKING:
    from typing import Any

STATE_VARIABLE = "KVWATCH_DEMO_DEVICES"
"""Environment variable with the path of the fleet's file."""

nvmlMemory_v2 = 0x02000028

_NOT_SUPPORTED, _NOT_FOUND, _DRIVER_NOT_LOADED = 3, 6, 9

Memory = namedtuple("Memory", "total used free reserved")  # noqa: PYI024
Process = namedtuple("Process", "pid usedGpuMemory")  # noqa: PYI024


class DeviceError(Exception):
    """A failed call, with NVML's code in `value`."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


def nvmlInit() -> None:
    """Succeed while the fleet's file is there."""
    _state()


def nvmlShutdown() -> None:
    """Do nothing: there is no session."""


def nvmlSystemGetDriverVersion() -> str:
    """Return the driver's version."""
    return str(_state()["driver"])


def nvmlDeviceGetCount() -> int:
    """Return the number of devices."""
    return len(_state()["devices"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    """Return a handle, which here is the index."""
    _device(index)
    return index


def nvmlDeviceGetUUID(handle: int) -> str:
    """Return the device's UUID."""
    return str(_device(handle)["uuid"])


def nvmlDeviceGetName(handle: int) -> str:
    """Return the product name."""
    return str(_device(handle)["name"])


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> Memory:
    """Return bytes; without a version `used` includes what is reserved."""
    device = _device(handle)
    total, reserved = device["total_bytes"], device["reserved_bytes"]
    used = device["driver_bytes"] + sum(used for _, used in device["processes"])
    free = total - reserved - used
    return Memory(total, used if version == nvmlMemory_v2 else used + reserved, free, reserved)


def nvmlDeviceGetComputeRunningProcesses_v3(handle: int) -> list[Process]:
    """Return the processes that hold memory for computing."""
    return [Process(pid, used) for pid, used in _device(handle)["processes"]]


def nvmlDeviceGetGraphicsRunningProcesses_v3(handle: int) -> list[Process]:
    """Return none: nothing draws on this card."""
    _device(handle)
    return []


def nvmlDeviceGetMPSComputeRunningProcesses_v3(handle: int) -> list[Process]:
    """Return none: there is no MPS."""
    _device(handle)
    return []


def nvmlDeviceGetMigMode(handle: int) -> list[int]:
    """Refuse: the card cannot be divided."""
    _device(handle)
    raise DeviceError(_NOT_SUPPORTED, "Not Supported")


def _device(handle: int) -> Any:
    devices = _state()["devices"]
    if not 0 <= handle < len(devices):
        raise DeviceError(_NOT_FOUND, "Not Found")
    return devices[handle]


def _state() -> Any:
    try:
        with open(os.environ[STATE_VARIABLE], "rb") as file:  # noqa: PTH123  # pathlib costs a megabyte
            return json.load(file)
    except (OSError, KeyError):
        raise DeviceError(_DRIVER_NOT_LOADED, "Driver Not Loaded") from None
