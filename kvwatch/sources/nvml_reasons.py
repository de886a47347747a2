"""What NVML's return codes mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvwatch.readings import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no answer."""

    reason: Reason
    detail: str


def failure_of(error: Any) -> Failure:
    """Say what an error on the wire means."""
    code, text = error
    return Failure(reason=REASONS.get(code, Reason.UNREACHABLE), detail=f"{text} ({code})"[:200])
