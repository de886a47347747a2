"""Reading of Prometheus text from an engine: only the wanted lines, and strictly."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from kvwatch.readings import Reason, SourceError, SumCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MOST_SERIES = 8_192
"""Wanted series of one page, some 25 a rank: reading more would hold up every other server's figures."""
MOST_RANKS = 512
_RANK_CHARACTERS = 64

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LINE = re.compile(
    r"(?:#.*|(?P<series>[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{.*\})?)[ \t]+(?P<value>\S+)(?:[ \t]+-?\d{1,19})?[ \t]*)$"
)
_CACHED_CHARACTERS = 1_024


@dataclass(frozen=True, slots=True)
class Samples:
    """The wanted samples of one page, by metric name."""

    by_name: Mapping[str, tuple[tuple[Mapping[str, str], float], ...]]

    def of(self, name: str) -> tuple[tuple[Mapping[str, str], float], ...]:
        """Return (labels, value) of each series of `name`; empty when the page has none."""
        return self.by_name.get(name, ())

    def select(self, labels: Mapping[str, str]) -> Samples:
        """Return the samples that carry all of `labels`."""
        kept = {
            name: tuple((own, value) for own, value in series if labels.items() <= own.items())
            for name, series in self.by_name.items()
        }
        return Samples({name: series for name, series in kept.items() if series})

    def value(self, name: str) -> float | None:
        """Return the one value of `name`, None when absent; two series are ambiguous."""
        series = self.of(name)
        if len(series) > 1:
            raise SourceError(Reason.AMBIGUOUS, f"{name}: {len(series)} series where one is expected")
        return series[0][1] if series else None

    def count(self, name: str) -> int | None:
        """Return the one value of `name` as a count: a whole number, not negative."""
        value = self.value(name)
        if value is None:
            return None
        if value < 0 or value != int(value):
            raise SourceError(Reason.PARSE_ERROR, f"{name}: {value!r} is no count")
        return int(value)

    def sum_count(self, name: str) -> SumCount | None:
        """Return sum and count of a histogram or summary, None unless both are there."""
        total, count = self.value(f"{name}_sum"), self.value(f"{name}_count")
        return None if total is None or count is None else SumCount(sum=total, count=count)


def read_samples(body: str, *, wanted: Iterable[str], spellings: Mapping[str, str] | None = None) -> Samples:
    """Parse the lines of `body` whose metric is `wanted`; `spellings` maps other prefixes to the usual one.

    Only wanted lines reach the parser, and each series' name and labels once: of a page of 55 kB that would
    take some 20 ms whole, most is known from the poll before.
    Raises SourceError: parse_error for a page that is cut short, is no exposition, or holds a value
    that is no finite number; ambiguous for a series that is there twice; too_large for more than MOST_SERIES.
    """
    names = frozenset(wanted)
    if not body.endswith("\n"):
        # The format demands a line feed after the last line; without it a number may be cut in two.
        raise SourceError(Reason.PARSE_ERROR, "the page ends in the middle of a line")
    lines = list(_wanted_lines(body, names, spellings or {}))
    if not lines:
        _check_exposition(body)
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for series, text in lines:
        name, key, labels = _series(series)
        if (name, key) in seen:
            raise SourceError(Reason.AMBIGUOUS, f"{name} is on the page twice with the same labels")
        seen.add((name, key))
        samples.setdefault(name, []).append((labels, _value(name, text)))
    return Samples({name: tuple(series) for name, series in samples.items()})


def _wanted_lines(
    body: str, names: frozenset[str], spellings: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield each wanted series as written, under its usual name, with its value."""
    count = 0
    for line in body.split("\n"):
        match = None if line.startswith("#") else _NAME.match(line)
        if match is None:
            continue
        name = match.group()
        for other, usual in spellings.items():
            if name.startswith(other):
                name = usual + name.removeprefix(other)
                break
        if name in names:
            count += 1
            if count > MOST_SERIES:
                raise SourceError(Reason.TOO_LARGE, f"more than {MOST_SERIES} series that are read")
            parts = _LINE.match(line)
            if parts is None:
                raise SourceError(Reason.PARSE_ERROR, f"malformed line for {name}")
            yield name + parts["series"][match.end() :], parts["value"]


def _series(written: str) -> tuple[str, tuple[tuple[str, str], ...], Mapping[str, str]]:
    """Return a series' name, its labels in order to compare them, and its labels."""
    return (_remembered if len(written) <= _CACHED_CHARACTERS else _parsed)(written)


def _parsed(written: str) -> tuple[str, tuple[tuple[str, str], ...], Mapping[str, str]]:
    try:
        ((sample,),) = [family.samples for family in text_string_to_metric_families(f"{written} 0\n")]
    except (ValueError, IndexError, KeyError) as error:
        raise SourceError(Reason.PARSE_ERROR, str(error)) from error
    return sample.name, tuple(sorted(sample.labels.items())), MappingProxyType(sample.labels)


# A server's series are the same at every poll, and quotes are what takes the parser's time.
_remembered = lru_cache(maxsize=4_096)(_parsed)


def _value(name: str, text: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)  # Python's own 1_000 is no number here
    except ValueError as error:
        raise SourceError(Reason.PARSE_ERROR, str(error)) from error
    if not math.isfinite(value):
        raise SourceError(Reason.PARSE_ERROR, f"{name} is {text[:60]!r}")
    return value


def rank_names(labels: Iterable[str]) -> list[str]:
    """Return the ranks of a page in order; raise SourceError, too_large, for too many or a long name."""
    ranks = sorted(set(labels))
    if any(len(rank) > _RANK_CHARACTERS for rank in ranks):
        raise SourceError(Reason.TOO_LARGE, f"a rank's name has more than {_RANK_CHARACTERS} characters")
    if len(ranks) > MOST_RANKS:
        raise SourceError(Reason.TOO_LARGE, f"more than {MOST_RANKS} ranks")
    return ranks


def _check_exposition(body: str) -> None:
    """Raise parse_error when the page's first line shows that it is no exposition at all."""
    first = next((line for line in body.split("\n") if line.strip()), "")
    if first and _LINE.match(first) is None:
        raise SourceError(Reason.PARSE_ERROR, f"no Prometheus text: {first[:60]!r}")
