"""The script in words, for somebody who watches: what happens next, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvwatch.demo.day import DAY, HOUR, MINUTE, PHASES, RESTARTS, phase_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A turn of the script, in seconds since its first midnight."""

    at: float
    text: str

    def __str__(self) -> str:
        second = self.at % DAY
        return f"{int(second // HOUR):02}:{int(second % HOUR // MINUTE):02} {self.text}"


def opening_scene(moment: float) -> Scene:
    """Return what is going on at a moment."""
    return Scene(at=moment, text=phase_at(moment).story)


def next_scene(moment: float) -> Scene:
    """Return the first turn after a moment; what happens at once is one scene."""
    midnight = math.floor(moment / DAY) * DAY
    turns = sorted(
        (day + second, text)
        for second, text in (
            *((phase.start, phase.story) for phase in PHASES),
            *((restart.stop, restart.story) for restart in RESTARTS),
        )
        for day in (midnight, midnight + DAY)
        if day + second > moment
    )
    at = turns[0][0]
    return Scene(at=at, text=" ".join(text for second, text in turns if second == at))
