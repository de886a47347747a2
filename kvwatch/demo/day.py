"""The scripted day, as data: the card, the two servers, the load by hour, the restarts.

Two clocks: the hours of the script, which run `speed` times as fast as the wall, and the engines' own
seconds, which are real. So a rush of ninety minutes passes in fifteen seconds while a request still takes
some seconds, and every rate on the pages is one that a real card could show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MINUTE = 60.0
HOUR = 60 * MINUTE
DAY = 24 * HOUR
MIB = 1 << 20
GIB = 1 << 30

DEFAULT_SPEED = 360.0
"""One hour of the script in ten seconds."""
OPENING = 8 * HOUR
"""When the first day begins: with an ordinary morning to compare the rest with."""

RUNNING_BEFORE_SECONDS = 9 * DAY
"""So long the servers had been running when the first day begins; nobody deployed anything since."""

CHAT = "chat"
EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The one GPU of the fleet."""

    uuid: str
    name: str
    driver: str
    total_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """One server: its model, its flags, its bytes and how fast it computes."""

    name: str
    model: str
    config: Mapping[str, object]
    """The model's config.json."""
    bytes_per_token: int
    max_model_len: int
    max_num_seqs: int
    share: float
    """gpu_memory_utilization."""
    pin_bytes: int | None
    """kv_cache_memory_bytes."""
    context_bytes: int
    """What a process holds before its weights."""
    weights_bytes: int
    working_bytes: int
    """Activations, graphs and context together."""
    step_seconds: float
    prefill_token_seconds: float
    shared_prefix_tokens: int
    warming_up_seconds: float
    """Of the script, from the pool's measurement until it answers: graphs are captured."""
    outstanding_limit: int
    """What the gateway before the server lets in at once."""
    block_size: int = 16
    max_num_batched_tokens: int = 2048

    @property
    def bytes_per_block(self) -> int:
        """Return the bytes of one block over all layers."""
        return self.bytes_per_token * self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How often clients send, and the mean lengths in tokens; an answer of 0 is a pooling request."""

    arrivals_per_second: float
    prompt_tokens: float
    answer_tokens: float = 0.0
    burst: int = 1
    """Requests that are sent together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What clients send from `start` (seconds of the day) until the next phase."""

    start: float
    name: str
    story: str
    loads: Mapping[str, Load]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One server stops and is launched again with the same flags; seconds of the day."""

    server: str
    stop: float
    launch: float
    story: str


def _config(*, hidden_size: int, intermediate_size: int) -> Mapping[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "sliding_window": None,
        "use_sliding_window": False,
    }


CARD = Card(
    uuid="GPU-6d6f6465-6d6f-4f6e-8c79-00000000a001",
    name="NVIDIA L40S",
    driver="580.126.09",
    total_bytes=46_068 * MIB,
    reserved_bytes=594 * MIB,
)

# 36 layers x 8 KV heads x (128 + 128) x 2 bytes.
_BYTES_PER_TOKEN = 147_456

SERVERS = (
    ServerPlan(
        name=CHAT,
        model="demo/chat-8b",
        config=_config(hidden_size=4096, intermediate_size=12288),
        bytes_per_token=_BYTES_PER_TOKEN,
        max_model_len=4096,
        max_num_seqs=64,
        # Leaves 6.26 GiB for the pool when nobody else grows meanwhile.
        share=0.5722,
        pin_bytes=None,
        context_bytes=450 * MIB,
        weights_bytes=15_622 * MIB,
        working_bytes=4_328 * MIB,
        step_seconds=0.016,
        prefill_token_seconds=0.00008,
        shared_prefix_tokens=256,
        warming_up_seconds=27 * MINUTE,
        outstanding_limit=72,
    ),
    ServerPlan(
        name=EMBEDDING,
        model="demo/embedding-4b",
        config=_config(hidden_size=2560, intermediate_size=9728),
        bytes_per_token=_BYTES_PER_TOKEN,
        max_model_len=4096,
        max_num_seqs=32,
        share=0.25,
        pin_bytes=int(1.72 * GIB),
        context_bytes=450 * MIB,
        weights_bytes=7_668 * MIB,
        working_bytes=1_726 * MIB,
        step_seconds=0.008,
        prefill_token_seconds=0.00005,
        shared_prefix_tokens=0,
        warming_up_seconds=2 * MINUTE,
        outstanding_limit=64,
    ),
)

_DOCUMENTS = Load(arrivals_per_second=3.0, burst=4, prompt_tokens=380)
_FEW_DOCUMENTS = Load(arrivals_per_second=0.5, burst=4, prompt_tokens=380)

PHASES = (
    Phase(
        start=0 * HOUR,
        name="night",
        story="Night: little to do.",
        loads={
            CHAT: Load(arrivals_per_second=0.25, prompt_tokens=1100, answer_tokens=500),
            EMBEDDING: _FEW_DOCUMENTS,
        },
    ),
    Phase(
        start=7 * HOUR,
        name="morning",
        story="Morning: an ordinary load, and room for more full-length requests.",
        loads={
            CHAT: Load(arrivals_per_second=0.6, prompt_tokens=1100, answer_tokens=500),
            EMBEDDING: _DOCUMENTS,
        },
    ),
    Phase(
        start=12 * HOUR,
        name="noon rush",
        story="Noon: sixteen times the requests; the pool fills up, requests queue, and some are recomputed.",
        loads={
            CHAT: Load(arrivals_per_second=10.0, prompt_tokens=1100, answer_tokens=500),
            EMBEDDING: _DOCUMENTS,
        },
    ),
    Phase(
        start=13.5 * HOUR,
        name="early afternoon",
        story="The rush is over; the queue drains.",
        loads={
            CHAT: Load(arrivals_per_second=0.6, prompt_tokens=1100, answer_tokens=500),
            EMBEDDING: _DOCUMENTS,
        },
    ),
    Phase(
        start=16 * HOUR,
        name="long prompts",
        story="Prompts double in length: the same pool is enough for little more than half as many requests.",
        loads={
            CHAT: Load(arrivals_per_second=1.2, prompt_tokens=2200, answer_tokens=500),
            EMBEDDING: _DOCUMENTS,
        },
    ),
    Phase(
        start=19 * HOUR,
        name="evening peak",
        story="The evening peak, with long answers, meets the small pool: requests queue, work is redone.",
        loads={
            CHAT: Load(arrivals_per_second=5.0, prompt_tokens=1000, answer_tokens=900),
            EMBEDDING: _DOCUMENTS,
        },
    ),
    Phase(
        start=21 * HOUR,
        name="evening",
        story="Evening: prompts are short again.",
        loads={
            CHAT: Load(arrivals_per_second=0.45, prompt_tokens=1100, answer_tokens=500),
            EMBEDDING: _FEW_DOCUMENTS,
        },
    ),
)

RESTARTS = (
    # Both are told to restart and nobody waits for the first to be ready: the chat server measures its
    # memory while the embedding server is still growing, and takes that growth for its own.
    Restart(
        server=EMBEDDING,
        stop=18 * HOUR,
        launch=18 * HOUR,
        story="Both servers restart at once, with the same flags as ever.",
    ),
    Restart(
        server=CHAT,
        stop=18 * HOUR,
        launch=18 * HOUR + 6.5 * MINUTE,
        story="They charge each other: the chat server comes back with hardly more than a third of its pool.",
    ),
    Restart(
        server=CHAT,
        stop=21 * HOUR,
        launch=21 * HOUR,
        story="The chat server restarts alone, and gets its whole pool back.",
    ),
)

_GROWN_DAYS_AGO = 3.0
"""Since then the chat server's clients send as much as they do on the day that is shown; before, far less."""
_SHORT = Load(arrivals_per_second=0.6, prompt_tokens=400, answer_tokens=250)


def usual_load(name: str, moment: float, *, days_ago: float) -> Load:
    """Return what clients sent at a moment of the days before: no rush, and at first shorter requests."""
    night = phase_at(moment).name == "night"
    load = next(phase for phase in PHASES if phase.name == ("night" if night else "morning")).loads[name]
    if name != CHAT or days_ago < _GROWN_DAYS_AGO:
        return load
    return replace(_SHORT, arrivals_per_second=load.arrivals_per_second)


def plan_of(name: str) -> ServerPlan:
    """Return the plan of a server of the day."""
    return next(plan for plan in SERVERS if plan.name == name)


def phase_at(moment: float) -> Phase:
    """Return the phase at a moment of the script, in seconds since its first midnight."""
    second = moment % DAY
    return next(phase for phase in reversed(PHASES) if phase.start <= second)
