"""Findings and what is not known: as a few lines of the overview, and as pages of their own. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.findings.words import count
from kvwatch.top.cells import Line, Span, Style, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.top.paper import Paper
    from kvwatch.top.views import Finding, Gap, View

SEVERITY_WORDS = ("CRITICAL", "WARNING", "to know")
_COUNTED = (("critical", "critical"), ("warning", "warnings"), ("to know", "to know"))
_STYLES = (Style.BAD, Style.WARN, Style.PLAIN)
_WIDTH = max(map(len, SEVERITY_WORDS))


def findings_title(view: View, paper: Paper) -> Line:
    """Return how many findings there are; without any it says whether all could be judged."""
    was = "" if paper.current else "were: "
    if not view.findings:
        calm = "none" if not view.unjudged else f"none among what can be judged; {_unjudged(view)}"
        return line(("FINDINGS", Style.TITLE), f"  {was}{calm}")
    counts = [sum(finding.severity == severity for finding in view.findings) for severity in range(3)]
    words = [count(number, *word) for number, word in zip(counts, _COUNTED, strict=True) if number]
    rest = [_unjudged(view)] if view.unjudged else []
    return line(("FINDINGS", Style.TITLE), f"  {was}{', '.join([*words, *rest])}")


def _unjudged(view: View) -> str:
    return f"{count(len(view.unjudged), 'rule')} not judged"


def findings_section(view: View, paper: Paper, rows: int) -> list[Line]:
    """Return the findings in at most `rows` lines: the worst first, with what to do where there is room."""
    lines = [findings_title(view, paper)]
    with_steps = 2 * len(view.findings) + 1 <= rows
    for at, finding in enumerate(view.findings):
        left = rows - len(lines)
        more = len(view.findings) - at
        if at and left <= 1 < more:
            lines.append(line((f"  {paper.glyphs.cut} {more} more: f", Style.DIM)))
            break
        lines.append(_headline(finding, paper))
        if with_steps or (at == 0 and left > more):
            lines.append(line(f"  {'':{_WIDTH}}  next: {paper.shown(finding.next_step)}"))
    return lines[:rows]


def _headline(finding: Finding, paper: Paper) -> Line:
    word = SEVERITY_WORDS[finding.severity]
    if not paper.current:
        return line((f"  {word:{_WIDTH}}  was: {paper.shown(finding.summary)}", Style.DIM))
    return line((f"  {word:{_WIDTH}}", _STYLES[finding.severity]), f"  {paper.shown(finding.summary)}")


def finding_lines(finding: Finding, taken_at: float | None, paper: Paper) -> list[Line]:
    """Return all that a finding says."""
    word = SEVERITY_WORDS[finding.severity]
    subject = " ".join(filter(None, (finding.server, finding.card)))
    was = "" if paper.current else "was: "
    return [
        *paper.paragraph(f"{word}  {was}{finding.summary}", _STYLES[finding.severity]),
        *(paper.paragraph(finding.detail, indent="    ") if finding.detail else []),
        *paper.paragraph(f"Next: {finding.next_step}", indent="    "),
        *paper.paragraph(
            f"{finding.rule}  {subject}  since {paper.ago(finding.since, taken_at)}", Style.DIM, indent="    "
        ),
    ]


def findings_page(view: View, paper: Paper) -> list[Line]:
    """Return every finding, what changed, and what could not be judged."""
    lines = [findings_title(view, paper), Line()]
    for finding in view.findings:
        lines += [*finding_lines(finding, view.taken_at, paper), Line()]
    if view.changes:
        lines.append(line(("WHAT CHANGED", Style.TITLE)))
        for server, words in view.changes:
            lines += paper.paragraph(f"{server} {words}", indent="  ")
        lines.append(Line())
    if view.unjudged:
        lines += paper.paragraph("NOT JUDGED: that these are no findings is no all-clear", Style.TITLE)
        lines += [one for gap in view.unjudged for one in _gap_lines(gap, view, paper)]
    return lines


def gaps_title(view: View, paper: Paper) -> Line:
    """Return how much is not known."""
    was = "" if paper.current else "was: "
    if not view.gaps:
        return line(("UNKNOWN", Style.TITLE), f"  {was}every source that is switched on gave an answer")
    return line(
        ("UNKNOWN", Style.TITLE),
        f"  {was}{count(len(view.gaps), 'source or page', 'sources or pages')} without an answer",
    )


def gaps_section(view: View, paper: Paper, rows: int) -> list[Line]:
    """Return what is not known in at most `rows` lines."""
    lines = [gaps_title(view, paper)]
    for at, gap in enumerate(view.gaps):
        more = len(view.gaps) - at
        if rows - len(lines) <= 1 < more:
            lines.append(line((f"  {paper.glyphs.cut} {more} more: u", Style.DIM)))
            break
        what = Span(f"  {paper.shown(gap.what)}  ", Style.UNKNOWN)
        lines.append(line(what, f"{paper.shown(gap.why)}{_last(gap, view, paper)}"))
    return lines[:rows]


def gaps_page(view: View, paper: Paper) -> list[Line]:
    """Return all that is not known."""
    lines = [gaps_title(view, paper), Line()]
    for gap in view.gaps:
        lines += [*_gap_lines(gap, view, paper), Line()]
    for title, gaps in (("NOT JUDGED", view.unjudged), ("NOT ENABLED", view.not_enabled)):
        if gaps:
            lines.append(line((title, Style.TITLE)))
            lines += [one for gap in gaps for one in _gap_lines(gap, view, paper)]
            lines.append(Line())
    return lines


def gaps_of(gaps: Sequence[Gap], server: str) -> list[Gap]:
    """Return what is not known of one server."""
    return [gap for gap in gaps if gap.server == server]


def _gap_lines(gap: Gap, view: View, paper: Paper) -> list[Line]:
    subject = f" {gap.server}" if gap.server and gap.server not in gap.what else ""
    return paper.paragraph(f"{gap.what}{subject}: {gap.why}{_last(gap, view, paper)}", indent="  ")


def _last(gap: Gap, view: View, paper: Paper) -> str:
    return "" if gap.last_at is None else f" (last answer {paper.ago(gap.last_at, view.taken_at)})"
