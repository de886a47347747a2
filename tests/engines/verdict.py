"""What one proof found: a line that a person reads and that prove.py counts.

    PASS uniform, k requests: 3 ran together, 0 preemptions
    FAIL uniform, one more: nobody waited

A program that prints such lines, run by prove.py or by hand, needs nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

PASS, FAIL = "PASS", "FAIL"
_LINE = re.compile(rf"^({PASS}|{FAIL}) ([^:]+): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A proof's outcome."""

    outcome: str
    name: str
    seen: str

    def __str__(self) -> str:
        return f"{self.outcome} {self.name}: {self.seen}"


def judge(name: str, claims: dict[str, bool], seen: str) -> Verdict:
    """Print and return the verdict over claims that must all hold; the ones that do not are named."""
    broken = [claim for claim, holds in claims.items() if not holds]
    detail = f"{seen}; NOT TRUE: {', '.join(broken)}" if broken else seen
    verdict = Verdict(outcome=FAIL if broken else PASS, name=name, seen=detail)
    print(verdict, flush=True)
    return verdict


def read_verdicts(text: str) -> list[Verdict]:
    """Return the verdicts that a program printed."""
    return [Verdict(outcome=found[1], name=found[2], seen=found[3]) for found in _LINE.finditer(text)]


def summary(verdicts: list[Verdict]) -> str:
    """Return the closing table: a line for each proof, and how many passed and failed."""
    width = max((len(verdict.name) for verdict in verdicts), default=0)
    lines = [f"{verdict.outcome}  {verdict.name:{width}}  {verdict.seen}" for verdict in verdicts]
    counts = Counter(verdict.outcome for verdict in verdicts)
    return "\n".join([*lines, f"{counts[PASS]} passed, {counts[FAIL]} failed"])
