"""The exact terms of a capacity change: ln(C1/C0) = pool + cost per token + prompt length + answer length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One moment as the formula sees it; pool and cost in the same unit, bytes or blocks, on both sides."""

    pool: float
    prompt_tokens: float
    generation_tokens: float
    cost: Callable[[float], float]
    """b(T): what a request of T tokens holds."""

    @property
    def capacity(self) -> float:
        """C: typical requests that the pool holds, unfloored."""
        return self.pool / self.cost(self.prompt_tokens + self.generation_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Natural logarithms; negative took capacity away. None is unknown, 0 did not move."""

    pool: float | None = None
    cost_per_token: float | None = None
    prompt_length: float | None = None
    generation_length: float | None = None

    @property
    def log_ratio(self) -> float | None:
        """ln(C1/C0); None where a term is unknown."""
        terms = (self.pool, self.cost_per_token, self.prompt_length, self.generation_length)
        known = [term for term in terms if term is not None]
        return math.fsum(known) if len(known) == len(terms) else None

    def items(self) -> tuple[tuple[str, float | None], ...]:
        """Return the terms by name, in the order in which they are told."""
        return (
            ("pool", self.pool),
            ("cost_per_token", self.cost_per_token),
            ("prompt_length", self.prompt_length),
            ("generation_length", self.generation_length),
        )


def decompose(before: Side, after: Side) -> Factors:
    """Return the terms between two moments; their sum is ln(C1/C0) to rounding of doubles.

    Each length is changed with the other one old and with the other one new, under the old and under the new
    cost function, and the mean of the four is its term, so that no order of telling is preferred.
    """
    old_prompt, old_answer = before.prompt_tokens, before.generation_tokens
    new_prompt, new_answer = after.prompt_tokens, after.generation_tokens
    costs = (before.cost, after.cost)
    dearer = [
        _step(before.cost(total), after.cost(total))
        for total in (old_prompt + old_answer, new_prompt + new_answer)
    ]
    prompt = [
        _step(cost(old_prompt + answer), cost(new_prompt + answer))
        for cost in costs
        for answer in (old_answer, new_answer)
    ]
    answer = [
        _step(cost(prompt_tokens + old_answer), cost(prompt_tokens + new_answer))
        for cost in costs
        for prompt_tokens in (old_prompt, new_prompt)
    ]
    return Factors(
        pool=_step(before.pool, after.pool),
        cost_per_token=_less(dearer),
        prompt_length=_less(prompt),
        generation_length=_less(answer),
    )


def _less(logs: list[float]) -> float:
    """Return what capacity loses where a request costs so much more; never a negative zero."""
    return 0.0 - math.fsum(logs) / len(logs)


def _step(old: float, new: float) -> float:
    return 0.0 if old == new else math.log(new / old)
