"""Who descends from whom: one pass over the stat files of all processes, when something changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvwatch.sources.processes import read_stat

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


class Descent:
    """The parents of all processes, read when first asked for and kept until `forget`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._children: dict[int, list[int]] | None = None

    def forget(self) -> None:
        """Read anew at the next question."""
        self._children = None

    def below(self, heads: Collection[int], *, without: Collection[int] = ()) -> frozenset[int]:
        """Return `heads` and all that descends from them, leaving out `without` and what descends from it."""
        if self._children is None:
            self._children = self._read()
        found: set[int] = set()
        waiting = list(heads)
        while waiting:
            pid = waiting.pop()
            if pid not in found and (pid in heads or pid not in without):
                found.add(pid)
                waiting += self._children.get(pid, [])
        return frozenset(found)

    def _read(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for name in os.listdir(self._root):  # noqa: PTH208
            stat = read_stat(self._root, int(name)) if name.isdecimal() else None
            if stat is not None:
                children.setdefault(stat.parent_pid, []).append(int(name))
        return children
