"""SGLang, started with --enable-metrics: /metrics, and /v1/models where that does not state the length.

Names and meanings were read in python/sglang/srt/observability/metrics_collector.py (before:
srt/metrics/collector.py) and the scheduler's metrics beside it, 2025 and 2026. /get_server_info and
/server_info are never asked: they hold keys, and make every scheduler answer. SGLang has a pool of tokens
in pages and no null page; a retraction is what vLLM calls a preemption.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.engines.adapter import Adapter, required_body
from kvwatch.engines.exposition_text import Samples, rank_names, read_samples
from kvwatch.readings import EngineReading, RankReading, Reason, SourceError, SumCount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.readings import Page

METRICS, MODELS = "/metrics", "/v1/models"

RUNNING = "sglang:num_running_reqs"
QUEUED = "sglang:num_queue_reqs"
GRAMMAR_QUEUED = "sglang:num_grammar_queue_reqs"
USAGE = "sglang:token_usage"
USED = "sglang:num_used_tokens"
TOTAL = "sglang:max_total_num_tokens"
WINDOW_TOTAL = "sglang:max_total_num_tokens_swa"
PAGE_SIZE = "sglang:page_size"
PAGES = "sglang:num_pages"
CONTEXT = "sglang:context_len"
AVAILABLE = "sglang:kv_available_tokens"
EVICTABLE = "sglang:kv_evictable_tokens"
WINDOW_AVAILABLE = "sglang:swa_available_tokens"
STATE_AVAILABLE = "sglang:mamba_available_tokens"
# Not num_retracted_reqs, a gauge of the last batch.
RETRACTIONS = "sglang:num_retracted_requests_total"
QUEUE_TIME = "sglang:queue_time_seconds"
LIVE_TOKENS = "sglang:realtime_tokens_total"
PREFILL_TOKENS = "sglang:prefill_effective_tokens_total"
FINISHED = "sglang:num_requests_total"
PROMPT_LENGTH = "sglang:prompt_tokens_histogram"
GENERATION_LENGTH = "sglang:generation_tokens_histogram"
FIRST_TOKEN_TIME = "sglang:time_to_first_token_seconds"  # noqa: S105 - a token of text

# What came together: a page with one of a group should have all of it.
GAUGES = (RUNNING, QUEUED, USAGE, USED)
CONSTANTS = (TOTAL, PAGE_SIZE, PAGES, CONTEXT)
POOL_COUNTS = (AVAILABLE, EVICTABLE, WINDOW_AVAILABLE, STATE_AVAILABLE)
# Counters and histograms have no series before their first event, so that none is missed.
_SUMMARIES = (QUEUE_TIME, PROMPT_LENGTH, GENERATION_LENGTH, FIRST_TOKEN_TIME)
WANTED = (
    *GAUGES, *CONSTANTS, *POOL_COUNTS, GRAMMAR_QUEUED, WINDOW_TOTAL, RETRACTIONS, LIVE_TOKENS, PREFILL_TOKENS,
    FINISHED, *(f"{name}_{part}" for name in _SUMMARIES for part in ("sum", "count")),
)  # fmt: skip

_LARGEST = 1 << 62


def recognises(body: str) -> bool:
    """Tell whether a /metrics page is SGLang's."""
    return "sglang:" in body or "\nsglang_" in body


def next_path(pages: Mapping[str, Page]) -> str | None:
    """Ask /metrics, then /v1/models only for the length that older pages do not state."""
    if METRICS not in pages:
        return METRICS
    body = pages[METRICS].body
    return None if body is None or MODELS in pages or CONTEXT.partition(":")[2] in body else MODELS


def read(pages: Mapping[str, Page]) -> EngineReading:
    """Read SGLang's pages.

    Raises SourceError: no_engine_series for a page without its gauges, ambiguous for a page of more than
    one server or of schedulers that nothing tells apart, parse_error for a malformed one.
    """
    samples = read_samples(required_body(pages, METRICS), wanted=WANTED, spellings={"sglang_": "sglang:"})
    marks = [labels for name in (RUNNING, USAGE, TOTAL) for labels, _ in samples.of(name)]
    if not marks:
        raise SourceError(Reason.NO_ENGINE_SERIES, f"no {RUNNING} on {METRICS}")
    names = {labels["model_name"] for labels in marks if "model_name" in labels}
    if len(names) > 1:
        raise SourceError(Reason.AMBIGUOUS, f"more than one server on the page: {sorted(names)}")
    ranks = rank_names(labels.get("dp_rank", "0") for labels in marks)
    schedulers = {rank: _scheduler(samples, rank) for rank in ranks}
    length = _full_length(schedulers, pages.get(MODELS))
    settings = {"context_len": length, "page_size": next(iter(schedulers.values())).count(PAGE_SIZE)}
    model = next(iter(names), None)
    return EngineReading(
        engine="sglang",
        ranks=tuple(
            _rank(rank, own, samples, length, alone=len(ranks) == 1) for rank, own in schedulers.items()
        ),
        model=model,
        full_length_tokens=length,
        full_length_reason=pages[MODELS].reason if MODELS in pages else None,
        settings=tuple(sorted((key, str(value)) for key, value in settings.items() if value is not None)),
        missing=tuple(
            name
            for group in (GAUGES, CONSTANTS, POOL_COUNTS)
            if group is GAUGES or any(samples.of(name) for name in group)
            for name in group
            if not samples.of(name)
        ),
    )


def _scheduler(samples: Samples, rank: str) -> Samples:
    """Select the series of the one scheduler that speaks for a data-parallel rank.

    Tensor, pipeline and context ranks may repeat them, each with the same requests (issue 31896). Older
    pages name data-parallel ranks by tp_rank alone, and there nothing tells those from repetitions.
    """
    own = {
        name: tuple((labels, value) for labels, value in series if labels.get("dp_rank", "0") == rank)
        for name, series in samples.by_name.items()
    }
    places = sorted({_place(labels) for name in (*GAUGES, TOTAL) for labels, _ in own.get(name, ())})
    labelled = any("dp_rank" in labels for labels, _ in (*samples.of(RUNNING), *samples.of(TOTAL)))
    if len({place[1] for place in places}) > 1 and not labelled and not samples.of(PAGE_SIZE):
        raise SourceError(Reason.AMBIGUOUS, "series of several tp_rank and no dp_rank")
    kept = {
        # With priorities the total stands beside its parts, under an empty one.
        name: tuple(
            (labels, value)
            for labels, value in series
            if _place(labels) == places[0] and not labels.get("priority")
        )
        for name, series in own.items()
    }
    return Samples({name: series for name, series in kept.items() if series})


def _place(labels: Mapping[str, str]) -> tuple[tuple[int, str], ...]:
    """Return what orders the schedulers of one rank: pipeline, tensor, expert rank; 10 comes after 9."""
    texts = (labels.get(name, "") for name in ("pp_rank", "tp_rank", "moe_ep_rank"))
    return tuple((len(text), text) for text in texts)


def _rank(rank: str, own: Samples, page: Samples, length: int | None, *, alone: bool) -> RankReading:
    pool = _pool(own)
    usage = pool.usage if pool else own.value(USAGE)
    if usage is not None and not 0 <= usage <= 1:
        raise SourceError(Reason.PARSE_ERROR, f"{USAGE} is {usage}, outside 0..1")
    page_size = own.count(PAGE_SIZE) or None
    prefill = _by(own, PREFILL_TOKENS, "mode")
    return RankReading(
        rank=rank,
        num_blocks=pool.pages if pool else None,
        null_blocks=0,
        block_size=page_size,
        # One pool whose every layer keeps every token: a request takes whole pages of it, nothing else.
        start_blocks=-(-length // page_size) if pool and page_size and length else None,
        usage_ratio=usage,
        running=own.count(RUNNING),
        waiting=_waiting(own),
        preemptions_total=own.value(RETRACTIONS),
        # generation_tokens_total moves only when a request finishes.
        generation_tokens_total=_by(own, LIVE_TOKENS, "mode").get("decode"),
        prefix_cache_queries_total=sum(prefill.values()) if "input" in prefill else None,
        prefix_cache_hits_total=prefill.get("device_hit"),
        queue_seconds=own.sum_count(QUEUE_TIME),
        # The tokenizer's, of all ranks together.
        finished_total=_finished(page) if alone else {},
        finished_prompt_tokens=_sum_count(page, PROMPT_LENGTH) if alone else None,
        finished_generation_tokens=_sum_count(page, GENERATION_LENGTH) if alone else None,
        time_to_first_token_seconds=_sum_count(page, FIRST_TOKEN_TIME) if alone else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """The one pool of a model whose every layer keeps every token: only that can be counted in pages."""

    pages: int
    usage: float


def _pool(own: Samples) -> _Pool | None:
    """Return the pool; None where the page does not show that it is the only one, or contradicts itself.

    max_total_num_tokens of a model with windows or recurrent layers is that of its full attention, beside
    which another pool may be the tighter one. What idle cached prefixes hold is evictable, and free.
    """
    constants = [own.count(name) for name in (TOTAL, PAGE_SIZE, PAGES)]
    counts = [own.count(name) for name in POOL_COUNTS]
    if None in constants or None in counts or own.of(WINDOW_TOTAL):
        return None
    total, page_size, pages = (value or 0 for value in constants)
    available, evictable, window, state = (value or 0 for value in counts)
    free = available + evictable
    if window or state or not page_size or not 0 < total <= _LARGEST or free > total:
        return None
    return _Pool(pages=pages, usage=(total - free) / total) if pages == total // page_size else None


def _waiting(own: Samples) -> dict[str, int]:
    """Return the queues; unknown where prefill and decode are apart: other queues hold requests there too."""
    kinds = {labels.get("engine_type", "unified") for labels, _ in own.of(QUEUED)}
    queued, grammar = own.count(QUEUED), own.count(GRAMMAR_QUEUED)
    if queued is None or kinds != {"unified"}:
        return {}
    return {"capacity": queued} | ({} if grammar is None else {"deferred": grammar})


def _finished(page: Samples) -> dict[str, float]:
    """Return the finished requests; SGLang does not count them by reason."""
    series = page.of(FINISHED)
    return {"unspecified": sum(value for _, value in series)} if series else {}


def _by(own: Samples, name: str, label: str) -> dict[str, float]:
    return {labels.get(label, ""): value for labels, value in own.of(name)}


def _sum_count(page: Samples, name: str) -> SumCount | None:
    """Add up a histogram's parts, such as those of streamed and other requests."""
    total, count = page.of(f"{name}_sum"), page.of(f"{name}_count")
    if not total or len(total) != len(count):
        return None
    return SumCount(sum=sum(value for _, value in total), count=sum(value for _, value in count))


def _full_length(schedulers: Mapping[str, Samples], page: Page | None) -> int | None:
    """Return the longest request: the context, or the pool where that is smaller (max_req_len)."""
    contexts = {own.count(CONTEXT) or _card_length(page) for own in schedulers.values()}
    pools = [total for own in schedulers.values() if (total := own.count(TOTAL))]
    context = contexts.pop() if len(contexts) == 1 else None
    return None if context is None else min(context, *pools) if pools else context


def _card_length(page: Page | None) -> int | None:
    try:
        cards = json.loads(page.body or "")["data"] if page is not None else []
        lengths = {card["max_model_len"] for card in cards if card.get("max_model_len") is not None}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    length = lengths.pop() if len(lengths) == 1 else None
    known = isinstance(length, int) and not isinstance(length, bool) and 0 < length <= _LARGEST
    return length if known else None


ADAPTER = Adapter(name="sglang", first_path=METRICS, recognises=recognises, next_path=next_path, read=read)
