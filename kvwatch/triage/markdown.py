"""A verdict as Markdown, for the incident channel."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.triage.sentences import effect, moment
from kvwatch.triage.text import FULL, factor_lines, rows, trend_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.triage.verdict import Lever, Verdict

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def render_markdown(verdict: Verdict) -> str:
    """Return the verdict; names that come from elsewhere cannot format it."""
    return "\n".join(_lines(verdict)) + "\n"


def _lines(verdict: Verdict) -> Iterator[str]:
    yield f"### {_plain(verdict.headline)}"
    yield ""
    yield f"**Cause** `{verdict.cause}` · **confidence** {verdict.confidence} · **capacity** " + (
        "unknown" if verdict.factors.log_ratio is None else effect(verdict.factors.log_ratio)
    )
    yield ""
    then, now = verdict.baseline_window, verdict.now_window
    yield f"| | then ({moment(then.start_at)}) | now ({moment(now.start_at)}) |"
    yield "|---|---:|---:|"
    for name, old, new in rows(verdict):
        yield f"| {name} | {old} | {new} |"
    if verdict.factors.log_ratio is not None:
        yield ""
        yield "```"
        yield from factor_lines(verdict.factors, FULL)
        yield from trend_lines(verdict, FULL)
        yield "```"
    for title, items in (
        ("What was seen", [one.text for one in verdict.evidence]),
        ("What would disprove it", list(verdict.disproof)),
        ("What can be done", [_lever(lever) for lever in verdict.levers]),
    ):
        if items:
            yield ""
            yield f"**{title}**"
            yield ""
            for item in items:
                yield f"- {_plain(item)}"


def _lever(lever: Lever) -> str:
    return f"{lever.action} Costs: {lever.cost} For a stream: {lever.stream} For a batch: {lever.batch}"


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text.replace("\n", " "))
