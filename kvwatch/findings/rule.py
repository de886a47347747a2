"""What a rule is, what it is given, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kvwatch.finding import RuleId, Severity
    from kvwatch.findings.activity import Activity
    from kvwatch.lives import Poolsize
    from kvwatch.snapshot import ServerState, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something that is the case in this poll, as people are told of it: see `Finding`."""

    server: str = ""
    device: str = ""
    summary: str
    detail: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A subject of which this poll does not say whether the rule holds."""

    server: str = ""
    device: str = ""
    why: str


Verdict = Condition | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a rule may look at: one poll, and the few facts that only several polls give."""

    snapshot: Snapshot
    activity: Mapping[tuple[str, str], Activity] = field(default_factory=dict)
    """(server, rank) -> what happened lately."""
    pools: Mapping[str, tuple[Poolsize, ...]] = field(default_factory=dict)
    """Server -> the pools of its last starts, the present one last."""
    driver_needed: bool = False
    """A machine without NVIDIA's library is a fault, not a choice."""

    def awake(self) -> Iterator[ServerState]:
        """Yield the servers that are not known to sleep; of a sleeper no rule about pools speaks."""
        for server in self.snapshot.servers:
            if server.reading is None or server.reading.sleeping is not True:
                yield server


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; `judge` yields nothing for a subject where it certainly does not hold."""

    id: RuleId
    severity: Severity
    hold_seconds: float = 0.0
    """For so long without a break before it is a finding."""
    judge: Callable[[Evidence], Iterator[Verdict]]


NO_ANSWER = "the server does not answer"
