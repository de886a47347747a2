"""The exposition: one snapshot as Prometheus families, rendered once and kept for every scraper."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_CONTENT_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from kvwatch import __version__, metrics
from kvwatch.families import Families, add_data, add_finding, add_source, empty_family
from kvwatch.finding import RuleId, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvwatch.families import Family
    from kvwatch.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadState:
    """The last load of the configuration file: whether it succeeded, and when one last did (Unix seconds)."""

    successful: bool
    succeeded_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    openmetrics: bool
    compressed: bool


class TooManySelectionsError(Exception):
    """More different selections of families were asked for since the last poll than are rendered."""


class SnapshotCollector:
    """Collect the families of the current snapshot; data that is stale is withdrawn, health stays."""

    def __init__(
        self,
        *,
        current: Callable[[], Snapshot | None],
        reload_state: Callable[[], ReloadState],
        clock: Callable[[], float],
    ) -> None:
        self._current = current
        self._reload_state = reload_state
        self._clock = clock

    def key(self) -> tuple[int, bool, ReloadState]:
        """Return what the exposition depends on: equal keys render equally."""
        snapshot = self._current()
        sequence = -1 if snapshot is None else snapshot.sequence
        return sequence, self._is_fresh(snapshot), self._reload_state()

    def collect(self) -> Iterator[Family]:
        """Yield the families of the snapshot of this moment."""
        snapshot, reload_state = self._current(), self._reload_state()
        families = Families("" if snapshot is None else _minutes(snapshot.typical_window_seconds))
        families.add(metrics.BUILD_INFO, (__version__,), 1)
        families.add(metrics.UP, (), 1)
        families.add(metrics.CONFIG_RELOAD_SUCCESSFUL, (), float(reload_state.successful))
        families.add(metrics.CONFIG_RELOAD_TIMESTAMP, (), reload_state.succeeded_at)
        if snapshot is not None:
            for source in snapshot.sources:
                add_source(families, source)
            if self._is_fresh(snapshot):
                add_data(families, snapshot)
            else:
                add_finding(families, RuleId.DATA_STALE, Severity.CRITICAL)
        return families.used()

    def describe(self) -> Iterator[Family]:
        """Yield all families without series, so that a scraper may ask for some by name."""
        return (empty_family(metric, metric.help) for metric in metrics.CATALOGUE)

    def _is_fresh(self, snapshot: Snapshot | None) -> bool:
        return snapshot is not None and not snapshot.is_stale(self._clock())


class Exposition:
    """Rendered bytes of a collector, kept until its key changes; `clock` is monotonic seconds."""

    KEEP_READY_SECONDS = 60.0
    """A format that was asked for so recently is rendered ahead of the next scrape."""
    MOST_SELECTIONS = 16
    """Different selections of families that are rendered of one snapshot; each costs as much as all."""

    def __init__(self, collector: SnapshotCollector, *, clock: Callable[[], float]) -> None:
        self._collector = collector
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._key: tuple[int, bool, ReloadState] | None = None
        self._rendered: dict[_Format, bytes] = {}
        self._selected: dict[tuple[bool, frozenset[str]], bytes] = {}
        self._asked: dict[_Format, float] = {}

    def render(self, *, openmetrics: bool, compressed: bool, names: Sequence[str] = ()) -> tuple[bytes, str]:
        """Return the body and its content type; only the families of `names` when some are given.

        Raises TooManySelectionsError.
        """
        content_type = OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE_PLAIN_0_0_4
        if names:
            body = self._selection(openmetrics=openmetrics, names=frozenset(names))
            return _compressed(body) if compressed else body, content_type
        wanted = _Format(openmetrics=openmetrics, compressed=compressed)
        self._asked[wanted] = self._clock()
        return self._body(wanted), content_type

    def refresh(self) -> None:
        """Render what scrapers ask for, so that the first one after a poll does not wait for it."""
        for wanted, at in self._asked.items():
            if self._clock() - at <= self.KEEP_READY_SECONDS:
                self._body(wanted)

    def _selection(self, *, openmetrics: bool, names: frozenset[str]) -> bytes:
        self._let_go_of_old()
        wanted = (openmetrics, names)
        if wanted not in self._selected:
            if len(self._selected) >= self.MOST_SELECTIONS:
                raise TooManySelectionsError
            self._selected[wanted] = self._generate(openmetrics=openmetrics, names=sorted(names))
        return self._selected[wanted]

    def _let_go_of_old(self) -> None:
        key = self._collector.key()
        if key != self._key:
            self._key, self._rendered, self._selected = key, {}, {}

    def _body(self, wanted: _Format) -> bytes:
        self._let_go_of_old()
        if wanted not in self._rendered:
            if wanted.compressed:
                plain = self._body(_Format(openmetrics=wanted.openmetrics, compressed=False))
                self._rendered[wanted] = _compressed(plain)
            else:
                self._rendered[wanted] = self._generate(openmetrics=wanted.openmetrics, names=())
        return self._rendered[wanted]

    def _generate(self, *, openmetrics: bool, names: Sequence[str]) -> bytes:
        registry = self._registry.restricted_registry(names) if names else self._registry
        if openmetrics:
            return generate_openmetrics(registry)  # type: ignore[no-untyped-call,no-any-return]
        return generate_latest(registry)


def _compressed(body: bytes) -> bytes:
    return gzip.compress(body, 1, mtime=0)  # higher levels cost a scrape more than they save it


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} min"
