"""Which pool size to pin so that the next start is like this one, and what the pin freezes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.startup_log.amounts import GIB

if TYPE_CHECKING:
    from kvwatch.startup_log.facts import Start

FIRST_WITH_PIN = (0, 10, 2)
"""The first vLLM that has --kv-cache-memory-bytes."""
_SILENT_FROM, _SILENT_BEFORE = (0, 11), (0, 26)
"""Between these the suggestion is printed at DEBUG only."""
_HALF_DIGIT = GIB // 200
_MARGIN = 150 << 20
"""What vLLM leaves free in its suggestions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The advice on pinning one start."""

    line: str | None = None
    """For the configuration file (vLLM), or the options (llama-server)."""
    pin_bytes: int | None = None
    refusal: str | None = None
    """Why there is no line."""
    remarks: tuple[str, ...] = ()


def advise(start: Start) -> Pin:
    """Return what to pin, or why nothing."""
    if start.failure is not None:
        return Pin(refusal="the start failed: there is no pool of it to keep")
    if start.engine == "llama.cpp":
        return _slots(start)
    if start.engine != "vllm":
        return Pin(refusal=f"no pin is known for {start.engine}")
    return _vllm(start)


def _vllm(start: Start) -> Pin:
    memory = start.memory
    if start.release is not None and start.release < FIRST_WITH_PIN:
        blocks = start.num_blocks
        instead = "" if blocks is None else f"; --num-gpu-blocks-override {blocks} keeps this pool"
        return Pin(
            refusal=f"vLLM {start.version} has no --kv-cache-memory-bytes, 0.10.2 is the first{instead}"
        )
    if start.profiled_blocks is not None and start.num_blocks is not None:
        return Pin(
            refusal="the pool is fixed already, by --num-gpu-blocks-override"
            f" {start.num_blocks}: take that out before a pin"
        )
    if start.pinned_bytes is not None:
        return _line(start.pinned_bytes, "This start was pinned already; this is its pin.")
    if memory.suggested_pin_bytes is not None:
        return _suggested(start, memory.suggested_pin_bytes)
    if memory.kv_bytes is None or memory.kv_bytes <= _HALF_DIGIT:
        return Pin(refusal="the log does not say how much memory the KV cache has")
    pin = memory.kv_bytes if memory.kv_bytes_exact else memory.kv_bytes - _HALF_DIGIT
    release = start.release
    where = ""
    if release is not None and _SILENT_FROM <= release < _SILENT_BEFORE:
        where = f": vLLM {start.version} prints it with VLLM_LOGGING_LEVEL=DEBUG only"
    return _line(
        pin,
        f"The log holds no suggestion{where}. This is the pool of this start, which it ran with"
        + ("." if memory.kv_bytes_exact else ", less the 0.005 GiB that its printed figure may be off."),
    )


def _suggested(start: Start, pin: int) -> Pin:
    memory = start.memory
    if pin <= 0:
        return Pin(refusal="vLLM's suggestion is below zero: the share leaves nothing to pin, raise it first")
    remarks = [
        "It is the suggestion that fits into the memory asked for"
        + ("." if memory.requested_bytes is None else f", {size(memory.requested_bytes)} of the card."),
        *_not_the_other(start),
        *_against_now(start, pin),
    ]
    request = request_bytes(start)
    if request is not None and pin < request:
        remarks.append(
            f"It would not start: one request of {start.max_model_len or 0:,} tokens takes about"
            f" {size(request)}. Lower --max-model-len or raise the share."
        )
    return _line(pin, *remarks)


def _not_the_other(start: Start) -> list[str]:
    full, free, total = (
        start.memory.suggested_pin_full_bytes,
        start.memory.free_bytes,
        start.memory.total_bytes,
    )
    if full is None:
        return []
    text = f"Not the other one, {full:,} ({size(full)}): it takes all that was free at this start"
    if free is not None and total is not None:
        text += f", {size(free)} of {size(total)}"
    return [
        f"{text}; whatever starts beside it, or held less that day, makes the next start run out of memory."
    ]


def _against_now(start: Start, pin: int) -> list[str]:
    """Say why the suggestion is not the pool of this start."""
    memory = start.memory
    if memory.kv_bytes is None:
        return []
    less = memory.kv_bytes - pin
    if less <= 0:
        return [f"It is {size(-less)} more than the pool of this start."]
    text = f"It is {size(less)} less than the pool of this start: {size(_MARGIN)} are a margin"
    if memory.graphs_in_activation and memory.graphs_bytes:
        # 0.27 and newer: peak activation holds the estimate, and the captured graphs are taken off again.
        text += (
            f", {size(memory.graphs_bytes)} are CUDA graphs, which this version takes off twice: as an"
            f" estimate inside the peak activation and again as captured"
        )
    elif memory.graphs_bytes and less > _MARGIN + 2 * _HALF_DIGIT:
        text += (
            f", the rest CUDA graphs ({size(memory.graphs_bytes)}), for which this pool had left too little"
        )
    return [text + "."]


def request_bytes(start: Start) -> int | None:
    """Return what one request of full length takes, by the concurrency that the engine prints."""
    pool, concurrency = start.memory.kv_bytes, start.max_concurrency
    if pool is None or not concurrency or start.profiled_blocks is not None:
        return None
    return round(pool / concurrency)


FREEZES = (
    (
        "A pin freezes the pool: nothing is profiled, so a neighbour that starts at the same time no longer"
        " makes it smaller, and gpu-memory-utilization no longer sizes it (it still refuses the start while"
        " less than that share is free)."
    ),
    (
        "Take it from a start during which nothing else of the card started: what others took while it"
        " profiled is in it. Take a new one, from a start without a pin, when the model, its quantisation,"
        " dtype, --max-model-len, --max-num-batched-tokens, --max-num-seqs, parallelism, CUDA graphs,"
        " vLLM's version or the card change."
    ),
)


def _line(pin: int, *remarks: str) -> Pin:
    return Pin(line=f"kv-cache-memory-bytes: {pin}", pin_bytes=pin, remarks=remarks)


def _slots(start: Start) -> Pin:
    """Return the options that give a llama-server this pool whatever memory is free."""
    slots = start.slots
    if slots is None or slots.count is None or start.kv_tokens is None or slots.unified is None:
        return Pin(
            refusal="the log does not say the whole context; start llama-server with -lv 4 to have it printed"
        )
    options = [f"--ctx-size {start.kv_tokens} --parallel {slots.count}"]
    options += ["--kv-unified"] if slots.unified else []
    for name, kind in (("k", slots.cache_type_k), ("v", slots.cache_type_v)):
        options += [] if kind in (None, "f16") else [f"--cache-type-{name} {kind}"]
    remarks = []
    if slots.fit_seen:
        options.append("--fit off")
        remarks.append(
            "Without a --ctx-size, --fit sizes the context by the memory that is free at that moment: the"
            " same command gives another pool tomorrow."
        )
    return Pin(line=" ".join(options), remarks=tuple(remarks))
