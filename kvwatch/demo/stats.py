"""What a simulated engine counts, in the units of its own page; reset only by a restart."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")

# Bucket edges as vLLM 0.32 exports them; token edges follow 1-2-5 up to the longest request.
FIRST_TOKEN_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_EDGES = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS_EDGES = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
PREEMPTION_EDGES = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def token_edges(longest: int) -> tuple[float, ...]:
    """Return the 1-2-5 series up to the longest request, as vLLM builds its token buckets."""
    edges: list[float] = []
    decade = 1
    while decade <= longest:
        edges += [float(decade * mantissa) for mantissa in (1, 2, 5) if decade * mantissa <= longest]
        decade *= 10
    return tuple(edges)


class Histogram:
    """Counts by bucket and a sum."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.sum = 0.0
        self._counts = [0] * (len(edges) + 1)

    @property
    def count(self) -> int:
        """Return how many values were observed."""
        return sum(self._counts)

    def observe(self, value: float) -> None:
        """Count one value in the first bucket whose edge is not below it."""
        self._counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (upper edge, values up to it), the last edge infinite."""
        return list(zip((*self.edges, float("inf")), accumulate(self._counts), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The state after the last finished step: an idle engine keeps showing it."""

    running: int = 0
    waiting: int = 0
    usage_ratio: float = 0.0


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counters and histograms of one engine life."""

    longest: int
    gauges: Gauges = Gauges()
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    request_prompt_tokens: Histogram = field(init=False)
    request_generation_tokens: Histogram = field(init=False)
    request_params_max_tokens: Histogram = field(init=False)
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_EDGES))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(TOKEN_GAP_EDGES))
    e2e_latency: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS_EDGES))
    queue_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS_EDGES))
    inference_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS_EDGES))
    prefill_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS_EDGES))
    decode_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS_EDGES))
    request_preemptions: Histogram = field(default_factory=lambda: Histogram(PREEMPTION_EDGES))

    def __post_init__(self) -> None:
        edges = token_edges(self.longest)
        self.request_prompt_tokens = Histogram(edges)
        self.request_generation_tokens = Histogram(edges)
        self.request_params_max_tokens = Histogram(edges)
