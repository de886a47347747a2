"""Synthetic /metrics pages of vLLM, release by release: what facts were read in each, and nothing more.

No engine of an older release made these pages; their names and labels were read in its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODEL = "tiny"

_BASE_LABELS = {
    "block_size": "16",
    "cache_dtype": "auto",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.9",
    "is_attention_free": "False",
    "num_cpu_blocks": "None",
    "num_gpu_blocks": "101",
    "num_gpu_blocks_override": "None",
    "sliding_window": "None",
}
_HISTOGRAMS = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_queue_time_seconds",
    "time_to_first_token_seconds",
    "request_params_max_tokens",
    "iteration_tokens_total",
)


@dataclass(frozen=True)
class Step:
    """What came and went with a release."""

    labels: tuple[str, ...] = ()
    gauges: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    histograms: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


STEPS: Mapping[str, Step] = {
    "0.8.5": Step(
        gauges=("gpu_cache_usage_perc",),
        counters=("gpu_prefix_cache_queries", "gpu_prefix_cache_hits"),
    ),
    "0.9.1": Step(),
    "0.9.2": Step(
        labels=("cpu_kvcache_space_bytes",),
        gauges=("kv_cache_usage_perc",),
        counters=("prefix_cache_queries", "prefix_cache_hits"),
    ),
    "0.10.1": Step(labels=("mamba_cache_dtype",)),
    "0.10.2": Step(labels=("kv_cache_memory_bytes",), histograms=("inter_token_latency_seconds",)),
    "0.11.2": Step(
        labels=("mamba_block_size",),
        gauges=("engine_sleep_state",),
        counters=("external_prefix_cache_queries",),
        gone=("gpu_cache_usage_perc", "gpu_prefix_cache_queries", "gpu_prefix_cache_hits"),
    ),
    "0.16.0": Step(labels=("mamba_cache_mode",), counters=("prompt_tokens_by_source",)),
    "0.20.0": Step(gauges=("num_requests_waiting_by_reason",), gone=("cpu_kvcache_space_bytes",)),
    "0.23.0": Step(),
    "0.24.0": Step(labels=("kv_cache_size_tokens", "kv_cache_max_concurrency")),
    "0.30.0": Step(histograms=("request_num_preemptions",)),
    "0.32.0": Step(labels=("kv_cache_layout", "hash_block_size"), counters=("admission_rejections",)),
}  # fmt: skip
RELEASES = tuple(STEPS)


def page(
    release: str,
    *,
    ranks: Sequence[str] = ("0",),
    usage: float = 0.01,
    running: int = 0,
    waiting: int = 0,
    preemptions: int = 0,
    finished: int = 0,
    labels: Mapping[str, str] | None = None,
    created: bool = True,
) -> str:
    """Return the page of a release: every rank has the same pool, use and requests.

    `labels` are of cache_config_info; those that the release does not have are left out.
    """
    has = _has(release)
    lines: list[str] = []

    def add(name: str, value: float, rank: str, extra: str = "") -> None:
        lines.append(f'vllm:{name}{{engine="{rank}",{extra}model_name="{MODEL}"}} {float(value)}')

    for rank in ranks:
        add("num_requests_running", running, rank)
        add("num_requests_waiting", waiting, rank)
        if "num_requests_waiting_by_reason" in has.gauges:
            add("num_requests_waiting_by_reason", waiting, rank, 'reason="capacity",')
            add("num_requests_waiting_by_reason", 0, rank, 'reason="deferred",')
        if "engine_sleep_state" in has.gauges:
            add("engine_sleep_state", 1, rank, 'sleep_state="awake",')
            add("engine_sleep_state", 0, rank, 'sleep_state="discard_all",')
        for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
            if name in has.gauges:
                add(name, usage, rank)
        for name in ("prompt_tokens", "generation_tokens", *has.counters):
            add(f"{name}_total", 1000, rank)
            if created:
                add(f"{name}_created", 1.7e9, rank)
        add("num_preemptions_total", preemptions, rank)
        for reason in ("stop", "length", "abort"):
            add(
                "request_success_total",
                finished if reason == "stop" else 0,
                rank,
                f'finished_reason="{reason}",',
            )
        for name in (*_HISTOGRAMS, *has.histograms):
            add(f"{name}_sum", 100 * finished, rank)
            add(f"{name}_bucket", finished, rank, 'le="+Inf",')
            add(f"{name}_count", finished, rank)
            if created:
                add(f"{name}_created", 1.7e9, rank)
    lines += _cache_config(release, ranks, has, labels or {})
    return "\n".join(lines) + "\n"


def v0_page(*, usage: float = 0.25, waiting: int = 0, swapped: int | None = 0, blocks: str = "100") -> str:
    """Return a page of the first engine: no `engine` label, no null block, blocks that are stated."""
    text = page("0.8.5", usage=usage, waiting=waiting, labels={"num_gpu_blocks": blocks}, created=False)
    text = text.replace('engine="0",', "")
    lines = [line for line in text.splitlines() if "gpu_prefix_cache" not in line]
    if swapped is not None:
        lines.append(f'vllm:num_requests_swapped{{model_name="{MODEL}"}} {float(swapped)}')
        lines.append(f'vllm:cpu_cache_usage_perc{{model_name="{MODEL}"}} 0.5')
    return "\n".join(lines) + "\n"


def without(text: str, *names: str) -> str:
    """Return the page without the series of these metrics, or without these labels of cache_config_info."""
    for name in names:
        if name.startswith("{"):
            before, _, after = text.partition(f'{name.strip("{}")}="')
            assert after, name
            text = before + after.partition('",')[2]
        else:
            kept = [line for line in text.splitlines() if not line.startswith(f"{name}{{")]
            assert len(kept) < len(text.splitlines()), name
            text = "\n".join(kept) + "\n"
    return text


def _has(release: str) -> Step:
    parts: dict[str, list[str]] = {"labels": [], "gauges": [], "counters": [], "histograms": []}
    for name in RELEASES[: RELEASES.index(release) + 1]:
        step = STEPS[name]
        for part, before in parts.items():
            entries = [*before, *getattr(step, part)]
            parts[part] = [entry for entry in entries if entry not in step.gone]
    return Step(**{part: tuple(names) for part, names in parts.items()})


def _cache_config(release: str, ranks: Sequence[str], has: Step, labels: Mapping[str, str]) -> list[str]:
    values = {**_BASE_LABELS, **dict.fromkeys(has.labels, "None")}
    if "kv_cache_max_concurrency" in values:
        values |= {"kv_cache_max_concurrency": "12.625", "kv_cache_size_tokens": "1616"}
    if release == "0.8.5":
        values["num_gpu_blocks"] = "None"
    values |= {name: text for name, text in labels.items() if name in values}
    text = ",".join(f'{name}="{value}"' for name, value in sorted(values.items()))
    if release == "0.8.5":
        return [f"vllm:cache_config_info{{{text}}} 1.0"]
    return [f'vllm:cache_config_info{{{text},engine="{rank}"}} 1.0' for rank in ranks]
