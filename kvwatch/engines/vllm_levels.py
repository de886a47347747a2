"""What vLLM's /metrics page has, told by the page itself: names, the levels they came with, what is missing.

A level is known by any series or label that came with it, never by a version: development builds and
forks call themselves what they like. The releases beside a level are those whose v1/metrics/loggers.py,
config/cache.py and v1/core/block_pool.py were read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.engines.vllm_labels import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.engines.exposition_text import Samples

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
SWAPPED = "vllm:num_requests_swapped"
USAGE = "vllm:kv_cache_usage_perc"
USAGE_BEFORE = "vllm:gpu_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"
CACHE_CONFIG = "vllm:cache_config_info"
SLEEP_STATE = "vllm:engine_sleep_state"
FINISHED = "vllm:request_success_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
# Their forerunners, gpu_prefix_cache_*, counted blocks in 0.8.5 and tokens by 0.9.2: they are not read.
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
PROMPT_LENGTH = "vllm:request_prompt_tokens"
GENERATION_LENGTH = "vllm:request_generation_tokens"
QUEUE_TIME = "vllm:request_queue_time_seconds"
FIRST_TOKEN_TIME = "vllm:time_to_first_token_seconds"  # noqa: S105 - a token of text
PROCESS_START = "process_start_time_seconds"

# Read only for what their being there says.
_INTER_TOKEN_TIME = "vllm:inter_token_latency_seconds_count"  # noqa: S105 - the same
_EXTERNAL_QUERIES = "vllm:external_prefix_cache_queries_total"
_PREEMPTIONS_A_REQUEST = "vllm:request_num_preemptions_count"
_REJECTIONS = "vllm:admission_rejections_total"

_LENGTHS_AND_TIMES = tuple(
    f"{name}_{part}"
    for name in (PROMPT_LENGTH, GENERATION_LENGTH, QUEUE_TIME, FIRST_TOKEN_TIME)
    for part in ("sum", "count")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A step of the page; a name in braces is a label of cache_config_info.

    Attributes:
        since: the first release that was read with it, for the reader only.
        marks: any one of them on a page tells that it is of this level or a later one.
        brings: what is read and has been on every page since; of a label, a number.
        retires: what an earlier level brought and a page need not have any more.

    """

    since: str
    marks: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    retires: tuple[str, ...] = ()


BASE = Level(
    since="0.8.5",
    brings=(
        RUNNING,
        WAITING,
        USAGE_BEFORE,
        PREEMPTIONS,
        CACHE_CONFIG,
        "{block_size}",
        FINISHED,
        GENERATION_TOKENS,
        *_LENGTHS_AND_TIMES,
    ),
)
LEVELS = (
    BASE,
    # Before, nothing told the number to the process that shows it.
    Level(since="0.9.1", marks=("{engine}",), brings=("{num_gpu_blocks}",)),
    Level(
        since="0.9.2",
        marks=(USAGE, PREFIX_QUERIES, "{cpu_kvcache_space_bytes}"),
        brings=(USAGE, PREFIX_QUERIES, PREFIX_HITS),
        retires=(USAGE_BEFORE,),
    ),
    Level(since="0.10.2", marks=("{kv_cache_memory_bytes}", _INTER_TOKEN_TIME)),
    Level(since="0.11.2", marks=(SLEEP_STATE, _EXTERNAL_QUERIES), brings=(SLEEP_STATE,)),
    Level(since="0.20.0", marks=(WAITING_BY_REASON,), brings=(WAITING_BY_REASON,)),
    Level(
        since="0.24.0",
        marks=("{kv_cache_max_concurrency}", "{kv_cache_size_tokens}"),
        brings=("{kv_cache_max_concurrency}", "{kv_cache_size_tokens}"),
    ),
    Level(since="0.30.0", marks=(_PREEMPTIONS_A_REQUEST, _REJECTIONS)),
)
SLEEPS, BY_REASON, STATES_CAPACITY = LEVELS[4], LEVELS[5], LEVELS[6]

WANTED = frozenset(
    name for level in LEVELS for name in (*level.marks, *level.brings) if not name.startswith("{")
) | {SWAPPED, PROCESS_START}

# The old engine (up to 0.11.0) has none of these at any release.
_NEVER_OF_V0 = frozenset({USAGE, PREFIX_QUERIES, SLEEP_STATE, _EXTERNAL_QUERIES, WAITING_BY_REASON})


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What one page has: series, and labels of cache_config_info in braces."""

    names: frozenset[str]
    numbers: frozenset[str]
    """The labels among them that hold a number."""
    labels_ranks: bool
    attention_free: bool

    @property
    def old_engine(self) -> bool:
        """Whether the page is of vLLM's first engine, V0, whose pool has no null block.

        It never labels its series with `engine`, and states its blocks where V1 of the same age does not.
        """
        return (
            not self.labels_ranks and not self.names & _NEVER_OF_V0 and {"{num_gpu_blocks}"} <= self.numbers
        )

    def reach(self, level: Level) -> bool:
        """Tell whether the page is of this level or a later one."""
        later = LEVELS[LEVELS.index(level) :]
        return any(mark in self.names for step in later for mark in step.marks)

    @property
    def counts_null_block(self) -> bool | None:
        """Whether usage counts the null block as used, of all blocks, as up to 0.10.1; None: cannot tell.

        The denominator (v1/core/block_pool.py, get_usage) leaves no trace of its own. Two things came
        with the same release, 0.10.2, in other files, and both must say the same.
        """
        if self.reach(SLEEPS):
            return False
        label, series = "{kv_cache_memory_bytes}" in self.names, _INTER_TOKEN_TIME in self.names
        return None if label is not series or CACHE_CONFIG not in self.names else not label

    @property
    def block_size_may_be_stale(self) -> bool:
        """Whether the engine may have enlarged its blocks without telling the page (0.20.0 to 0.22).

        It does so for models with recurrent layers, whose configuration alone sets mamba_block_size.
        """
        return (
            self.reach(BY_REASON) and not self.reach(STATES_CAPACITY) and "{mamba_block_size}" in self.numbers
        )

    def missing(self) -> tuple[str, ...]:
        """Name what a page of this level should have and this one has not."""
        expected: list[str] = []
        for level in (BASE,) if self.old_engine else LEVELS:
            if level is BASE or self.reach(level):
                expected = [name for name in expected if name not in level.retires] + list(level.brings)
        return tuple(
            f"{CACHE_CONFIG}{name}" if name.startswith("{") else name
            for name in expected
            if self._lacks(name)
        )

    def _lacks(self, name: str) -> bool:
        if not name.startswith("{"):
            return name not in self.names
        if CACHE_CONFIG not in self.names:
            return False  # named itself
        stated_only_with_attention = name in STATES_CAPACITY.brings and self.attention_free
        return name not in self.numbers and not stated_only_with_attention


def features(samples: Samples, config: Mapping[str, str]) -> Features:
    """Return what a page has; `config` is the labels of its cache_config_info."""
    return Features(
        names=frozenset(samples.by_name) | {f"{{{label}}}" for label in config},
        numbers=frozenset(f"{{{label}}}" for label, text in config.items() if number(text) is not None),
        labels_ranks=any(
            "engine" in labels for name in (RUNNING, PREEMPTIONS) for labels, _ in samples.of(name)
        ),
        attention_free=config.get("is_attention_free") == "True",
    )
