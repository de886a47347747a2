"""The fleet's two clocks: engine seconds, which are real, and the script's, `speed` times as fast."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Both clocks begin with the fleet; every process of the fleet has the same ones."""

    began: float
    """When the fleet began, by the monotonic clock, which is one for all processes of a machine."""
    speed: float
    opening: float
    """The moment of the script at which it began."""

    def engine(self) -> float:
        """Return engine seconds since the fleet began."""
        return time.monotonic() - self.began

    def script(self) -> float:
        """Return the moment of the script, in seconds since its first midnight."""
        return self.opening + self.engine() * self.speed

    def engine_at(self, moment: float) -> float:
        """Return the engine second of a moment of the script; before the beginning is 0."""
        return max(0.0, (moment - self.opening) / self.speed)
