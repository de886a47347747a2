"""Reading of Prometheus text from an engine: only the wanted lines, and strictly."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from kvwatch.readings import Reason, SourceError, SumCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LINE = re.compile(r"(#.*|[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})?[ \t]+\S+([ \t]+-?\d+)?[ \t]*)$")


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

    A page of 55 kB takes the parser some 20 ms whole and less than one when only wanted lines reach it.
    Raises SourceError: parse_error for a page that is cut short, is no exposition, or holds a value
    that is no finite number; ambiguous for a series that is there twice.
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
    for name, labels, value in _parse(lines):
        key = (name, tuple(sorted(labels.items())))
        if key in seen:
            raise SourceError(Reason.AMBIGUOUS, f"{name} is on the page twice with the same labels")
        seen.add(key)
        samples.setdefault(name, []).append((labels, value))
    return Samples({name: tuple(series) for name, series in samples.items()})


def _wanted_lines(body: str, names: frozenset[str], spellings: Mapping[str, str]) -> Iterator[str]:
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
            if _LINE.match(line) is None:
                raise SourceError(Reason.PARSE_ERROR, f"malformed line for {name}")
            yield name + line[match.end() :]


def _parse(lines: list[str]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if not math.isfinite(sample.value):
                    raise SourceError(Reason.PARSE_ERROR, f"{sample.name} is {sample.value}")
                yield sample.name, sample.labels, sample.value
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise SourceError(Reason.PARSE_ERROR, str(error)) from error


def _check_exposition(body: str) -> None:
    """Raise parse_error when the page's first line shows that it is no exposition at all."""
    first = next((line for line in body.split("\n") if line.strip()), "")
    if first and _LINE.match(first) is None:
        raise SourceError(Reason.PARSE_ERROR, f"no Prometheus text: {first[:60]!r}")
