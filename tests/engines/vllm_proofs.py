"""Prove kvwatch's numbers against a real vLLM, on a model with full attention and on one with windows.

    python vllm_proofs.py uniform 8140       starts the engine on this port, proves, and stops it
    python vllm_proofs.py hybrid 8140

Every proof prints a small series of what kvwatch said, and a verdict line.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import engines
from crowd import Crowd, Shape
from fits import prove_fit_now, prove_model, prove_promise, prove_resident_limit
from overload import prove_early_signal
from verdict import FAIL, Verdict
from watched import Watched, watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCHED_TOKENS = 2048
REQUEST_LIMIT = 16
NICE = 10


@dataclass(frozen=True)
class Plan:
    """An engine, and what is proved on it."""

    engine: str
    model: str
    prove: Callable[[Watched, Crowd], Iterator[Verdict]]


def prove_uniform(watched: Watched, crowd: Crowd) -> Iterator[Verdict]:
    """Prove on full attention: what enters can stay."""
    full = Shape(24, 1000)
    yield prove_model(watched, "uniform")
    for shape in (full, Shape(512, 512), Shape(600, 424)):
        yield from prove_fit_now(watched, crowd, "uniform", shape, slowly=False)
    yield prove_promise(watched, crowd, "uniform", full, first=1, at_usage=0.05, slowly=False)
    yield prove_promise(watched, crowd, "uniform", full, first=2, at_usage=0.05, slowly=False)
    yield prove_promise(watched, crowd, "uniform", full, first=2, at_usage=0.25, slowly=False)
    yield prove_early_signal(watched, crowd, "uniform", 24, Shape(200, 700))


def prove_hybrid(watched: Watched, crowd: Crowd) -> Iterator[Verdict]:
    """Prove on windows: a request holds far less than the planner charges for it."""
    half = Shape(1040, 1000)
    yield prove_model(watched, "hybrid")
    yield from prove_fit_now(watched, crowd, "hybrid", half, slowly=True)
    yield from prove_resident_limit(watched, crowd, "hybrid", half)
    yield prove_promise(watched, crowd, "hybrid", half, first=3, at_usage=0.2, slowly=True)
    yield prove_promise(watched, crowd, "hybrid", half, first=7, at_usage=0.5, slowly=True)


PLANS = {
    "uniform": Plan("vllm-uniform", "uniform", prove_uniform),
    "hybrid": Plan("vllm-hybrid", "hybrid", prove_hybrid),
}


def prove(plan: Plan, port: int, *, keep: bool) -> list[Verdict]:
    """Start the engine of a plan, prove, and stop it."""
    if engines.read_pid_file(port) is None:
        engines.start(plan.engine, port, [f"--max-num-batched-tokens={BATCHED_TOKENS}"], nice=NICE)
    options = (
        f"model_config: {engines.CACHE / 'models' / plan.model}, tensor_parallel: 1, "
        f"max_num_batched_tokens: {BATCHED_TOKENS}, request_limit: {REQUEST_LIMIT}"
    )
    try:
        with watching(port, options) as watched:
            return list(plan.prove(watched, Crowd(port)))
    finally:
        if not keep:
            engines.stop(port)


def main() -> int:
    """Prove what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=PLANS)
    parser.add_argument("port", type=int)
    parser.add_argument(
        "--keep", action="store_true", help="leave the engine running, and use the one that runs there"
    )
    options = parser.parse_args()
    verdicts = prove(PLANS[options.model], options.port, keep=options.keep)
    return int(any(verdict.outcome == FAIL for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
