"""The words of a scripted day: servers and their lives, neighbours, what clients send, what is watched when.

All times are seconds relative to the moment at which triage is asked: negative is the past.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.vllm import VllmOptions, plan_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm import BlockPlan

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
MIB, GIB = 1 << 20, 1 << 30
NOW = 1_795_615_200.0
"""Unix seconds: a Wednesday, 14:00 UTC."""
CARD_BYTES = 81_559 * MIB
START_SECONDS = 150.0
"""From a process's start until its first page."""


def dense(**changes: object) -> Mapping[str, object]:
    """Return the config.json of a dense model of 8 billion parameters: 147,456 bytes a token in bfloat16."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "vocab_size": 151_936,
        "max_position_embeddings": 131_072,
        **changes,
    }


def windowed(*, full: int, window: int, tokens: int = 1024) -> Mapping[str, object]:
    """Return the config.json of a model with so many full layers and so many that see a window of tokens."""
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": full + window,
        "layer_types": ["full_attention"] * full + ["sliding_attention"] * window,
        "sliding_window": tokens,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
    }


@dataclass(frozen=True, kw_only=True)
class Life:
    """A server from one start to the next: its flags, and what they made of the card."""

    start: float
    pool_bytes: int = 12 * GIB
    """What profiling left for the pool, on each device; the whole blocks of it are the pool."""
    model: Mapping[str, object] = field(default_factory=dense)
    name: str = "chat-8b"
    version: str = "0.32.0"
    share: float | None = 0.9
    pin_bytes: int | None = None
    cache_dtype: str = "auto"
    max_model_len: int = 32_768
    request_limit: int = 128
    batched_tokens: int = 8192
    block_size: int = 16
    ranks: int = 1
    tensor_parallel: int = 1
    hybrid_manager: bool = True
    weights_bytes: int = 17 * GIB
    model_known: bool = True
    """Whether kvwatch finds the model's files, and so the bytes."""
    ready_after: float = START_SECONDS
    """Seconds from the process's start until the first page."""

    @functools.cached_property
    def plan(self) -> BlockPlan:
        """Return the engine's own plan."""
        return plan_blocks(
            _spec(json.dumps(self.model)),
            VllmOptions(
                engine_version=tuple(int(part) for part in self.version.split(".")),
                cache_dtype=self.cache_dtype,
                max_model_len=self.max_model_len,
                max_num_batched_tokens=self.batched_tokens,
                block_size=self.block_size,
                max_num_seqs=self.request_limit,
                tensor_parallel=self.tensor_parallel,
                hybrid_manager=self.hybrid_manager,
            ),
        )

    @functools.cached_property
    def blocks(self) -> int:
        """Return N of each rank, the null block included."""
        return self.pool_bytes // self.plan.bytes_per_block


@functools.cache
def _spec(model: str) -> ModelSpec:
    return read_hf_config(json.loads(model))


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What clients of one rank send at a moment."""

    rate: float = 0.5
    """Requests a second."""
    prompt: float = 1600.0
    """Mean tokens."""
    answer: float = 400.0
    prompt_spread: float = 0.7
    """Standard deviation of the logarithm."""
    answer_spread: float = 0.6
    hit_ratio: float = 0.3
    """Of prompt tokens, found in the prefix cache."""
    users: int = 10_000
    """Who wait for an answer before they ask again: so many requests are outstanding at most."""
    stalled: bool = False
    """The engine admits nothing although its pool is free: a connector, a grammar, a stuck step."""


@dataclass(frozen=True, kw_only=True)
class ServerScript:
    """One server's past, in lives oldest first."""

    name: str = "chat"
    lives: tuple[Life, ...]
    traffic: Callable[[float], Traffic] = lambda _: Traffic()
    device: int = 0
    asleep: tuple[tuple[float, float, int], ...] = ()
    """(from, to, bytes of the pool after waking; 0 for as before)."""
    rank_gone: tuple[tuple[str, float], ...] = ()
    """(rank, since): its engine core has died, the others serve on."""
    gone: tuple[tuple[float, float], ...] = ()
    """(from, to): nobody answers."""
    token_seconds: float = 0.02
    """To generate one."""

    def life_at(self, at: float) -> Life | None:
        """Return the life of the process that runs at a moment."""
        if any(start <= at < end for start, end in self.gone):
            return None
        return next((life for life in reversed(self.lives) if life.start <= at), None)


@dataclass(frozen=True, kw_only=True)
class Squatter:
    """Somebody else's process on a device: bytes as a function of time, None while it is not there."""

    pid: int
    name: str
    held: Callable[[float], int | None]
    device: int = 0


@dataclass(frozen=True, kw_only=True)
class Day:
    """One scripted day, the question asked at its end, and the one right answer."""

    name: str
    servers: tuple[ServerScript, ...]
    cause: str
    about: str = "chat"
    """The server that is asked about."""
    baseline: str = "1d"
    squatters: tuple[Squatter, ...] = ()
    unwatched: tuple[tuple[float, float], ...] = ()
    """(from, to): kvwatch was down."""
    watched_closely: tuple[tuple[float, float], ...] = ()
    """(from, to): polled every minute, beside the two hours that are compared."""
    clock_steps: tuple[tuple[float, float], ...] = ()
    """(at, by): the machine's clock was set by so many seconds."""
    ratio: tuple[float, float] | None = None
    """Bounds of C now / C then."""
    factors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Bounds of some of the logarithms."""
    evidence: tuple[str, ...] = ()
    """Kinds that must be among the evidence."""
    at_most: str = "high"
    """The most confidence that what was seen allows."""
    exit_code: int = 1

    @property
    def span(self) -> float:
        """Return how many seconds back the baseline is."""
        return {"1d": DAY, "7d": 7 * DAY, "30d": 30 * DAY}[self.baseline]


def steps(*changes: tuple[float, Traffic]) -> Callable[[float], Traffic]:
    """Return traffic that changes at moments: (since, traffic), oldest first."""

    def at(moment: float) -> Traffic:
        return next((traffic for since, traffic in reversed(changes) if since <= moment), changes[0][1])

    return at
