"""Clients and the engine of one rank: arrivals as they come, a queue, a pool that is full or is not.

An event is an arrival or an end: that is what counters and gauges of a minute need of an engine. Where no
minute matters, hours pass at once: counters move by their expectation and its noise.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from tests.scenarios.world import Life, Traffic

_PREFILL_TOKENS_A_SECOND = 12_000.0
_DAY = 86_400.0


@dataclass(slots=True)
class Counters:
    """What an engine counts from its start."""

    finished: float = 0.0
    stopped_by_length: float = 0.0
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0
    generated: float = 0.0
    queries: float = 0.0
    hits: float = 0.0
    preemptions: float = 0.0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0


@dataclass(slots=True)
class _Request:
    arrived: float
    prompt: int
    answer: int
    blocks: int
    hit: int


@dataclass(slots=True)
class Rank:
    """One rank's engine: now, counters, who runs and who waits."""

    life: Life
    random: random.Random
    now: float
    token_seconds: float
    counters: Counters = field(default_factory=Counters)
    running: int = 0
    used_blocks: int = 0
    _waiting: deque[_Request] = field(default_factory=deque)
    _ends: list[tuple[float, int, _Request]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _next_arrival: float | None = None
    _smooth: bool = False

    @property
    def usable(self) -> int:
        """Return the blocks that requests can have."""
        return self.life.blocks - 1

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    @property
    def waits_for_memory(self) -> bool:
        """Tell whether the first in the queue finds no room."""
        return bool(self._waiting) and self._waiting[0].blocks > self.usable - self.used_blocks

    def play(self, until: float, traffic: Traffic) -> None:
        """Let every arrival and end up to a moment happen, under the same traffic."""
        if self._smooth or self._next_arrival is None:
            self._next_arrival = self.now + self.random.expovariate(self._rate(traffic))
            self._smooth = False
        while True:
            end = self._ends[0][0] if self._ends else math.inf
            moment = min(self._next_arrival, end)
            if moment > until:
                break
            self.now = moment
            if end <= self._next_arrival:
                self._finish(heapq.heappop(self._ends)[2])
            else:
                if self.running + self.waiting < traffic.users:
                    self._waiting.append(self._request(traffic))
                self._next_arrival = moment + self.random.expovariate(self._rate(traffic))
            self._admit(traffic)
        if self.waits_for_memory:
            self.counters.preemptions += self.random.randint(0, 2)
        self.counters.generated = max(self.counters.generated, self.counters.answer_tokens)
        self.now = until

    def skip(self, until: float, traffic: Traffic) -> None:
        """Let a long time pass that nobody looks at closely."""
        mean = self._rate(traffic) * (until - self.now)
        count = max(0, round(self.random.gauss(mean, math.sqrt(mean))))
        if traffic.stalled:
            count = 0
        counters = self.counters
        prompt = _sum_of(count, traffic.prompt, traffic.prompt_spread, self.random)
        answer = _sum_of(count, traffic.answer, traffic.answer_spread, self.random)
        counters.finished += count
        counters.prompt_tokens += round(prompt)
        counters.answer_tokens += round(answer)
        counters.generated = max(counters.generated, counters.answer_tokens)
        counters.queries += round(prompt)
        counters.hits += round(prompt * traffic.hit_ratio)
        counters.first_token_seconds += 0.2 * count
        self._waiting.clear()
        self._ends.clear()
        self.used_blocks = self.running = 0
        self._smooth = True
        self.now = until

    def _rate(self, traffic: Traffic) -> float:
        """Return requests a second: more by day than by night, around the time of the question most."""
        return max(1e-6, traffic.rate * (1 + 0.35 * math.cos(2 * math.pi * self.now / _DAY)))

    def _request(self, traffic: Traffic) -> _Request:
        longest = self.life.max_model_len - 1
        prompt = min(longest - 1, max(1, round(_draw(traffic.prompt, traffic.prompt_spread, self.random))))
        answer = max(1, round(_draw(traffic.answer, traffic.answer_spread, self.random)))
        answer = min(answer, longest - prompt)
        size = self.life.block_size
        hit = (
            int(prompt * min(0.95, max(0.0, self.random.gauss(traffic.hit_ratio, traffic.hit_ratio / 4))))
            // size
            * size
        )
        held = self.life.plan.resident_blocks(prompt + answer) - hit // size
        return _Request(self.now, prompt, answer, max(1, held), hit)

    def _admit(self, traffic: Traffic) -> None:
        while self._waiting and self.running < self.life.request_limit and not traffic.stalled:
            first = self._waiting[0]
            if first.blocks > self.usable - self.used_blocks:
                return
            self._waiting.popleft()
            self.running += 1
            self.used_blocks += first.blocks
            waited = self.now - first.arrived
            self.counters.queries += first.prompt
            self.counters.hits += first.hit
            self.counters.queue_seconds += waited
            prefill = (first.prompt - first.hit) / _PREFILL_TOKENS_A_SECOND
            self.counters.first_token_seconds += waited + prefill
            end = self.now + prefill + first.answer * self.token_seconds
            heapq.heappush(self._ends, (end, next(self._order), first))

    def _finish(self, request: _Request) -> None:
        self.running -= 1
        self.used_blocks -= request.blocks
        self.counters.finished += 1
        self.counters.prompt_tokens += request.prompt
        self.counters.answer_tokens += request.answer


def _draw(mean: float, spread: float, source: random.Random) -> float:
    return source.lognormvariate(math.log(mean) - spread**2 / 2, spread)


def _sum_of(count: int, mean: float, spread: float, source: random.Random) -> float:
    deviation = mean * math.sqrt(math.expm1(spread**2))
    return max(0.0, source.gauss(count * mean, deviation * math.sqrt(count)))
