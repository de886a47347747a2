"""One life of one server with its clients, whose requests enter the engine in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.demo.engine import Engine, EngineSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.demo.day import ServerPlan
    from kvwatch.demo.engine import Arrival


class Clients:
    """The stream of requests, which goes on while the server is down; those sent meanwhile are lost."""

    def __init__(self, arrivals: Iterator[Arrival]) -> None:
        self._arrivals = arrivals
        self._next = next(arrivals)

    def until(self, moment: float) -> Iterator[Arrival]:
        """Yield what is sent up to this moment (engine seconds)."""
        while self._next.at <= moment:
            yield self._next
            self._next = next(self._arrivals)

    def lose(self, moment: float) -> None:
        """Drop what was sent up to this moment: nobody was there to take it."""
        for _ in self.until(moment):
            pass


def engine_of(plan: ServerPlan, num_blocks: int, *, now: float) -> Engine:
    """Start an engine with a pool of so many blocks."""
    return Engine(
        EngineSettings(
            num_blocks=num_blocks,
            block_size=plan.block_size,
            max_model_len=plan.max_model_len,
            max_num_seqs=plan.max_num_seqs,
            max_num_batched_tokens=plan.max_num_batched_tokens,
            step_seconds=plan.step_seconds,
            prefill_token_seconds=plan.prefill_token_seconds,
            shared_prefix_tokens=plan.shared_prefix_tokens,
        ),
        now=now,
    )


def catch_up(engine: Engine, clients: Clients, moment: float, *, outstanding_limit: int) -> None:
    """Serve everything up to this moment; what the gateway's limit turns away never reaches the engine."""
    for arrival in clients.until(moment):
        engine.advance_to(arrival.at)
        if engine.outstanding < outstanding_limit:
            engine.submit(arrival)
    engine.advance_to(moment)
