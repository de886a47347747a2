"""vLLM, 0.24 and newer: /metrics, /v1/models and /version.

Names and meanings were read in v1/metrics/loggers.py, v1/core/block_pool.py and v1/core/kv_cache_utils.py
of vLLM 0.24 to 0.32. /metrics is asked without a trailing slash: with one, another application answers
and may spell the names differently.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from kvwatch.engines.adapter import Adapter, required_body
from kvwatch.engines.exposition_text import Samples, read_samples
from kvwatch.readings import EngineReading, RankReading, Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.readings import Page

METRICS, MODELS, VERSION = "/metrics", "/v1/models", "/version"

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
USAGE = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"
CACHE_CONFIG = "vllm:cache_config_info"
SLEEP_STATE = "vllm:engine_sleep_state"
FINISHED = "vllm:request_success_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
PROMPT_LENGTH = "vllm:request_prompt_tokens"
GENERATION_LENGTH = "vllm:request_generation_tokens"
QUEUE_TIME = "vllm:request_queue_time_seconds"
FIRST_TOKEN_TIME = "vllm:time_to_first_token_seconds"  # noqa: S105 - a token of text
PROCESS_START = "process_start_time_seconds"

_PER_RANK = (
    WAITING,
    WAITING_BY_REASON,
    USAGE,
    PREEMPTIONS,
    CACHE_CONFIG,
    SLEEP_STATE,
    FINISHED,
    GENERATION_TOKENS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    *(f"{name}_{part}" for name in (PROMPT_LENGTH, GENERATION_LENGTH, QUEUE_TIME, FIRST_TOKEN_TIME)
      for part in ("sum", "count")),
)  # fmt: skip
WANTED = (RUNNING, *_PER_RANK, PROCESS_START)

# Labels of cache_config_info that somebody sets; what the engine derives from them is left out, so that
# a changed fingerprint means changed settings.
_SETTINGS = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_offloading_size",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "num_gpu_blocks_override",
    "sliding_window",
)


_LARGEST = 1 << 62  # beyond any count of tokens, blocks or bytes


def next_path(pages: Mapping[str, Page]) -> str | None:
    """Ask /metrics first, then what it does not say: the longest request and the version."""
    if METRICS not in pages:
        return METRICS
    if pages[METRICS].body is None:
        return None
    return next((path for path in (MODELS, VERSION) if path not in pages), None)


def recognises(body: str) -> bool:
    """Tell whether a /metrics page is vLLM's."""
    return "vllm:" in body or "\nvllm_" in body


def read(pages: Mapping[str, Page]) -> EngineReading:
    """Read vLLM's pages.

    Raises SourceError: no_engine_series for a page without vLLM's gauges (statistics switched off),
    ambiguous for a page of more than one server, parse_error for a malformed one.
    """
    samples = read_samples(required_body(pages, METRICS), wanted=WANTED, spellings={"vllm_": "vllm:"})
    ranks = sorted({labels.get("engine", "0") for labels, _ in samples.of(RUNNING)})
    if not ranks:
        raise SourceError(Reason.NO_ENGINE_SERIES, f"no {RUNNING}: is --disable-log-stats set?")
    names = {labels["model_name"] for labels, _ in samples.of(RUNNING) if "model_name" in labels}
    if len(names) > 1:
        raise SourceError(Reason.AMBIGUOUS, f"more than one server on the page: {sorted(names)}")
    model = next(iter(names), None)
    config = _cache_config(samples)
    full_length = _full_length(pages.get(MODELS), model)
    settings = {label: config[label] for label in _SETTINGS if label in config}
    if full_length is not None:
        settings["max_model_len"] = str(full_length)
    return EngineReading(
        engine="vllm",
        ranks=tuple(_rank(samples, rank, len(ranks)) for rank in ranks),
        model=model,
        model_path=_model_path(pages.get(MODELS), model),
        version=_version(pages.get(VERSION)),
        full_length_tokens=full_length,
        full_length_reason=pages[MODELS].reason if MODELS in pages else None,
        sleeping=_sleeping(samples),
        cache_dtype=config.get("cache_dtype"),
        share_ratio=None if _sized_otherwise(config) else _number(config.get("gpu_memory_utilization")),
        pin_bytes=_whole(config.get("kv_cache_memory_bytes")),
        start_timestamp_seconds=samples.value(PROCESS_START),
        settings=tuple(sorted(settings.items())),
        missing=_missing(samples, config, full_length),
    )


def _rank(samples: Samples, rank: str, rank_count: int) -> RankReading:
    own = _of_rank(samples, rank)
    config = _cache_config(own)
    concurrency = _number(config.get("kv_cache_max_concurrency"))
    usage = own.value(USAGE)
    if usage is not None and not 0 <= usage <= 1:
        raise SourceError(Reason.PARSE_ERROR, f"{USAGE} is {usage}, outside 0..1")
    return RankReading(
        rank=rank,
        num_blocks=_blocks_of_one_rank(_whole(config.get("num_gpu_blocks")), rank_count, concurrency),
        block_size=_whole(config.get("block_size")),
        max_concurrency=concurrency,
        kv_size_tokens=_whole(config.get("kv_cache_size_tokens")),
        usage_ratio=usage,
        running=own.count(RUNNING),
        waiting=_waiting(own),
        preemptions_total=own.value(PREEMPTIONS),
        finished_total={labels.get("finished_reason", ""): value for labels, value in own.of(FINISHED)},
        finished_prompt_tokens=own.sum_count(PROMPT_LENGTH),
        finished_generation_tokens=own.sum_count(GENERATION_LENGTH),
        generation_tokens_total=own.value(GENERATION_TOKENS),
        prefix_cache_queries_total=own.value(PREFIX_QUERIES),
        prefix_cache_hits_total=own.value(PREFIX_HITS),
        queue_seconds=own.sum_count(QUEUE_TIME),
        time_to_first_token_seconds=own.sum_count(FIRST_TOKEN_TIME),
    )


def _of_rank(samples: Samples, rank: str) -> Samples:
    """Select one rank's samples; a page without `engine` labels (0.8.5) is rank 0's."""
    return Samples(
        {
            name: kept
            for name, series in samples.by_name.items()
            if (kept := tuple((own, value) for own, value in series if own.get("engine", "0") == rank))
        }
    )


def _blocks_of_one_rank(label: int | None, rank_count: int, concurrency: float | None) -> int | None:
    """Divide num_gpu_blocks, the sum over the ranks that every series repeats (core_client.py, 0.20+).

    A sum that does not divide means unequal ranks: then no rank's share is known. So does a mean that is
    no whole multiple of the concurrency, which is one rank's own blocks / whole blocks.
    """
    if label is None or label % rank_count:
        return None
    blocks = label // rank_count
    if rank_count > 1 and concurrency is not None:
        charge = blocks / concurrency
        if not math.isclose(charge, round(min(charge, label)), rel_tol=1e-6):
            return None
    return blocks


def _waiting(own: Samples) -> dict[str, int]:
    by_reason = {
        labels.get("reason", "unspecified"): own.select({"reason": labels["reason"]}).count(WAITING_BY_REASON)
        for labels, _ in own.of(WAITING_BY_REASON)
        if "reason" in labels
    }
    known = {reason: count for reason, count in by_reason.items() if count is not None}
    if known:
        return known
    total = own.count(WAITING)
    return {} if total is None else {"unspecified": total}


def _cache_config(samples: Samples) -> Mapping[str, str]:
    """Return the labels of the first rank's cache_config_info.

    Two of one rank are a dead run's beside the present one's (files left in PROMETHEUS_MULTIPROC_DIR).
    """
    series = samples.of(CACHE_CONFIG)
    ranks = [labels.get("engine", "0") for labels, _ in series]
    if len(set(ranks)) < len(ranks):
        raise SourceError(Reason.AMBIGUOUS, f"{CACHE_CONFIG} is on the page twice for one rank")
    return series[0][0] if series else {}


def _sized_otherwise(config: Mapping[str, str]) -> bool:
    """Tell whether something else than the share decides the pool's size."""
    return any(_number(config.get(name)) for name in ("kv_cache_memory_bytes", "num_gpu_blocks_override"))


def _sleeping(samples: Samples) -> bool | None:
    """Tell whether any rank is not awake; None where the page has no such gauge (before 0.11.2)."""
    awake = [value for labels, value in samples.of(SLEEP_STATE) if labels.get("sleep_state") == "awake"]
    return None if not awake else any(value == 0 for value in awake)


def _full_length(page: Page | None, model: str | None) -> int | None:
    """Return max_model_len of the served model; LoRA cards have none and aliases share it."""
    document = _json_object(page)
    cards = document.get("data")
    if not isinstance(cards, list):
        return None
    lengths: dict[str, int] = {}
    for card in cards:
        length = card.get("max_model_len") if isinstance(card, dict) else None
        if isinstance(length, int) and not isinstance(length, bool) and 0 < length <= _LARGEST:
            lengths[str(card.get("id"))] = length
    if model in lengths:
        return lengths[model]
    return next(iter(lengths.values())) if len(set(lengths.values())) == 1 else None


def _model_path(page: Page | None, model: str | None) -> str | None:
    """Return `root` of the served model's card: what was passed as --model."""
    cards = _json_object(page).get("data")
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, dict) and card.get("id") == model and isinstance(card.get("root"), str):
            return str(card["root"])
    return None


def _version(page: Page | None) -> str | None:
    version = _json_object(page).get("version")
    return version if isinstance(version, str) else None


def _json_object(page: Page | None) -> dict[str, Any]:
    if page is None or page.body is None:
        return {}
    try:
        document = json.loads(page.body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _number(label: str | None) -> float | None:
    """Read a label that holds a number; Python's None prints as the word."""
    try:
        value = float(label) if label is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _whole(label: str | None) -> int | None:
    value = _number(label)
    return int(value) if value is not None and value == int(value) and value <= _LARGEST else None


def _missing(samples: Samples, config: Mapping[str, str], full_length: int | None) -> tuple[str, ...]:
    """Name what a page of 0.24 or newer has and this one has not."""
    names = [name for name in _PER_RANK if not samples.of(name)]
    stated = ("num_gpu_blocks", "block_size", "kv_cache_max_concurrency")
    if config:
        names += [f"{CACHE_CONFIG}{{{label}}}" for label in stated if _number(config.get(label)) is None]
    if full_length is None:
        names.append(f"{MODELS} max_model_len")
    return tuple(names)


ADAPTER = Adapter(name="vllm", first_path=METRICS, recognises=recognises, next_path=next_path, read=read)
