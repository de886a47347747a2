"""Answers of the query API as series. Pure: a decoded document in, values out."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


class MatrixError(Exception):
    """An answer that is none, in a sentence."""


class SelectorError(ValueError):
    """A selector that is none, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of an answer; samples are (Unix seconds, value), oldest first, finite values only."""

    name: str
    labels: Mapping[str, str]
    """Without the name."""
    samples: Sequence[tuple[float, float]]


def read_answer(document: Mapping[str, Any]) -> tuple[list[Series], list[str]]:
    """Return the series of an answer, and what it said beside them.

    Raises MatrixError where the document is no successful answer of /api/v1/query or query_range.
    """
    if document.get("status") != "success":
        raise MatrixError(f"the API says {str(document.get('error', document.get('status')))[:300]!r}")
    data = document.get("data")
    result = data.get("result") if isinstance(data, dict) else None
    kind = data.get("resultType") if isinstance(data, dict) else None
    if not isinstance(result, list) or kind not in ("matrix", "vector"):
        raise MatrixError("the answer has no series: is this a Prometheus-compatible API?")
    try:
        series = [_series(entry) for entry in result]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise MatrixError("the answer's series are not as Prometheus writes them") from None
    warnings = [str(text) for text in document.get("warnings") or ()]
    if document.get("isPartial") is True:  # VictoriaMetrics, cluster
        warnings.append("the answer is partial: a storage node did not respond")
    return series, warnings


def _series(entry: Mapping[str, Any]) -> Series:
    labels = dict(entry["metric"])
    pairs = entry["values"] if "values" in entry else [entry["value"]]
    samples = [(float(at), float(text)) for at, text in pairs]
    return Series(
        name=labels.pop("__name__", ""),
        labels=labels,
        samples=[(at, value) for at, value in samples if math.isfinite(value)],
    )


def matcher(label: str, value: str) -> str:
    """Return `label="value"` for a selector, the value quoted so that it can be nothing but a value."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{label}="{escaped}"'


def name_matcher(names: Sequence[str]) -> str:
    """Return the matcher of several metric names, for a selector without one."""
    return f'__name__=~"{"|".join(names)}"'


def parse_selector(text: str) -> str:
    """Return the matchers of a selector such as `job="kvwatch",cluster=~"a|b"`, braces taken off.

    Raises SelectorError for anything that is not a list of matchers: it goes into a query.
    """
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    matchers: list[str] = []
    position = 0
    while position < len(inner):
        found = _MATCHER.match(inner, position)
        if found is None or not _LABEL_NAME.fullmatch(found["label"]):
            raise SelectorError(f"{text!r} is not a selector; write label matchers: 'job=\"kvwatch\"'")
        matchers.append(f"{found['label']}{found['operator']}{found['value']}")
        position = found.end()
    if not matchers:
        raise SelectorError(f"{text!r} selects nothing; write label matchers: 'job=\"kvwatch\"'")
    return ",".join(matchers)


_MATCHER = re.compile(
    r"""\s*(?P<label>\w+)\s*(?P<operator>=~|!~|!=|=)\s*(?P<value>"(?:[^"\\\n]|\\.)*")\s*(?:,|$)""", re.ASCII
)
