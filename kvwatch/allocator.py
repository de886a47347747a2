"""glibc's allocator, told to give memory back: one huge page must not stay in the daemon for ever."""

from __future__ import annotations

import contextlib

_TRIM_THRESHOLD = -1
_BYTES = 128 * 1024
"""M_TRIM_THRESHOLD and its own first value (malloc.h)."""


def keep_trimming() -> None:
    """Fix the allocator's threshold for returning free memory to the system.

    glibc raises it to twice the largest block that was ever freed (mallopt(3)): after one page of 8 MiB up to
    16 MiB stay. Another C library has no such call, and nothing is done.
    """
    import ctypes  # noqa: PLC0415

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_TRIM_THRESHOLD, _BYTES)
