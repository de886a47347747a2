"""A verdict for a terminal: what happened, bars for the factors, the trend, what was seen, what to do."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.triage.comparison import Unit
from kvwatch.triage.sentences import effect, moment, number, size, span, tokens
from kvwatch.triage.verdict import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvwatch.triage.decomposition import Factors
    from kvwatch.triage.verdict import Verdict

WIDTH = 80
_BAR = 24
_FULL_BAR = math.log(4)
_TREND = 60
_NAME = 14
"""Of a baseline, in its column's head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """What pictures are drawn with."""

    less: str
    more: str
    axis: str
    unknown: str
    levels: str


PLAIN = Glyphs(less="-", more="+", axis="|", unknown="?", levels="_.-=^#")
FULL = Glyphs(less="█", more="█", axis="│", unknown="·", levels="▁▂▃▄▅▆▇█")


def render_text(verdict: Verdict, glyphs: Glyphs = FULL) -> str:
    """Return the verdict in lines of at most 80 columns."""
    return "\n".join(_lines(verdict, glyphs)) + "\n"


def _lines(verdict: Verdict, glyphs: Glyphs) -> Iterator[str]:
    yield from _wrapped(verdict.headline, "")
    yield f"cause {verdict.cause}, confidence {verdict.confidence}"
    yield ""
    yield from _windows(verdict)
    if verdict.factors.log_ratio is not None or verdict.factors.pool is not None:
        yield ""
        yield from factor_lines(verdict.factors, glyphs)
    trend = [value for _, value in verdict.trend]
    if any(value is not None for value in trend):
        yield ""
        yield from trend_lines(verdict, glyphs)
    for title, items in (
        ("What was seen", [one.text for one in verdict.evidence]),
        ("What would disprove it", list(verdict.disproof)),
    ):
        if items:
            yield ""
            yield title
            for item in items:
                yield from _wrapped(item, "  - ")
    if verdict.levers:
        yield ""
        yield "What can be done"
        for lever in verdict.levers:
            yield from _wrapped(lever.action, "  - ")
            yield from _wrapped(f"costs: {lever.cost}", "    ")
            yield from _wrapped(f"users who watch a stream: {lever.stream}", "    ")
            yield from _wrapped(f"a batch: {lever.batch}", "    ")


def _wrapped(text: str, prefix: str) -> list[str]:
    rest = " " * len(prefix)
    return textwrap.wrap(text, WIDTH, initial_indent=prefix, subsequent_indent=rest, break_on_hyphens=False)


def rows(verdict: Verdict) -> list[tuple[str, str, str]]:
    """Return the figures of both moments: name, then, now."""
    before, after, comparison = verdict.baseline, verdict.now, verdict.comparison
    found: list[tuple[str, str, str]] = []
    moments = (before, after)

    def add(name: str, values: Sequence[str]) -> None:
        found.append((name, values[0], values[1]))

    add(
        "typical requests, empty pool",
        [number(one.typical_fit_empty) if one else "unknown" for one in moments],
    )
    measures = (comparison.before, comparison.after) if comparison else (None, None)
    if comparison is not None and comparison.unit is Unit.BYTES:
        add("pool, bytes", [size(one.pool) if one else "unknown" for one in measures])
        add("one typical request, bytes", [size(one.cost) if one else "unknown" for one in measures])
    add("pool, blocks", [number(one.usable_blocks) if one else "unknown" for one in moments])
    add("prompt, tokens", [tokens(one.prompt_tokens) if one else "unknown" for one in moments])
    add("answer, tokens", [tokens(one.generation_tokens) if one else "unknown" for one in moments])
    add("running, mean", [number(one.running_mean) if one else "unknown" for one in moments])
    add("waiting, mean", [number(one.waiting) if one else "unknown" for one in moments])
    add("preemptions", [number(one.preemptions) if one else "unknown" for one in moments])
    add("finished requests", [number(one.finished) if one else "unknown" for one in moments])
    return found


def _windows(verdict: Verdict) -> Iterator[str]:
    then, now = verdict.baseline_window, verdict.now_window
    heads = [f"then ({then.name})" if 0 < len(then.name) <= _NAME else "then", "now"]
    yield f"{'':30}{heads[0]:>22}{heads[1]:>22}"
    yield f"{'from':30}{moment(then.start_at):>22}{moment(now.start_at):>22}"
    yield f"{'for':30}{span(then.seconds):>22}{span(now.seconds):>22}"
    for name, old, new in rows(verdict):
        yield f"{name:30}{old:>22}{new:>22}"


def factor_lines(factors: Factors, glyphs: Glyphs) -> Iterator[str]:
    """Yield a bar for each factor, to the left what took capacity and to the right what gave."""
    yield f"{'what moved capacity':24}{'less':<{_BAR}} {'more':>{_BAR}}"
    for name, value in (*factors.items(), ("together", factors.log_ratio)):
        yield f"{name.replace('_', ' '):18}{bar(value, glyphs)} {effect(value):>10}".rstrip()


def bar(value: float | None, glyphs: Glyphs) -> str:
    """Return a bar around an axis; its full length is a factor of four."""
    if value is None:
        return f"{glyphs.unknown:>{_BAR}}{glyphs.axis}{'':{_BAR}}"
    length = min(_BAR, round(abs(value) / _FULL_BAR * _BAR))
    less = glyphs.less * length if value < 0 else ""
    more = glyphs.more * length if value > 0 else ""
    return f"{less:>{_BAR}}{glyphs.axis}{more:{_BAR}}"


def trend_lines(verdict: Verdict, glyphs: Glyphs) -> Iterator[str]:
    """Yield the sparkline of typical requests that an empty pool takes, and its ends."""
    points = condensed(verdict.trend, _TREND)
    known = [value for value in points if value is not None]
    if not known:
        return
    top = max(known) or 1.0
    steps = len(glyphs.levels) - 1
    line = "".join(
        glyphs.unknown if value is None else glyphs.levels[round(value / top * steps)] for value in points
    )
    yield f"typical requests that fit an empty pool, 0 to {number(top)}"
    yield line
    first, last = (moment(verdict.trend[index][0]) for index in (0, -1))
    yield f"{first}{last:>{max(len(last) + 1, len(line) - len(first))}}"


def condensed(trend: Sequence[tuple[float, float | None]], most: int) -> list[float | None]:
    """Return at most so many points of equal time; None where nothing is known."""
    if not trend:
        return []
    start, end = trend[0][0], trend[-1][0]
    count = min(most, len(trend))
    bins: list[list[float]] = [[] for _ in range(count)]
    for at, value in trend:
        place = int((at - start) / (end - start) * (count - 1) + 0.5) if end > start else 0
        if value is not None:
            bins[place].append(value)
    return [sum(values) / len(values) if values else None for values in bins]


def is_worse(verdict: Verdict) -> tuple[int, float]:
    """Return what verdicts are sorted by, the worst first: what changed, then what cannot be told."""
    if verdict.cause is Cause.NOT_ENOUGH_DATA:
        return 1, 0.0
    changed = verdict.cause is not Cause.NO_CHANGE
    return (0 if changed else 2), verdict.ratio if verdict.ratio is not None else 1.0
