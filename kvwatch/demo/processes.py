"""What the fleet asks of the kernel for its own processes (prctl(2))."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent(parent_pid: int) -> None:
    """Have this process killed when its parent ends, however that happens; leave if it already has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit(0)


def set_short_name(name: str) -> None:
    """Set what /proc/PID/comm shows; the kernel keeps 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
