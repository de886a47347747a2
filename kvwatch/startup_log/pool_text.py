"""What a report says of a pool: its bytes, tokens, slots and ranks, and what the log leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.startup_log.ledger import pool_bytes
from kvwatch.startup_log.paragraphs import printable
from kvwatch.startup_log.pins import request_bytes
from kvwatch.table import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.startup_log.facts import Start

_MOST_ROWS = 64


def pool_sentences(start: Start) -> Iterator[str]:
    """Yield what the pool is and holds, a sentence each."""
    memory = start.memory
    if memory.kv_bytes is not None:
        exact = "" if memory.kv_bytes_exact or start.engine != "vllm" else ", as printed (within 0.005 GiB)"
        yield f"KV cache: {size(memory.kv_bytes)}{exact}."
    if start.profiled_blocks is not None and start.num_blocks is not None:
        pool = pool_bytes(start)
        about = "" if pool is None else f", about {size(pool)}"
        yield (
            f"--num-gpu-blocks-override: {start.num_blocks:,} blocks{about}, where that memory would hold"
            f" {start.profiled_blocks:,}."
        )
    elif start.num_blocks is not None:
        yield f"Blocks: {start.num_blocks:,}."
    if start.recurrent_bytes:
        yield f"Recurrent states: {size(start.recurrent_bytes)}; slots make them grow, not the context."
    if start.host_bytes:
        yield f"In host memory: {size(start.host_bytes)}."
    if start.kv_tokens is not None:
        yield f"Tokens: {start.kv_tokens:,}."
    if start.fitted_from is not None:
        yield f"vLLM lowered the longest request from {start.fitted_from:,} tokens to fit."
    if start.max_concurrency is not None and start.max_model_len is not None:
        yield _concurrency(start, start.max_concurrency, start.max_model_len)
    elif start.max_model_len is not None and start.slots is None:
        yield f"Longest request: {start.max_model_len:,} tokens."
    yield from _slots(start)


def _concurrency(start: Start, concurrency: float, length: int) -> str:
    text = f"The engine's own maximum concurrency: {concurrency:.2f} requests of {length:,} tokens"
    one = request_bytes(start)
    if one is not None and start.failure is None:
        text += f"; one takes {size(one)} by its planner"
    return text + ("." if concurrency >= 1 else ": the pool does not hold even one.")


def _slots(start: Start) -> Iterator[str]:
    slots = start.slots
    if slots is None or slots.count is None:
        return
    length = "" if start.max_model_len is None else f" of at most {start.max_model_len:,} tokens"
    pool = {
        True: ", which share one pool: when it is full, all that run fail together",
        False: ", each with a pool of its own",
        None: "",
    }[slots.unified]
    yield f"Slots: {slots.count}{length}{pool}."
    if slots.cache_type_k is not None and (slots.cache_type_k, slots.cache_type_v) != ("f16", "f16"):
        yield f"Cache types: K {slots.cache_type_k}, V {slots.cache_type_v or 'none'}."
    if slots.reduced_from is not None:
        yield f"--fit lowered the context from {slots.reduced_from:,} to suit the memory that was free."
    if slots.contexts > 1:
        yield f"{slots.contexts} contexts are in these figures: the model's own and a draft's."


def rank_lines(start: Start) -> Iterator[str]:
    """Yield a table of the ranks, where there are several."""
    if len(start.ranks) > 1:
        table: list[tuple[str, ...]] = [("RANK", "WEIGHTS", "KV CACHE")]
        table += [
            (
                printable(rank.name) or "?",
                "?" if rank.weights_bytes is None else size(rank.weights_bytes),
                "?" if rank.kv_bytes is None else size(rank.kv_bytes),
            )
            for rank in start.ranks[:_MOST_ROWS]
        ]
        yield f"{len(start.ranks)} processes; every rank of an engine gets the pool of its smallest"
        yield from columns(table)
    if len(start.engines) > 1:
        pools: list[tuple[str, ...]] = [("ENGINE", "TOKENS", "BLOCKS", "CONCURRENCY")]
        pools += [
            (
                printable(engine.name) or "?",
                "?" if engine.kv_tokens is None else f"{engine.kv_tokens:,}",
                "?" if engine.num_blocks is None else f"{engine.num_blocks:,}",
                "?" if engine.max_concurrency is None else f"{engine.max_concurrency:.2f}x",
            )
            for engine in start.engines[:_MOST_ROWS]
        ]
        yield f"{len(start.engines)} engines, a pool each; the figures above are the smallest's"
        yield from columns(pools)


def missing_sentences(start: Start) -> Iterator[str]:
    """Yield what this engine could have printed and did not, and how to have it printed."""
    if start.failure is not None or start.engine == "sglang":
        return
    memory = start.memory
    if start.engine == "llama.cpp":
        if memory.kv_bytes is None and not any(device.held_bytes for device in start.devices):
            yield (
                "Memory at all: llama-server prints it with -lv 4 (builds after b9093), older builds always."
            )
        return
    names = [
        name
        for name, value in (
            ("the card's size", memory.total_bytes),
            ("the share", memory.share),
            ("the weights", memory.weights_bytes),
            ("non-torch memory", memory.non_torch_bytes),
            ("the peak activation", memory.activation_bytes),
            ("the KV cache's bytes", memory.kv_bytes),
            # The legacy engine prints blocks instead.
            ("its tokens", start.kv_tokens if start.num_blocks is None else start.num_blocks),
            ("the concurrency", start.max_concurrency),
        )
        if value is None
    ]
    if names:
        text = ", ".join(names)
        yield f"{text[0].upper()}{text[1:]}."
        if memory.total_bytes is None and start.pinned_bytes is None:
            yield (
                "vLLM prints all of them in one line: 0.10.2 and from 0.26 on at INFO, between with"
                " VLLM_LOGGING_LEVEL=DEBUG."
            )
    if memory.share is None and start.settings and start.configuration.get("device_config") != "cpu":
        yield (
            "gpu-memory-utilization is not among the arguments, so it is the version's own: 0.9, from 0.20"
            " on 0.92."
        )
    expected, printed = start.expected_ranks, len(start.ranks)
    if expected is not None and printed and expected > printed:
        yield (
            f"The memory of {expected - printed} of {expected} ranks: if one of them has less, the pool is"
            f" that one's, so trust the tokens before the bytes."
        )
