"""Count the blocks that vLLM's own KV cache manager gives one request; no model, no weights, no device.

    python manager.py < cases.json      in vLLM's environment; prints JSON

A case states KV groups and how the engine schedules; see `Case`. For each length L the answer holds
`admission`: the smallest number of usable blocks with which a prompt of L tokens is let in,
`prefill`: the most blocks held at any step that reads a prompt of L tokens,
`settle`: held at the step after, while the last batch of the prompt may still be in flight,
`peak`: the most held at any step while a prompt of one token grows by decoding up to L,
`steady`: the most held in the last two blocks' worth of those steps,
`last`: held at the last one.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

ATTENTION = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}


@dataclass(frozen=True)
class Case:
    """Groups of one model, and the engine that serves it."""

    groups: list[dict[str, Any]]  # kind: full, window, chunked or recurrent; block_size; window; checkpoints
    prefix_caching: bool
    max_model_len: int
    batched_tokens: int
    batches: int  # that may be scheduled and not yet settled: 2 with asynchronous scheduling
    lengths: list[int]

    @property
    def state_mode(self) -> str:
        """Return vLLM's mamba_cache_mode."""
        return "align" if self.prefix_caching else "none"

    def spec(self, group: dict[str, Any]) -> KVCacheSpec:
        """Return vLLM's description of a group."""
        block = group["block_size"]
        if group["kind"] == "recurrent":
            checkpoints = group["checkpoints"]
            return MambaSpec(
                block_size=block if self.prefix_caching else self.max_model_len,
                shapes=((1,),),
                dtypes=(torch.float16,),
                mamba_cache_mode=self.state_mode,
                num_prefill_checkpoint_blocks=checkpoints,
                prefill_checkpoint_alignment=1 if checkpoints else None,
            )
        if group["kind"] == "window":
            return SlidingWindowSpec(block_size=block, sliding_window=group["window"], **ATTENTION)
        if group["kind"] == "chunked":
            return ChunkedLocalAttentionSpec(
                block_size=block, attention_chunk_size=group["window"], **ATTENTION
            )
        return FullAttentionSpec(block_size=block, **ATTENTION)


class Engine:
    """A KV cache manager with as much of the scheduler around it as one request needs."""

    def __init__(self, case: Case, usable: int) -> None:
        self.case = case
        groups = [
            KVCacheGroupSpec([f"layer.{index}"], case.spec(group)) for index, group in enumerate(case.groups)
        ]
        config = KVCacheConfig(num_blocks=usable + 1, kv_cache_tensors=[], kv_cache_groups=groups)
        cache = SimpleNamespace(
            block_size=min(group.kv_cache_spec.block_size for group in groups),
            enable_prefix_caching=case.prefix_caching,
            prefix_match_unit=None,
            mamba_cache_mode=case.state_mode,
        )
        settings = SimpleNamespace(
            cache_config=cache,
            parallel_config=SimpleNamespace(decode_context_parallel_size=1),
            kv_transfer_config=None,
        )
        self.scheduler_block, self.hash_block = resolve_kv_cache_block_sizes(config, settings)
        self.usable = usable
        self.manager = KVCacheManager(
            config,
            max_model_len=case.max_model_len,
            scheduler_block_size=self.scheduler_block,
            hash_block_size=self.hash_block,
            max_in_flight_tokens=case.batched_tokens * case.batches,
            enable_caching=case.prefix_caching,
        )
        states = [group.kv_cache_spec for group in groups if isinstance(group.kv_cache_spec, MambaSpec)]
        aligned = bool(states) and case.state_mode == "align"
        # What Scheduler._mamba_block_aligned_split reads of its scheduler.
        self.splitter = SimpleNamespace(
            cache_config=cache,
            block_size=self.scheduler_block,
            hash_block_size=self.hash_block,
            use_eagle_block_drop=False,
            mamba_partial_cache_hit=aligned
            and self.hash_block < self.scheduler_block
            and self.manager.coordinator.enable_partial_hash_hits,
            mamba_has_prefill_checkpoint_blocks=bool(states)
            and all(state.num_prefill_checkpoint_blocks > 0 for state in states),
            mamba_prefill_checkpoint_alignment=next(
                (state.prefill_checkpoint_alignment for state in states), None
            ),
            mamba_shared_prefix_checkpoint=False,
            max_num_scheduled_tokens=case.batched_tokens,
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        )
        self.aligned = aligned
        self.in_flight: deque[int] = deque()

    def request(self, prompt: int, generate: int) -> Request:
        """Return a request with a random prompt."""
        tokens = random.Random(prompt).choices(range(1000), k=prompt)  # noqa: S311 - no secret
        parameters = SamplingParams(max_tokens=max(1, generate), ignore_eos=True)
        return Request(
            "r", tokens, parameters, None, block_hasher=get_request_block_hasher(self.hash_block, sha256)
        )

    @property
    def held(self) -> int:
        """Return the blocks that are not free."""
        return self.usable - int(self.manager.block_pool.get_num_free_blocks())

    def step(self, request: Request) -> bool:
        """Schedule the request once, as the scheduler does; return whether there was room."""
        self.manager.new_step_starts()
        waiting = request.num_computed_tokens == 0
        left = max(1, request.num_tokens - request.num_computed_tokens)
        new = min(left, self.case.batched_tokens)
        if self.aligned:
            new = Scheduler._mamba_block_aligned_split(self.splitter, request, new)
        computed = self.manager.get_computed_blocks(request) if waiting else (None, 0, 0)
        blocks = self.manager.allocate_slots(
            request,
            new,
            num_new_computed_tokens=computed[1],
            new_computed_blocks=computed[0],
            full_sequence_must_fit=waiting,
        )
        if blocks is None:
            return False
        request.num_computed_tokens += new
        request.num_in_flight_tokens += new
        self.in_flight.append(new)
        # A batch is settled before the next one is scheduled, or after it with asynchronous scheduling.
        if len(self.in_flight) == self.case.batches:
            request.num_in_flight_tokens -= self.in_flight.popleft()
            if request.num_computed_tokens >= request.num_prompt_tokens:
                request.append_output_token_ids(7)
        return True


def plenty(case: Case, length: int) -> int:
    """Return more blocks than a request of `length` tokens can take."""
    return sum(length // group["block_size"] + 8 for group in case.groups)


def admission(case: Case, length: int) -> int:
    """Return the smallest usable pool into which a prompt of `length` tokens is let."""
    low, high = 0, plenty(case, length)
    while high - low > 1:
        middle = (low + high) // 2
        engine = Engine(case, middle)
        if engine.step(engine.request(length, 1)):
            high = middle
        else:
            low = middle
    return high


def read_prompt(case: Case, length: int) -> tuple[int, int | None]:
    """Return the most blocks held while a prompt is read, and those of the step after, if there is one."""
    engine = Engine(case, plenty(case, length))
    request = engine.request(length, 1)
    most = 0
    while request.num_computed_tokens < length:
        if not engine.step(request):
            raise RuntimeError("a pool of plenty blocks is too small")
        most = max(most, engine.held)
    if length == case.max_model_len:
        return most, None
    engine.step(request)
    return most, engine.held


def grow(case: Case, length: int) -> list[int]:
    """Return the blocks held with 1, 2, ... `length` tokens of a request that grows by decoding."""
    engine = Engine(case, plenty(case, length))
    request = engine.request(1, length)
    held = []
    while request.num_computed_tokens < length:
        if not engine.step(request):
            raise RuntimeError("a pool of plenty blocks is too small")
        held.append(engine.held)
    return held


def measure(case: Case) -> list[dict[str, int | None]]:
    """Measure a case at all its lengths."""
    recent = 2 * max(group["block_size"] for group in case.groups)
    grown = grow(case, max(case.lengths))
    rows: list[dict[str, int | None]] = []
    for length in case.lengths:
        prefill, settle = read_prompt(case, length)
        rows.append(
            {
                "length": length,
                "admission": admission(case, length),
                "prefill": prefill,
                "settle": settle,
                "peak": max(grown[:length]),
                "steady": max(grown[max(0, length - recent) : length]),
                "last": grown[length - 1],
            }
        )
    return rows


def main() -> None:
    """Measure the cases on standard input."""
    logging.disable(logging.WARNING)
    init_none_hash(sha256)
    cases = json.load(sys.stdin)
    print(json.dumps({name: measure(Case(**case)) for name, case in cases.items()}))


if __name__ == "__main__":
    main()
