"""Hold device memory until standard input closes: by torch or cupy where they work, else by libcuda itself.

Needs nothing but a driver. Prints one line, `ready BACKEND BYTES`, when the memory is allocated and written
to, or a sentence on stderr and exit status 3 when this machine gives none.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


class NoCudaError(Exception):
    """A backend does not work here."""


def by_torch(size: int) -> object:
    """Allocate with torch."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    except ImportError as error:
        raise NoCudaError("torch is not installed") from error
    if not torch.cuda.is_available():
        raise NoCudaError("torch sees no CUDA device")
    tensor = torch.ones(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return tensor


def by_cupy(size: int) -> object:
    """Allocate with cupy."""
    try:
        import cupy  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    except ImportError as error:
        raise NoCudaError("cupy is not installed") from error
    try:
        array = cupy.ones(size, dtype=cupy.uint8)
        cupy.cuda.Device().synchronize()
    except Exception as error:
        raise NoCudaError(f"cupy: {error}") from error
    return array


def by_libcuda(size: int) -> object:
    """Allocate with the driver's own API (cuda.h: cuInit, cuDevicePrimaryCtxRetain, cuMemAlloc_v2)."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoCudaError(f"libcuda: {error}") from error

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            raise NoCudaError(f"libcuda: {name} gives {status}")

    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", ctypes.c_uint(0))
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
    call("cuMemsetD8_v2", memory, ctypes.c_ubyte(1), ctypes.c_size_t(size))
    call("cuCtxSynchronize")
    return memory


BACKENDS: dict[str, Callable[[int], object]] = {"torch": by_torch, "cupy": by_cupy, "libcuda": by_libcuda}


def main(arguments: list[str]) -> int:
    """Allocate so many MiB by the first backend that works, or by the one that is named."""
    size, names = int(arguments[0]) * MIB, arguments[1:] or list(BACKENDS)
    refusals = []
    for name in names:
        try:
            held = BACKENDS[name](size)
        except NoCudaError as error:
            refusals.append(str(error))
            continue
        print(f"ready {name} {size}", flush=True)
        sys.stdin.read()
        del held
        # A library's own clean-up may take seconds, or crash; the driver frees what an ended process held.
        os._exit(0)
    print("; ".join(refusals), file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
