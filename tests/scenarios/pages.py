"""A scripted server's pages, as vLLM writes them: only what kvwatch reads, so that a month takes seconds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.scenarios.crowd import Rank
    from tests.scenarios.world import Life

_CONCURRENCY_SINCE = (0, 24, 0)
_REASONS_SINCE = (0, 20, 0)
_SLEEP_STATE_SINCE = (0, 11, 2)


def pages(
    life: Life, ranks: Mapping[str, Rank], *, started_at: float, asleep: bool, blocks: int, stalled: bool
) -> dict[str, str]:
    """Return path -> body; `started_at` in Unix seconds, `blocks` of each rank, null block included."""
    card = {"id": life.name, "root": f"/models/{life.name}", "max_model_len": life.max_model_len}
    return {
        "/metrics": _metrics(
            life, ranks, started_at=started_at, asleep=asleep, blocks=blocks, stalled=stalled
        ),
        "/v1/models": json.dumps({"object": "list", "data": [card]}),
        "/version": json.dumps({"version": life.version}),
    }


def _metrics(
    life: Life, ranks: Mapping[str, Rank], *, started_at: float, asleep: bool, blocks: int, stalled: bool
) -> str:
    release = tuple(int(part) for part in life.version.split("."))
    lines = [f"process_start_time_seconds {started_at}"]
    for rank, engine in ranks.items():
        labels = f'engine="{rank}",model_name="{life.name}"'
        counters = engine.counters
        lines += [
            f"vllm:num_requests_running{{{labels}}} {0 if asleep else engine.running}",
            f"vllm:num_requests_waiting{{{labels}}} {0 if asleep else engine.waiting}",
            f"vllm:kv_cache_usage_perc{{{labels}}} {0.0 if asleep else engine.used_blocks / (blocks - 1)}",
            f"vllm:prefix_cache_queries_total{{{labels}}} {counters.queries}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {counters.hits}",
            f"vllm:num_preemptions_total{{{labels}}} {counters.preemptions}",
            f"vllm:prompt_tokens_total{{{labels}}} {counters.prompt_tokens}",
            f"vllm:generation_tokens_total{{{labels}}} {counters.generated}",
            *_histogram("request_prompt_tokens", labels, counters.prompt_tokens, counters.finished),
            *_histogram("request_generation_tokens", labels, counters.answer_tokens, counters.finished),
            *_histogram("request_queue_time_seconds", labels, counters.queue_seconds, counters.finished),
            *_histogram(
                "time_to_first_token_seconds", labels, counters.first_token_seconds, counters.finished
            ),
            *_histogram("inter_token_latency_seconds", labels, 0.0, counters.generated),
        ]
        finished = {"stop": counters.finished, "length": 0.0, "abort": 0.0}
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}'
            for reason, count in finished.items()
        ]
        if release >= _REASONS_SINCE:
            for_capacity = 0 if asleep or stalled else engine.waiting
            deferred = engine.waiting if stalled and not asleep else 0
            name = "vllm:num_requests_waiting_by_reason"
            lines.append(f'{name}{{{labels},reason="capacity"}} {for_capacity}')
            lines.append(f'{name}{{{labels},reason="deferred"}} {deferred}')
        if release >= _SLEEP_STATE_SINCE:
            state = "vllm:engine_sleep_state"
            lines.append(f'{state}{{{labels},sleep_state="awake"}} {0 if asleep else 1}')
            lines.append(f'{state}{{{labels},sleep_state="discard_all"}} {1 if asleep else 0}')
        lines.append(_cache_config(life, rank, blocks, len(ranks), release))
    return "\n".join(lines) + "\n"


def _histogram(name: str, labels: str, total: float, count: float) -> Sequence[str]:
    return (f"vllm:{name}_sum{{{labels}}} {total}", f"vllm:{name}_count{{{labels}}} {count}")


def _cache_config(life: Life, rank: str, blocks: int, rank_count: int, release: tuple[int, ...]) -> str:
    settings = {
        "block_size": str(life.block_size),
        "cache_dtype": life.cache_dtype,
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": str(0.9 if life.share is None else life.share),
        "kv_cache_memory_bytes": str(life.pin_bytes),
        "num_gpu_blocks": str(blocks * rank_count),
        "num_gpu_blocks_override": "None",
        "sliding_window": "None",
    }
    if release >= _CONCURRENCY_SINCE:
        concurrency = blocks / life.plan.start_blocks
        settings["kv_cache_max_concurrency"] = repr(concurrency)
        settings["kv_cache_size_tokens"] = str(int(concurrency * life.max_model_len))
    text = ",".join(f'{name}="{value}"' for name, value in settings.items())
    return f'vllm:cache_config_info{{{text},engine="{rank}"}} 1.0'
