"""The series of one snapshot: which value goes into which family of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

from kvwatch import metrics
from kvwatch.readings import Reason, SumCount, short_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvwatch.finding import RuleId, Severity
    from kvwatch.fit import Fit
    from kvwatch.metrics import Metric
    from kvwatch.snapshot import DeviceState, RankState, ServerState, Snapshot, SourceState

Family = GaugeMetricFamily | CounterMetricFamily | SummaryMetricFamily


class Families:
    """The families of one exposition, in the catalogue's order."""

    def __init__(self, typical_window: str) -> None:
        self._families: dict[str, Family] = {}
        self._seen: set[tuple[str, tuple[str, ...]]] = set()
        for metric in metrics.CATALOGUE:
            text = metric.help.replace("{typical_window}", typical_window)
            self._families[metric.name] = empty_family(metric, text)

    def add(self, metric: Metric, labels: Sequence[str | None], value: float | SumCount | None) -> None:
        """Add one series; an unknown value adds none, and an unknown label is empty.

        Raises ValueError for a wrong number of labels and for a series that is there already:
        the library would take both without a word.
        """
        if value is None:
            return
        texts = tuple(label or "" for label in labels)
        if len(texts) != len(metric.labels) or (metric.name, texts) in self._seen:
            msg = f"{metric.name}{texts}: labels {metric.labels}, or the series is there twice"
            raise ValueError(msg)
        self._seen.add((metric.name, texts))
        family = self._families[metric.name]
        if isinstance(family, SummaryMetricFamily) and isinstance(value, SumCount):
            family.add_metric(texts, count_value=int(value.count), sum_value=value.sum)
        elif isinstance(family, GaugeMetricFamily | CounterMetricFamily) and not isinstance(value, SumCount):
            family.add_metric(texts, value)
        else:
            msg = f"{metric.name}: {value!r} is no value of a {metric.kind}"
            raise TypeError(msg)

    def used(self) -> Iterator[Family]:
        """Yield the families that have series."""
        return (family for family in self._families.values() if family.samples)


def empty_family(metric: Metric, text: str) -> Family:
    """Return a family without series."""
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, text, labels=metric.labels)
    if metric.kind == "summary":
        return SummaryMetricFamily(metric.name, text, labels=metric.labels)
    return GaugeMetricFamily(metric.name, text, labels=metric.labels)


def add_source(families: Families, source: SourceState) -> None:
    """Add the health of a source."""
    labels = (source.source, source.target)
    families.add(metrics.SOURCE_UP, labels, float(source.reason is None))
    if source.reason is not None:
        families.add(metrics.SOURCE_REASON, (*labels, source.reason), 1)
    families.add(metrics.SOURCE_LAST_SUCCESS, labels, source.last_success_at)
    families.add(metrics.SOURCE_DURATION, labels, source.duration_seconds)
    for reason, count in sorted(source.failures.items()):
        families.add(metrics.SOURCE_FAILURES, (*labels, Reason(reason)), count)


def add_data(families: Families, snapshot: Snapshot) -> None:
    """Add what was measured: devices, processes, servers."""
    for device in snapshot.devices:
        _add_device(families, device)
        families.add(metrics.DEVICE_SHARE_LIMIT, (device.reading.uuid,), snapshot.share_limit_ratio)
    for change in snapshot.capacity_changes:
        families.add(metrics.CAPACITY_CHANGE_RATIO, (change.server, change.baseline), change.ratio)
        for factor, value in change.factors.items():
            families.add(metrics.CAPACITY_CHANGE_LOG, (change.server, change.baseline, factor), value)
    if snapshot.history is not None:
        families.add(metrics.HISTORY_SIZE, (), snapshot.history.size_bytes)
        families.add(metrics.HISTORY_OLDEST, (), snapshot.history.oldest_at)
    for process in snapshot.processes:
        pid = str(process.pid)
        place = (short_id(process.container or ""), process.unit)
        labels = (process.device, pid, process.name, process.server, *place, process.match)
        families.add(metrics.PROCESS_INFO, labels, 1)
        families.add(metrics.PROCESS_MEMORY, (process.device, pid), process.used_bytes)
    for pod in snapshot.pods:
        families.add(metrics.POD_INFO, (short_id(pod.container), pod.pod, pod.namespace, pod.name), 1)
    for server in snapshot.servers:
        _add_server(families, server, snapshot)
    last = {(window.server, window.device): window for window in snapshot.start_windows}
    for (name, uuid), window in last.items():
        families.add(metrics.SERVER_START_GROWTH, (name, uuid), window.grew_bytes)
    for finding in snapshot.findings:
        add_finding(families, finding.rule, finding.severity, finding.server, finding.device)


def add_finding(
    families: Families, rule: RuleId, severity: Severity, server: str = "", device: str = ""
) -> None:
    """Add one finding."""
    families.add(metrics.FINDING, (rule, severity, server, device), 1)


def _add_device(families: Families, device: DeviceState) -> None:
    reading, uuid = device.reading, (device.reading.uuid,)
    identity = (reading.uuid, str(reading.index), reading.name, reading.driver, reading.parent_uuid)
    families.add(metrics.DEVICE_INFO, identity, 1)
    families.add(metrics.DEVICE_TOTAL, uuid, reading.total_bytes)
    families.add(metrics.DEVICE_USED, uuid, reading.used_bytes)
    families.add(metrics.DEVICE_FREE, uuid, reading.free_bytes)
    families.add(metrics.DEVICE_RESERVED, uuid, reading.reserved_bytes)
    families.add(metrics.DEVICE_SHARE_SUM, uuid, device.share_sum_ratio)
    families.add(metrics.DEVICE_SHARE_ASLEEP, uuid, device.share_asleep_ratio)
    for part in device.ledger:
        families.add(metrics.DEVICE_LEDGER, (reading.uuid, part.server, part.component), part.bytes)


def _add_server(families: Families, server: ServerState, snapshot: Snapshot) -> None:
    target, reading, name = server.target, server.reading, server.target.name
    for device, used in server.device_bytes.items():
        families.add(metrics.SERVER_DEVICE_MEMORY, (name, device), used)
    families.add(metrics.SERVER_START, (name,), server.started_at)
    families.add(metrics.SERVER_CONFIG_CHANGED, (name,), server.config_changed_at)
    if reading is None:
        return
    families.add(
        metrics.SERVER_INFO,
        (name, reading.engine, reading.model, reading.version, target.url, server.fingerprint),
        1,
    )
    block_size = reading.ranks[0].block_size
    families.add(
        metrics.SERVER_CONFIG_INFO,
        (
            name,
            server.cache_dtype or reading.cache_dtype,
            _text(target.tensor_parallel),
            _text(target.pipeline_parallel),
            server.model_hash,
            _text(block_size),
            _text(target.max_num_batched_tokens),
        ),
        1,
    )
    families.add(metrics.SERVER_PIN, (name,), server.pin_bytes)
    families.add(metrics.SERVER_SHARE, (name,), server.share_ratio)
    families.add(
        metrics.SERVER_SLEEPING, (name,), None if reading.sleeping is None else float(reading.sleeping)
    )
    families.add(metrics.FULL_LENGTH, (name,), server.full_length_tokens)
    families.add(metrics.KV_MODEL_ERROR, (name,), server.model_error_ratio)
    families.add(metrics.MINIMUM_KV_BYTES, (name,), server.minimum_kv_bytes)
    for missing in reading.missing:
        families.add(metrics.ENGINE_METRIC_MISSING, (name, missing), 1)
    for index, group in enumerate(server.groups):
        sizes = (str(group.layers), str(group.block_size), str(group.page_bytes), _text(group.window))
        families.add(metrics.KV_GROUP_INFO, (name, str(index), group.kind, *sizes), 1)
    for basis in sorted({rank.basis for rank in server.ranks if rank.basis}):
        families.add(metrics.FIT_BASIS, (name, basis), 1)
    for rank in server.ranks:
        _add_rank(families, name, rank)
        suspected = snapshot.recompute_suspected.get((name, rank.reading.rank))
        families.add(metrics.RECOMPUTE_SUSPECTED, (name, rank.reading.rank), suspected)


def _add_rank(families: Families, server: str, rank: RankState) -> None:
    reading = rank.reading
    labels = (server, reading.rank)
    for metric, value in (
        (metrics.KV_USAGE, rank.usage_ratio),
        (metrics.KV_CAPACITY_BLOCKS, rank.usable_blocks),
        (metrics.KV_FREE_BLOCKS, rank.free_blocks),
        (metrics.KV_CAPACITY_TOKENS, rank.capacity_tokens),
        (metrics.KV_FREE_TOKENS, rank.free_tokens),
        (metrics.KV_CAPACITY_BYTES, rank.capacity_bytes),
        (metrics.KV_BYTES_PER_TOKEN, rank.bytes_per_token),
        (metrics.ENGINE_KV_TOKENS, reading.kv_size_tokens),
        (metrics.ENGINE_MAX_CONCURRENCY, reading.max_concurrency),
        (metrics.REQUESTS_RUNNING, reading.running),
        (metrics.REQUEST_LIMIT, rank.load.request_limit),
        (metrics.PREEMPTIONS, reading.preemptions_total),
        (metrics.FINISHED_PROMPT_TOKENS, _sum(reading.finished_prompt_tokens)),
        (metrics.FINISHED_GENERATION_TOKENS, _sum(reading.finished_generation_tokens)),
        (metrics.GENERATION_TOKENS, reading.generation_tokens_total),
        (metrics.PREFIX_QUERIES, reading.prefix_cache_queries_total),
        (metrics.PREFIX_HITS, reading.prefix_cache_hits_total),
        (metrics.QUEUE_SECONDS, reading.queue_seconds),
        (metrics.FIRST_TOKEN_SECONDS, reading.time_to_first_token_seconds),
        (metrics.FIT_CEILING, rank.ceiling),
        (metrics.LAST_BLOCK_WASTE, rank.last_block_waste_tokens),
        (metrics.WORST_CASE_DEMAND, rank.worst_case_ratio),
    ):
        families.add(metric, labels, value)
    for reason, count in sorted(reading.waiting.items()):
        families.add(metrics.REQUESTS_WAITING, (*labels, reason), count)
    for reason, total in sorted(reading.finished_total.items()):
        families.add(metrics.FINISHED_REQUESTS, (*labels, reason), total)
    if rank.full is not None:
        _add_fit(families, labels, rank.full)
    if rank.typical is not None:
        length = rank.typical.length
        families.add(metrics.TYPICAL_TOKENS, (*labels, "prompt"), length.prompt_tokens)
        families.add(metrics.TYPICAL_TOKENS, (*labels, "generation"), length.generation_tokens)
        families.add(metrics.TYPICAL_CAPACITY, labels, rank.typical.capacity)
        if rank.typical.fit is not None:
            families.add(metrics.TYPICAL_FIT_NOW, labels, rank.typical.fit.now)
            families.add(metrics.TYPICAL_FIT_EMPTY, labels, rank.typical.fit.empty)
            families.add(metrics.TYPICAL_RESIDENT_LIMIT, labels, rank.typical.fit.resident_limit)


def _add_fit(families: Families, labels: tuple[str, str], fit: Fit) -> None:
    families.add(metrics.FIT_NOW, labels, fit.now)
    families.add(metrics.FIT_GUARANTEED, labels, fit.guaranteed)
    families.add(metrics.FIT_EMPTY, labels, fit.empty)
    families.add(metrics.FIT_RESIDENT_LIMIT, labels, fit.resident_limit)
    families.add(metrics.FIT_HEADROOM, labels, fit.headroom)
    if fit.bound_by is not None:
        families.add(metrics.FIT_BOUND_BY, (*labels, fit.bound_by), 1)


def _sum(summary: SumCount | None) -> float | None:
    return None if summary is None else summary.sum


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
