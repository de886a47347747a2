"""vLLM, 0.8.5 to 0.32: /metrics, /v1/models and /version.

Names and meanings were read in v1/metrics/loggers.py, v1/core/block_pool.py and v1/core/kv_cache_utils.py
of those releases, and what differs between them is told by the page (vllm_levels.py). /metrics is asked
without a trailing slash: with one, another application answers and may spell the names differently.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from kvwatch.engines.adapter import Adapter, required_body
from kvwatch.engines.exposition_text import Samples, rank_names, read_samples
from kvwatch.engines.vllm_labels import LARGEST, number, whole
from kvwatch.engines.vllm_levels import (
    CACHE_CONFIG,
    FINISHED,
    FIRST_TOKEN_TIME,
    GENERATION_LENGTH,
    GENERATION_TOKENS,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    PROCESS_START,
    PROMPT_LENGTH,
    QUEUE_TIME,
    RUNNING,
    SLEEP_STATE,
    SWAPPED,
    USAGE,
    USAGE_BEFORE,
    WAITING,
    WAITING_BY_REASON,
    WANTED,
    features,
)
from kvwatch.engines.vllm_sleep import memory_kept, sleeping
from kvwatch.readings import EngineReading, RankReading, Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.engines.vllm_levels import Features
    from kvwatch.readings import Page

_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")
METRICS, MODELS, VERSION = "/metrics", "/v1/models", "/version"

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

_ROUNDING = 1e-6  # blocks, of a ratio of two small whole numbers


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
    shown = _shown(samples)
    ranks = rank_names(labels.get("engine", "0") for labels in shown)
    by_rank = _by_rank(samples, ranks)
    names = {labels["model_name"] for labels in shown if "model_name" in labels}
    if len(names) > 1:
        raise SourceError(Reason.AMBIGUOUS, f"more than one server on the page: {sorted(names)}")
    model = next(iter(names), None)
    config = _cache_config(samples)
    page = features(samples, config)
    full_length = _full_length(pages.get(MODELS), model)
    settings = {label: config[label] for label in _SETTINGS if label in config}
    if full_length is not None:
        settings["max_model_len"] = str(full_length)
    version = _version(pages.get(VERSION))
    return EngineReading(
        engine="vllm",
        ranks=tuple(_rank(by_rank[rank], rank, len(ranks), page) for rank in ranks),
        model=model,
        model_path=_model_path(pages.get(MODELS), model),
        version=version,
        release=_release(version),
        full_length_tokens=full_length,
        full_length_reason=pages[MODELS].reason if MODELS in pages else None,
        sleeping=sleeping(samples),
        memory_kept=memory_kept(samples),
        cost_rules="vllm",
        prefix_caching={"True": True, "False": False}.get(config.get("enable_prefix_caching", "")),
        recurrent_cache_mode=config.get("mamba_cache_mode"),
        cache_dtype=config.get("cache_dtype"),
        share_ratio=None if _sized_otherwise(config) else number(config.get("gpu_memory_utilization")),
        pin_bytes=whole(config.get("kv_cache_memory_bytes")),
        start_timestamp_seconds=samples.value(PROCESS_START),
        settings=tuple(sorted(settings.items())),
        missing=page.missing() + (() if full_length is not None else (f"{MODELS} max_model_len",)),
    )


def _shown(samples: Samples) -> list[Mapping[str, str]]:
    """Return the labels of series that every rank has from the start.

    With several API servers a gauge has no series before the rank's first step, and a counter has
    (prometheus_client, mode mostrecent; seen with 0.32.0): such a rank is there and its requests are unknown.
    """
    if not samples.of(RUNNING) and (samples.of(WAITING) or not samples.of(CACHE_CONFIG)):
        raise SourceError(Reason.NO_ENGINE_SERIES, f"no {RUNNING}: is --disable-log-stats set?")
    shown = [labels for name in (RUNNING, PREEMPTIONS, SLEEP_STATE) for labels, _ in samples.of(name)]
    if not shown:
        raise SourceError(Reason.NO_ENGINE_SERIES, f"no {RUNNING} and no {PREEMPTIONS}")
    return shown


def _rank(own: Samples, rank: str, rank_count: int, page: Features) -> RankReading:
    config = _cache_config(own)
    concurrency = number(config.get("kv_cache_max_concurrency"))
    blocks = _blocks_of_one_rank(whole(config.get("num_gpu_blocks")), rank_count, concurrency)
    usage = _usage(own)
    of_usable = _of_usable(usage, blocks, page)
    return RankReading(
        rank=rank,
        num_blocks=blocks,
        null_blocks=0 if page.old_engine else 1,
        block_size=None if page.block_size_may_be_stale else whole(config.get("block_size")),
        max_concurrency=concurrency,
        kv_size_tokens=whole(config.get("kv_cache_size_tokens")),
        usage_ratio=of_usable,
        usage_of_all_ratio=usage if of_usable is None and page.counts_null_block else None,
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


def _by_rank(samples: Samples, ranks: Sequence[str]) -> dict[str, Samples]:
    """Return each rank's samples; what has no `engine` label is rank 0's, the configuration all ranks'.

    V0 labels nothing with it, and 0.8.5 all but the configuration.
    """
    own: dict[str, dict[str, list[tuple[Mapping[str, str], float]]]] = {rank: {} for rank in ranks}
    for name, series in samples.by_name.items():
        for labels, value in series:
            shared = name == CACHE_CONFIG and "engine" not in labels
            for rank in ranks if shared else (labels.get("engine", "0"),):
                if rank in own:
                    own[rank].setdefault(name, []).append((labels, value))
    return {
        rank: Samples({name: tuple(series) for name, series in by_name.items()})
        for rank, by_name in own.items()
    }


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


def _usage(own: Samples) -> float | None:
    """Return the usage gauge by its present name, else by the earlier one: for some releases both stand."""
    name = USAGE if own.of(USAGE) else USAGE_BEFORE
    usage = own.value(name)
    if usage is not None and not 0 <= usage <= 1:
        raise SourceError(Reason.PARSE_ERROR, f"{name} is {usage}, outside 0..1")
    return usage


def _of_usable(usage: float | None, blocks: int | None, page: Features) -> float | None:
    """Return usage as a fraction of the blocks that requests can have; None where that cannot be told."""
    if usage in (None, 1) or page.old_engine or page.counts_null_block is False:
        return usage
    if page.counts_null_block is None or blocks is None or blocks < 2:  # noqa: PLR2004 - the null block and one
        return None
    ratio = (usage * blocks - 1) / (blocks - 1)
    # Below zero not even the null block was in use: the gauge is not what it is taken for.
    return max(0.0, ratio) if ratio > -_ROUNDING / blocks else None


def _waiting(own: Samples) -> dict[str, int]:
    by_reason = {
        labels.get("reason", "unspecified"): own.select({"reason": labels["reason"]}).count(WAITING_BY_REASON)
        for labels, _ in own.of(WAITING_BY_REASON)
        if "reason" in labels
    }
    known = {reason: count for reason, count in by_reason.items() if count is not None}
    if known:
        return known
    total, swapped = own.count(WAITING), own.count(SWAPPED)
    if total is None:
        return {}
    # V0 only: preempted for lack of room, and none of those that wait.
    return {"unspecified": total} | ({} if swapped is None else {"capacity": swapped})


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
    return any(number(config.get(name)) for name in ("kv_cache_memory_bytes", "num_gpu_blocks_override"))


def _full_length(page: Page | None, model: str | None) -> int | None:
    """Return max_model_len of the served model; LoRA cards have none and aliases share it."""
    document = _json_object(page)
    cards = document.get("data")
    if not isinstance(cards, list):
        return None
    lengths: dict[str, int] = {}
    for card in cards:
        length = card.get("max_model_len") if isinstance(card, dict) else None
        if isinstance(length, int) and not isinstance(length, bool) and 0 < length <= LARGEST:
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


def _release(version: str | None) -> tuple[int, ...] | None:
    """Return (0, 32, 0) of "0.32.0+cpu" or "0.32.0rc1"; None of a version without three numbers."""
    found = _RELEASE.match(version or "")
    return None if found is None else tuple(int(number) for number in found.groups())


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


ADAPTER = Adapter(name="vllm", first_path=METRICS, recognises=recognises, next_path=next_path, read=read)
