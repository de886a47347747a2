"""Which series belong to one server: names may clash where several daemons watch, and daemons move. Pure.

Prometheus adds labels of its own (job, instance, cluster, pod ...). Series of one server name that carry
different ones are of several servers where they overlap in time, and of one server whose daemon moved
where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvwatch.triage.prometheus_series import Series

_REPLICA_LABELS = frozenset(
    {"prometheus_replica", "replica", "__replica__", "receive_replica", "prometheus", "tenant_id"}
)
"""What sets apart two copies of one series: the external labels of pairs of Prometheus servers."""

OWN_LABELS: Mapping[str, frozenset[str]] = {
    f"{metric.name}{suffix}": frozenset(metric.labels)
    for metric in metrics.CATALOGUE
    for suffix in (("_sum", "_count") if metric.kind == "summary" else ("",))
}
"""Series name -> the labels that kvwatch itself gives it."""

Extra = tuple[tuple[str, str], ...]
"""The labels that somebody else added, sorted."""


@dataclass(slots=True, kw_only=True)
class _Group:
    """Series that carry the same added labels, and when they were seen."""

    extra: Extra
    series: list[Series] = field(default_factory=list)
    first: float = float("inf")
    last: float = float("-inf")
    count: int = 0

    def add(self, series: Series) -> None:
        self.series.append(series)
        self.first = min(self.first, series.samples[0][0])
        self.last = max(self.last, series.samples[-1][0])
        self.count += len(series.samples)

    def labels_shared_with(self, other: _Group) -> int:
        return len(set(self.extra) & set(other.extra))


def extra_labels(series: Series) -> Extra:
    """Return the labels of a series that kvwatch did not give it."""
    own = OWN_LABELS.get(series.name, frozenset())
    return tuple(sorted((name, value) for name, value in series.labels.items() if name not in own))


def series_by_server(series: Iterable[Series], *, slack_seconds: float) -> dict[str, list[Series]]:
    """Return server -> its series; a name that several servers share is told apart as name@instance.

    A daemon's series that end at most `slack_seconds` after its successor's begin do not overlap.
    """
    by_name: dict[str, dict[Extra, _Group]] = {}
    for one in series:
        name = one.labels.get("server")
        if name and one.samples and "server" in OWN_LABELS.get(one.name, ()):
            extra = extra_labels(one)
            groups = by_name.setdefault(name, {})
            groups.setdefault(extra, _Group(extra=extra)).add(one)
    result: dict[str, list[Series]] = {}
    for name, groups in by_name.items():
        chains = _chains(_without_copies(list(groups.values())), slack_seconds)
        for shown, chain in zip(_names(name, chains), chains, strict=True):
            result[shown] = [one for group in chain for one in group.series]
    return result


def _without_copies(groups: list[_Group]) -> list[_Group]:
    """Leave out the lesser of two copies that a pair of Prometheus servers made of one target."""
    kept: dict[Extra, _Group] = {}
    for group in groups:
        key = tuple(pair for pair in group.extra if pair[0] not in _REPLICA_LABELS)
        if key not in kept or group.count > kept[key].count:
            kept[key] = group
    return list(kept.values())


def _chains(groups: list[_Group], slack_seconds: float) -> list[list[_Group]]:
    """Put groups that follow each other in time into one chain: the same server, watched by a moved daemon.

    Where two chains could be continued and neither is more alike, the group begins one of its own.
    """
    chains: list[list[_Group]] = []
    for group in sorted(groups, key=lambda group: (group.first, group.extra)):
        free = [chain for chain in chains if chain[-1].last <= group.first + slack_seconds]
        scores = [chain[-1].labels_shared_with(group) for chain in free]
        best = [chain for chain, score in zip(free, scores, strict=True) if score == max(scores)]
        if len(best) == 1:
            best[0].append(group)
        else:
            chains.append([group])
    return chains


def _names(name: str, chains: Sequence[Sequence[_Group]]) -> list[str]:
    if len(chains) == 1:
        return [name]
    own = [dict(chain[-1].extra) for chain in chains]
    differing = sorted(
        {label for labels in own for label in labels if len({other.get(label) for other in own}) > 1}
    )
    for label in ("instance", *differing):
        values = [labels.get(label, "") for labels in own]
        if len(set(values)) == len(values):
            return [f"{name}@{value}" for value in values]
    return [f"{name}@{','.join(labels.get(label, '') for label in differing)}" for labels in own]
