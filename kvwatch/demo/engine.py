"""One engine like vLLM's: a scheduler over a block pool, advanced by an injected clock.

What is modelled, after vLLM 0.32 (v1/core/sched/scheduler.py): first come, first served; at most
`max_num_seqs` running; a prompt is admitted only if all its blocks are free, then prefilled in chunks;
decoding takes one block at a time; when none is free the last running request loses all of its blocks,
goes to the head of the queue and is recomputed, and the preemption counter moves only when it speaks again.
The model's arithmetic is a duration: seconds a step plus seconds a token of prefill.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.demo.blocks import BlockPool, blocks_for
from kvwatch.demo.stats import EngineStats, Gauges

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine was started with, and how fast its device is."""

    num_blocks: int
    """All blocks of the pool, the null block included."""
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    step_seconds: float
    prefill_token_seconds: float
    shared_prefix_tokens: int = 0
    """Opening of every prompt that is the same for all, in whole blocks; 0 where nothing is shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request as a client sends it. `answer_tokens` 0 is a pooling request: it ends with its prefill."""

    at: float
    prompt_tokens: int
    answer_tokens: int
    max_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A request inside the engine."""

    arrival: Arrival
    blocks: list[int] = field(default_factory=list)
    shares_prefix: bool = False
    computed: int = 0
    generated: int = 0
    preemptions: int = 0
    uncounted_preemptions: int = 0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def tokens(self) -> int:
        """Count prompt and answer so far."""
        return self.arrival.prompt_tokens + self.generated


class Engine:
    """Queue, running batch and pool of one engine life; `now` is in seconds of the caller's clock."""

    def __init__(self, settings: EngineSettings, *, now: float = 0.0) -> None:
        needed = blocks_for(settings.max_model_len, settings.block_size)
        if needed > settings.num_blocks - 1:
            raise ValueError(f"one full-length request needs {needed} of {settings.num_blocks - 1} blocks")
        if settings.shared_prefix_tokens % settings.block_size:
            raise ValueError("only whole blocks can be shared")
        self.settings = settings
        self.now = now
        self.pool = BlockPool(settings.num_blocks)
        self.stats = EngineStats(longest=settings.max_model_len)
        self.arrived: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefix_blocks: list[int] = []
        self._prefix_users = 0
        self._step: Sequence[tuple[Request, int]] = ()
        self._step_ends_at: float | None = None

    @property
    def outstanding(self) -> int:
        """Count requests that were accepted and have not finished."""
        return len(self.running) + len(self.waiting) + len(self.arrived)

    def submit(self, arrival: Arrival) -> None:
        """Queue a request; it can start with the next step."""
        if not 0 < arrival.prompt_tokens <= arrival.prompt_tokens + arrival.answer_tokens:
            raise ValueError("a request has a prompt and an answer that is not negative")
        if arrival.prompt_tokens + arrival.answer_tokens > self.settings.max_model_len:
            raise ValueError("longer than max_model_len")
        self.arrived.append(Request(arrival=arrival))

    def step(self, seconds: float) -> None:
        """Let so much time pass."""
        self.advance_to(self.now + seconds)

    def advance_to(self, moment: float) -> None:
        """Run every step that ends by `moment`; the result does not depend on how time is cut up."""
        while True:
            if self._step_ends_at is None:
                if not self.outstanding:
                    break
                self._begin_step()
            if self._step_ends_at is None or self._step_ends_at > moment:
                break
            self.now = self._step_ends_at
            self._finish_step()
        self.now = max(self.now, moment)

    def _begin_step(self) -> None:
        # The scheduler hears of requests between steps only, so its queue never shows those of this moment.
        self.waiting.extend(self.arrived)
        self.arrived.clear()
        budget = self.settings.max_num_batched_tokens
        scheduled: list[tuple[Request, int]] = []
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = min(request.tokens - request.computed, budget)
            needed = self._blocks_missing(request, request.computed + count)
            while needed > self.pool.free:
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is request:
                    break
            else:
                request.blocks += self.pool.take(needed)
                scheduled.append((request, count))
                budget -= count
                index += 1
        slots = self.settings.max_num_seqs
        while not preempted and self.waiting and len(self.running) < slots and budget > 0:
            request = self.waiting[0]
            if not self._admit(request):
                break
            self.running.append(self.waiting.popleft())
            count = min(request.tokens - request.computed, budget)
            request.blocks += self.pool.take(self._blocks_missing(request, request.computed + count))
            scheduled.append((request, count))
            budget -= count
        prefill = sum(count for _, count in scheduled if count > 1)
        self._step = scheduled
        self._step_ends_at = (
            self.now + self.settings.step_seconds + prefill * self.settings.prefill_token_seconds
        )

    def _admit(self, request: Request) -> bool:
        """Let the head of the queue in if every token it has now finds a block."""
        shared = self.settings.shared_prefix_tokens
        # One token at least must be computed to have something to answer from.
        sharing = 0 < shared < request.tokens
        hit = shared if sharing and self._prefix_users else 0
        size = self.settings.block_size
        if blocks_for(request.tokens, size) - hit // size > self.pool.free:
            return False
        if sharing:
            if not self._prefix_users:
                self.prefix_blocks = self.pool.take(shared // size)
            self._prefix_users += 1
            request.shares_prefix = True
        request.computed = hit
        if request.scheduled_at is None:
            request.scheduled_at = self.now
        if not request.preemptions:
            self.stats.prefix_queries += request.tokens
            self.stats.prefix_hits += hit
        return True

    def _finish_step(self) -> None:
        for request, count in self._step:
            request.computed += count
            if request.computed == request.tokens:
                self._emit(request)
        self._step = ()
        self._step_ends_at = None
        self.stats.gauges = Gauges(
            running=len(self.running), waiting=len(self.waiting), usage_ratio=self.pool.usage_ratio
        )

    def _emit(self, request: Request) -> None:
        stats = self.stats
        stats.preemptions += request.uncounted_preemptions
        request.uncounted_preemptions = 0
        if request.arrival.answer_tokens:
            request.generated += 1
            stats.generation_tokens += 1
        if request.last_token_at is None:
            request.first_token_at = self.now
            stats.prompt_tokens += request.arrival.prompt_tokens
            stats.time_to_first_token.observe(self.now - request.arrival.at)
        else:
            stats.inter_token_latency.observe(self.now - request.last_token_at)
        request.last_token_at = self.now
        if request.generated >= request.arrival.answer_tokens:
            self._finish(request)

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        arrival, stats = request.arrival, self.stats
        cut = 0 < arrival.max_tokens <= request.generated
        stats.finished["length" if cut else "stop"] += 1
        stats.request_prompt_tokens.observe(arrival.prompt_tokens)
        stats.request_generation_tokens.observe(request.generated)
        if arrival.max_tokens:
            stats.request_params_max_tokens.observe(arrival.max_tokens)
        stats.request_preemptions.observe(request.preemptions)
        stats.e2e_latency.observe(self.now - arrival.at)
        if request.scheduled_at is not None and request.first_token_at is not None:
            stats.queue_time.observe(request.scheduled_at - arrival.at)
            stats.inference_time.observe(self.now - request.scheduled_at)
            stats.prefill_time.observe(request.first_token_at - request.scheduled_at)
            stats.decode_time.observe(self.now - request.first_token_at)

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.computed = 0
        request.preemptions += 1
        request.uncounted_preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        # Last block first: the opening of a prompt is the part worth finding again.
        self.pool.give(reversed(request.blocks))
        request.blocks = []
        if request.shares_prefix:
            request.shares_prefix = False
            self._prefix_users -= 1
            if not self._prefix_users:
                self.pool.give(self.prefix_blocks)
                self.prefix_blocks = []

    def _blocks_missing(self, request: Request, tokens: int) -> int:
        held = len(request.blocks) + (len(self.prefix_blocks) if request.shares_prefix else 0)
        return max(0, blocks_for(tokens, self.settings.block_size) - held)
