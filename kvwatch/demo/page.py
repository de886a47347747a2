"""A simulated engine's pages, as vLLM 0.32 writes them: same names, labels, types, `_created` series.

They are rendered by the client library that vLLM itself uses. Help texts are not vLLM's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from kvwatch.demo.blocks import blocks_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from kvwatch.demo.day import ServerPlan
    from kvwatch.demo.engine import Engine
    from kvwatch.demo.stats import Histogram

VERSION = "0.32.0"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageSource:
    """One life of a server: what its pages are made from."""

    plan: ServerPlan
    engine: Engine
    started_at: float
    """Unix seconds."""
    model_root: str
    """The model's folder, which vLLM shows as `root`."""

    def metrics(self) -> bytes:
        """Render /metrics."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def models(self, now: float) -> str:
        """Render /v1/models; `now` is in Unix seconds."""
        card = {
            "id": self.plan.model,
            "object": "model",
            "created": int(now),
            "owned_by": "vllm",
            "root": self.model_root,
            "parent": None,
            "max_model_len": self.plan.max_model_len,
        }
        return json.dumps({"object": "list", "data": [card]})

    def version(self) -> str:
        """Render /version."""
        return json.dumps({"version": VERSION})

    def collect(self) -> Iterator[Metric]:
        """Yield every family, in the order of the real page."""
        stats, gauges = self.engine.stats, self.engine.stats.gauges
        yield GaugeMetricFamily("process_start_time_seconds", "When the server started.", self.started_at)
        yield self._gauge("num_requests_running", "Requests in the batch.", gauges.running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", gauges.waiting)
        waiting = {"capacity": gauges.waiting, "deferred": 0}
        yield self._gauges("num_requests_waiting_by_reason", "Why requests wait.", "reason", waiting)
        awake = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._gauges("engine_sleep_state", "Whether the engine sleeps.", "sleep_state", awake)
        yield self._gauge("kv_cache_usage_perc", "Held fraction of the pool.", gauges.usage_ratio)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found.", stats.prefix_hits)
        yield self._counter("num_preemptions", "Preempted requests.", stats.preemptions)
        yield self._counter("prompt_tokens", "Prompt tokens.", stats.prompt_tokens)
        yield self._counter("generation_tokens", "Generated tokens.", stats.generation_tokens)
        yield self._counters("request_success", "Finished requests.", "finished_reason", stats.finished)
        for name, histogram in (
            ("request_prompt_tokens", stats.request_prompt_tokens),
            ("request_generation_tokens", stats.request_generation_tokens),
            ("request_params_max_tokens", stats.request_params_max_tokens),
            ("time_to_first_token_seconds", stats.time_to_first_token),
            ("inter_token_latency_seconds", stats.inter_token_latency),
            ("e2e_request_latency_seconds", stats.e2e_latency),
            ("request_queue_time_seconds", stats.queue_time),
            ("request_inference_time_seconds", stats.inference_time),
            ("request_prefill_time_seconds", stats.prefill_time),
            ("request_decode_time_seconds", stats.decode_time),
            ("request_num_preemptions", stats.request_preemptions),
        ):
            yield self._histogram(name, histogram)
        yield self._cache_config()

    @property
    def _labels(self) -> dict[str, str]:
        return {"engine": "0", "model_name": self.plan.model}

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", help_text)
        family.add_sample(family.name, self._labels, value)
        return family

    def _gauges(self, name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", help_text)
        for text, value in values.items():
            family.add_sample(family.name, {**self._labels, label: text}, value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", help_text)
        self._add_count(family, self._labels, value)
        return family

    def _counters(self, name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", help_text)
        for text, value in values.items():
            self._add_count(family, {**self._labels, label: text}, value)
        return family

    def _add_count(self, family: Metric, labels: dict[str, str], value: float) -> None:
        family.add_sample(f"{family.name}_total", labels, value)
        family.add_sample(f"{family.name}_created", labels, self.started_at)

    def _histogram(self, name: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", "Distribution over requests or tokens.")
        for edge, count in histogram.cumulative():
            text = "+Inf" if edge == float("inf") else str(edge)
            family.add_sample(f"{family.name}_bucket", {**self._labels, "le": text}, count)
        family.add_sample(f"{family.name}_count", self._labels, histogram.count)
        family.add_sample(f"{family.name}_sum", self._labels, histogram.sum)
        family.add_sample(f"{family.name}_created", self._labels, self.started_at)
        return family

    def _cache_config(self) -> Metric:
        """Return the settings as labels, None as the word, like vLLM's config object prints itself."""
        plan, num_blocks = self.plan, self.engine.pool.num_blocks
        # v1/core/kv_cache_utils.py: all blocks over those that one full-length request is charged.
        concurrency = num_blocks / blocks_for(plan.max_model_len, plan.block_size)
        settings: dict[str, object] = {
            "_block_size_resolved": True,
            "block_size": plan.block_size,
            "cache_dtype": "auto",
            "cache_hit_alignment_tokens": None,
            "effective_attention_block_size": plan.block_size,
            "enable_mamba_shared_prefix_checkpoint": False,
            "enable_prefix_caching": bool(plan.shared_prefix_tokens),
            "engine": 0,
            "gpu_memory_utilization": plan.share,
            "hash_block_size": None,
            "is_attention_free": False,
            "kv_cache_dtype_skip_layers": [],
            "kv_cache_layout": None,
            "kv_cache_max_concurrency": concurrency,
            "kv_cache_memory_bytes": plan.pin_bytes,
            "kv_cache_size_tokens": int(concurrency * plan.max_model_len),
            "kv_offloading_backend": "native",
            "kv_offloading_size": None,
            "kv_sharing_fast_prefill": False,
            "mamba_block_size": None,
            "mamba_cache_dtype": "auto",
            "mamba_cache_mode": "none",
            "mamba_page_size_padded": None,
            "mamba_ssm_cache_dtype": "auto",
            "num_cpu_blocks": None,
            "num_gpu_blocks": num_blocks,
            "num_gpu_blocks_override": None,
            "prefix_cache_retention_interval": 0,
            "prefix_caching_hash_algo": "sha256",
            "prefix_match_unit": None,
            "replayssm_buffer_len": 16,
            "skip_page_size_padded": None,
            "sliding_window": None,
            "swa_bounded_replay": True,
            "use_kda_recoverssm": False,
            "use_replayssm": False,
            "user_specified_block_size": False,
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "Settings of the cache.")
        family.add_sample(family.name, {label: str(value) for label, value in settings.items()}, 1)
        return family
