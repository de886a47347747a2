"""Why a question has no answer."""

from __future__ import annotations


class PlanError(Exception):
    """What keeps a question from being answered, in a sentence."""


class SpecificationError(PlanError):
    """A question that is written wrongly: what is wrong, and what is allowed."""
