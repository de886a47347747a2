"""Where a path leads that a process states: links are followed as the process itself would follow them.

Below /proc/PID/root the kernel follows an absolute link from the reader's root: a container's link to
/models, or to /etc/shadow, would lead to the host's.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

_PROC = Path("/proc")
_MOST_LINKS = 40
"""As the kernel (MAXSYMLINKS, include/linux/namei.h)."""


def path_inside(pid: int, name: str) -> Path:
    """Return a path without links, below the root or the working directory of a process.

    What does not exist, or may not be followed, is returned as far as it could be: opening it says why.
    """
    root, start = _PROC / str(pid) / "root", _PROC / str(pid) / "cwd"
    at = root if name.startswith("/") else start
    left = _steps(name)
    links = 0
    while left:
        step = left.pop()
        if step == "..":
            if at != root:
                # What is above a working directory is for the kernel to say.
                at = at / step if at == start or at.name == step else at.parent
            continue
        here = at / step
        try:
            target = os.readlink(here)  # noqa: PTH115 - its text, whatever it leads to
        except (OSError, ValueError):
            at = here
            continue
        links += 1
        if links > _MOST_LINKS:
            return here
        at = root if target.startswith("/") else at
        left.extend(_steps(target))
    return at


def followed(path: Path) -> Path:
    """Return a path below a process's root or working directory without links; any other one as it is."""
    parts = path.parts
    if parts[:2] != ("/", "proc") or len(parts) < 5 or not parts[2].isdecimal():  # noqa: PLR2004 - below them
        return path
    if parts[3] not in ("root", "cwd"):
        return path
    rest = "/".join(parts[4:])
    return path_inside(int(parts[2]), f"/{rest}" if parts[3] == "root" else rest)


def _steps(path: str) -> list[str]:
    """Return the parts of a path, the first one last."""
    return [part for part in reversed(PurePosixPath(path).parts) if not part.startswith("/")]
