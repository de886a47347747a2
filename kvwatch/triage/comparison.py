"""Two moments compared: C now and then in one unit, the exact factors, and how far chance moves them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kvwatch.triage.costs import block_bytes, pinned_block_bytes
from kvwatch.triage.decomposition import Factors, Side, decompose

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.triage.moment import Moment

_SPREAD = 1.0
"""Standard deviation of request lengths over their mean, as measured of real traffic: about 1 (lognormal)."""
_SURE = 3.0
"""Standard errors that chance hardly reaches: once in four hundred comparisons."""
_LEAST_LENGTH = math.log(1.08)
"""A change of the mean length that is not worth a word, however well it is known."""
_EDGE = math.log(1.1)
"""What the edge of a block makes of capacity, from which it is worth a word."""
LEAST_STEADY = math.log(1.02)
"""What does not depend on traffic, pool and cost, counts from here: two starts differ by less."""


class Unit(StrEnum):
    """What pool and cost are counted in: the best that both moments state."""

    BYTES = "bytes"
    TOKENS = "tokens"
    """Blocks x block size; blocks of other sizes are comparable, blocks of other bytes are not."""
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One moment's pool and cost in the comparison's unit."""

    pool: float
    cost: float
    """b of the moment's own typical request."""
    capacity: float
    """C, unfloored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What moved between two moments; None is unknown."""

    unit: Unit | None
    before: Measure | None
    after: Measure | None
    factors: Factors
    noise: Factors
    """How much of each factor chance alone can make; its pool and cost are what is too small to matter."""
    lengthened: float = 0.0
    """ln(T1/T0) of the typical request's tokens; 0 where a length is not known."""
    estimated: bool = False
    """Whether the cost is proportional to the length for want of the groups: the split is then less sure."""

    @property
    def ratio(self) -> float | None:
        """Return C now / C then."""
        log_ratio = self.factors.log_ratio
        return None if log_ratio is None else math.exp(log_ratio)

    def moved(self, name: str) -> bool:
        """Tell whether a factor moved more than chance moves it."""
        value, noise = dict(self.factors.items())[name], dict(self.noise.items())[name]
        return value is not None and abs(value) > (noise or 0.0)

    @property
    def made_up(self) -> bool:
        """Tell whether capacity is what it was only because what moved makes up for each other."""
        return not self.capacity_moved and (self.moved("pool") or self.moved("cost_per_token"))

    @property
    def difference(self) -> float:
        """Return how far C is from what it was where that may be chance; 0 where it is not.

        A mean length at the edge of a block doubles a cost that it hardly changes: then the lengths tell.
        """
        total = self.factors.log_ratio
        if total is None or self.capacity_moved:
            return 0.0
        steady = (self.factors.pool or 0.0) + (self.factors.cost_per_token or 0.0)
        return min(abs(total), abs(steady - self.lengthened))

    @property
    def at_an_edge(self) -> bool:
        """Tell whether C is another only because a mean length crossed the edge of a block."""
        total = self.factors.log_ratio
        return total is not None and not self.capacity_moved and abs(total) - self.difference > _EDGE

    @property
    def capacity_moved(self) -> bool:
        """Tell whether C moved more than chance moves it."""
        total = self.factors.log_ratio
        if total is None:
            return False
        lengths = [self.noise.prompt_length or 0.0, self.noise.generation_length or 0.0]
        steady = self.moved("pool") or self.moved("cost_per_token")
        if steady and not self.moved("prompt_length") and not self.moved("generation_length"):
            settled = (self.factors.pool or 0.0) + (self.factors.cost_per_token or 0.0)
            return abs(settled) > LEAST_STEADY
        return abs(total) > max(_LEAST_LENGTH, math.hypot(*lengths))


def compare(before: Moment, after: Moment) -> Comparison:
    """Compare two moments of one server."""
    sides = _sides(before, after)
    noise = _noise(before, after)
    if sides is None:
        return Comparison(unit=None, before=None, after=None, factors=_pool_alone(before, after), noise=noise)
    unit, old, new, estimated = sides
    factors = decompose(old, new)
    return Comparison(
        unit=unit,
        before=_measure(old),
        after=_measure(new),
        factors=factors,
        noise=_with_edges(noise, factors, old, new),
        lengthened=math.log(_total(new) / _total(old)),
        estimated=estimated,
    )


def _with_edges(noise: Factors, factors: Factors, old: Side, new: Side) -> Factors:
    """Return the noise with what it does at the edges of blocks; a hybrid's may be thousands of tokens long.

    Each length is brought nearer to its other one by its noise; what is left of its factor is sure.
    """
    tokens = (_total(old) + _total(new)) / 2
    prompts = _nearer(old.prompt_tokens, new.prompt_tokens, (noise.prompt_length or 0.0) * tokens)
    answers = _nearer(old.generation_tokens, new.generation_tokens, (noise.generation_length or 0.0) * tokens)
    prompt = decompose(replace(old, prompt_tokens=prompts[0]), replace(new, prompt_tokens=prompts[1]))
    answer = decompose(replace(old, generation_tokens=answers[0]), replace(new, generation_tokens=answers[1]))
    return replace(
        noise,
        prompt_length=_unsure(noise.prompt_length, factors.prompt_length, prompt.prompt_length),
        generation_length=_unsure(
            noise.generation_length, factors.generation_length, answer.generation_length
        ),
    )


def _total(side: Side) -> float:
    return side.prompt_tokens + side.generation_tokens


def _nearer(old: float, new: float, by: float) -> tuple[float, float]:
    """Return two lengths brought together by so many tokens, at most until they are the same."""
    middle, half = (old + new) / 2, max(0.0, (abs(new - old) - by) / 2)
    return (middle - half, middle + half) if new >= old else (middle + half, middle - half)


def _unsure(noise: float | None, value: float | None, sure: float | None) -> float | None:
    if noise is None or value is None or sure is None:
        return noise
    left = sure if sure * value > 0 else 0.0
    return max(noise, abs(value) - abs(left))


def _measure(side: Side) -> Measure:
    return Measure(pool=side.pool, cost=side.cost(_total(side)), capacity=side.capacity)


def _sides(before: Moment, after: Moment) -> tuple[Unit, Side, Side, bool] | None:
    blocks = before.usable_blocks, after.usable_blocks
    if not blocks[0] or not blocks[1] or not before.request_tokens or not after.request_tokens:
        return None
    costs = _costs(before, after)
    if costs is None:
        return None
    unit, sizes = _unit(before, after)
    old, new = (
        Side(
            pool=count * size,
            prompt_tokens=moment.prompt_tokens or 0.0,
            generation_tokens=moment.generation_tokens or 0.0,
            cost=_scaled(cost, size),
        )
        for moment, count, size, cost in zip((before, after), blocks, sizes, costs, strict=True)
        if count is not None
    )
    return unit, old, new, before.cost is None or after.cost is None


def _scaled(cost: Callable[[float], float], size: float) -> Callable[[float], float]:
    return lambda tokens: cost(tokens) * size


def _costs(before: Moment, after: Moment) -> tuple[Callable[[float], float], Callable[[float], float]] | None:
    """Return both cost functions in blocks: from the groups, else in proportion as was exported then."""
    old, new = before.cost, after.cost
    if old is not None and new is not None:
        return old.blocks, new.blocks
    then, now = before.blocks_per_token, after.blocks_per_token
    if then is None or now is None:
        return None
    # One function for both where it can be: else what is only a rounding of blocks reads as a dearer token.
    return _proportional(then), _proportional(then if _same_cost(before, after) else now)


def _proportional(rate: float) -> Callable[[float], float]:
    return lambda tokens: rate * tokens


def _same_cost(before: Moment, after: Moment) -> bool:
    names = ("version", "model", "model_hash", "cache_dtype", "block_size", "tensor_parallel", "fingerprint")
    return all(getattr(before.setup, name) == getattr(after.setup, name) for name in names)


def _unit(before: Moment, after: Moment) -> tuple[Unit, tuple[float, float]]:
    """Return the unit and what one block of each moment is in it."""
    old, new = _bytes_of_block(before, after), _bytes_of_block(after, before)
    if old is not None and new is not None:
        return Unit.BYTES, (old, new)
    if before.setup.block_size and after.setup.block_size:
        return Unit.TOKENS, (before.setup.block_size, after.setup.block_size)
    return Unit.BLOCKS, (1.0, 1.0)


def _bytes_of_block(moment: Moment, other: Moment) -> float | None:
    """Return the bytes of a block; the same pin on both sides settles them, whatever a model says."""
    pool, pin = moment.pools[0], moment.setup.pin_bytes
    if pin is not None and pin == other.setup.pin_bytes:
        pinned = pinned_block_bytes(moment.setup, pool.usable_blocks)
        if pinned is not None:
            return pinned
    return block_bytes(moment.setup, pool.usable_blocks, pool.usable_bytes)


def _pool_alone(before: Moment, after: Moment) -> Factors:
    """Return the pool's factor where lengths or costs are not known."""
    old, new = before.usable_blocks, after.usable_blocks
    if not old or not new:
        return Factors()
    unit, sizes = _unit(before, after)
    same = unit is not Unit.BLOCKS or before.setup == after.setup
    return Factors(pool=math.log(new * sizes[1] / (old * sizes[0]))) if same else Factors()


def _noise(before: Moment, after: Moment) -> Factors:
    """Return how far chance moves the factors: as the windows' minutes scatter, and not less than usual."""
    if not before.finished or not after.finished:
        return Factors(pool=LEAST_STEADY, cost_per_token=LEAST_STEADY)
    return Factors(
        pool=LEAST_STEADY,
        cost_per_token=LEAST_STEADY,
        prompt_length=_length_noise(before, after, "prompt"),
        generation_length=_length_noise(before, after, "generation"),
    )


def _length_noise(before: Moment, after: Moment, name: str) -> float:
    """Return what chance makes of one length's factor: its standard errors as parts of whole requests."""
    parts = []
    for moment in (before, after):
        mean, error = getattr(moment, f"{name}_tokens") or 0.0, getattr(moment, f"{name}_error") or 0.0
        usual = mean * _SPREAD / math.sqrt(moment.finished or 1.0)
        parts.append(max(error, usual) / (moment.request_tokens or math.inf))
    return max(_LEAST_LENGTH / 2, _SURE * math.hypot(*parts))
