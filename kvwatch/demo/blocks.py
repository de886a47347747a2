"""The block pool of one simulated engine: which blocks are free, which one is never given away."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NULL_BLOCK = 0
"""Every pool keeps one block that no request may hold (vLLM v1/core/block_pool.py)."""


def blocks_for(tokens: int, block_size: int) -> int:
    """Return how many blocks hold this many tokens."""
    return -(-tokens // block_size)


class BlockPool:
    """N blocks by number, of which N - 1 can be taken; a block is free or held, never both."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:  # noqa: PLR2004  # the null block and one that can be used
            raise ValueError(f"a pool needs the null block and one more, got {num_blocks} blocks")
        self.num_blocks = num_blocks
        self._free = deque(range(NULL_BLOCK + 1, num_blocks))

    @property
    def usable(self) -> int:
        """Count the blocks that requests can hold."""
        return self.num_blocks - 1

    @property
    def free(self) -> int:
        """Count the blocks that nobody holds."""
        return len(self._free)

    @property
    def usage_ratio(self) -> float:
        """Return the held fraction of the usable blocks (vLLM 0.10.2 and newer)."""
        return 1.0 - self.free / self.usable

    def take(self, count: int) -> list[int]:
        """Hand out blocks; the caller has looked at `free` first."""
        if count > self.free:
            raise ValueError(f"{count} blocks wanted, {self.free} free")
        return [self._free.popleft() for _ in range(count)]

    def give(self, blocks: Iterable[int]) -> None:
        """Take blocks back."""
        self._free.extend(blocks)
