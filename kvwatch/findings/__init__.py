"""What is wrong now: pure rules over a snapshot, each with how long it must have held."""

from kvwatch.findings.inspection import Inspection
from kvwatch.findings.rules import RULES

__all__ = ["RULES", "Inspection"]
