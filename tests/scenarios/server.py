"""One scripted server as it is at a moment: its process, its ranks, its pages, its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.scenarios.crowd import Rank
from tests.scenarios.pages import pages
from tests.scenarios.world import DAY, HOUR, MIB, MINUTE, NOW

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from tests.scenarios.world import Life, ServerScript

_CONTEXT_BYTES = 450 * MIB
_WARM_UP_SECONDS = 6 * MINUTE


@dataclass
class Engine:
    """One server as it is now: its process and its ranks."""

    script: ServerScript
    random: random.Random
    pid: int
    life: Life | None = None
    ranks: dict[str, Rank] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)

    def play(self, until: float, *, closely: bool) -> None:
        """Let time pass, restarts included."""
        life = self.script.life_at(until)
        if life is None:
            self.life, self.ranks, self.pages = None, {}, {}
            return
        if life is not self.life:
            self.life = life
            self.pid += 1
            ready = max(life.start + life.ready_after, -1e12)
            self.ranks = {
                str(rank): Rank(life, self.random, ready, self.script.token_seconds)
                for rank in range(life.ranks)
            }
        gone = {rank for rank, since in self.script.rank_gone if since <= until}
        self.ranks = {rank: own for rank, own in self.ranks.items() if rank not in gone}
        asleep = any(start <= until < end for start, end, _ in self.script.asleep)
        for own in self.ranks.values():
            if until <= own.now:
                continue
            if asleep:
                own.now = until
            elif closely and until - own.now <= 2 * _WARM_UP_SECONDS:
                self._play_minutes(own, until)
            else:
                middle = until - _WARM_UP_SECONDS
                if own.now < middle:
                    self._skip(own, middle)
                if closely:
                    self._play_minutes(own, until)
                else:
                    self._skip(own, until)
        self.pages = self._render(until, asleep=asleep)

    def _play_minutes(self, own: Rank, until: float) -> None:
        while own.now < until:
            step = min(until, own.now + MINUTE)
            own.play(step, self.script.traffic(step))

    def _skip(self, own: Rank, until: float) -> None:
        while own.now < until:
            step = min(until, own.now + HOUR) if until - own.now < 2 * DAY else until
            own.skip(step, self.script.traffic(step))

    def _render(self, at: float, *, asleep: bool) -> Mapping[str, str]:
        life = self.life
        if life is None or at < life.start + life.ready_after:
            return {}
        return pages(
            life,
            self.ranks,
            started_at=NOW + life.start,
            asleep=asleep,
            blocks=self._blocks(at, life),
            stalled=self.script.traffic(at).stalled,
        )

    def _blocks(self, at: float, life: Life) -> int:
        woken = [size for _, end, size in self.script.asleep if life.start <= end <= at and size]
        return woken[-1] // life.plan.bytes_per_block if woken else life.blocks

    def held_bytes(self, at: float) -> int | None:
        """Return what the process holds of its device: it grows while it starts, and sleeps lightly."""
        life = self.life
        if life is None:
            return None
        pool = self._blocks(at, life) * life.plan.bytes_per_block
        if any(start <= at < end for start, end, _ in self.script.asleep):
            return _CONTEXT_BYTES + 2048 * MIB
        part = min(1.0, (at - life.start) / life.ready_after) if life.ready_after else 1.0
        grown = int(life.weights_bytes * min(1.0, part * 1.6))
        return _CONTEXT_BYTES + grown + (pool + 1400 * MIB if part >= 1 else 0)
