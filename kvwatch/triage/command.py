"""`kvwatch triage`: what changed, from kvwatch's history or from any Prometheus API."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from kvwatch.readings import Reason, SourceError
from kvwatch.triage.access_options import access_of
from kvwatch.triage.document import verdict_document
from kvwatch.triage.explanation import explain
from kvwatch.triage.fleet import fleet_of
from kvwatch.triage.fleet_output import fleet_document, render_fleet, render_fleet_markdown
from kvwatch.triage.markdown import render_markdown
from kvwatch.triage.reading import START, STEP_SECONDS, Question, QuestionError, read_records, shift_seconds
from kvwatch.triage.sentences import moment
from kvwatch.triage.text import FULL, PLAIN, render_text
from kvwatch.triage.times import MomentError, parse_moment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from kvwatch.triage.fleet import Fleet
    from kvwatch.triage.source import Source
    from kvwatch.triage.text import Glyphs
    from kvwatch.triage.verdict import Verdict

USAGE, CANNOT_TELL = 2, 3
_WINDOW_SECONDS = 3600.0
_OLD_SECONDS = 900.0
"""What was watched last is told where it is older."""


def run_triage(options: argparse.Namespace) -> int:
    """Answer; return the exit status."""
    if options.json and options.markdown:
        return _complain("--json and --markdown are two different outputs: choose one")
    try:
        with _open(options) as source:
            return _answer(options, source)
    except (QuestionError, MomentError) as error:
        return _complain(str(error))
    except SourceError as error:
        print(f"kvwatch triage: {error.detail or error}", file=sys.stderr)
        return CANNOT_TELL


def _answer(options: argparse.Namespace, source: Source) -> int:
    """Ask, explain, print."""
    asked = _question(options, source, time.time())
    records = [] if asked is None else read_records(source, asked)
    for note in source.notes:
        print(f"kvwatch triage: {note}", file=sys.stderr)
    if asked is None or not records:
        return _nobody(options, source, asked)
    if time.time() - asked.end_at > _OLD_SECONDS and options.to is None:
        print(f"kvwatch triage: the last that was watched is of {moment(asked.end_at)}", file=sys.stderr)
    verdicts = [explain(record) for record in records]
    if len(verdicts) == 1 and not options.all:
        _print_one(options, verdicts[0])
        return verdicts[0].exit_code
    fleet = fleet_of(verdicts)
    _print_fleet(options, fleet)
    return fleet.exit_code


def _print_one(options: argparse.Namespace, verdict: Verdict) -> None:
    if options.json:
        print(json.dumps(verdict_document(verdict), indent=2, ensure_ascii=False))
    else:
        print(render_markdown(verdict) if options.markdown else render_text(verdict, _glyphs()), end="")


def _print_fleet(options: argparse.Namespace, fleet: Fleet) -> None:
    if options.json:
        print(json.dumps(fleet_document(fleet), indent=2, ensure_ascii=False))
    else:
        print(render_fleet_markdown(fleet) if options.markdown else render_fleet(fleet, _glyphs()), end="")


def _glyphs() -> Glyphs:
    """Return what the terminal can show."""
    try:
        "█▁│·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return FULL


def _nobody(options: argparse.Namespace, source: Source, asked: Question | None) -> int:
    """Say that nothing was seen, or not of this server; return the exit status."""
    known = list(source.servers(asked.end_at)) if asked is not None else []
    if options.server is not None and known and options.server not in known:
        return _complain(f"no server is called {options.server!r}; known are: {', '.join(known)}")
    where = options.prometheus or "the history"
    print(
        f"kvwatch triage: {where} holds nothing of {options.server or 'any server'} in these hours.\n"
        "  Does `kvwatch run` watch it, and does Prometheus scrape that (kvwatch_server_info)?",
        file=sys.stderr,
    )
    return CANNOT_TELL


def _complain(text: str) -> int:
    print(f"kvwatch triage: {text}", file=sys.stderr)
    return USAGE


@contextlib.contextmanager
def _open(options: argparse.Namespace) -> Iterator[Source]:
    """Open what is read; raise SourceError with a sentence that says what to do."""
    if options.prometheus is not None:
        from kvwatch.triage.prometheus import PrometheusSource  # noqa: PLC0415 - HTTP takes long to load
        from kvwatch.triage.prometheus_api import PrometheusApi, PrometheusError  # noqa: PLC0415

        try:
            with PrometheusApi(access_of(options)) as api:
                yield PrometheusSource(api, selector=options.selector or "")
        except PrometheusError as error:
            raise SourceError(Reason.UNREACHABLE, str(error)) from None
        return
    from kvwatch.history.location import readable_path  # noqa: PLC0415
    from kvwatch.history.reader import HistoryReader  # noqa: PLC0415
    from kvwatch.triage.history_source import HistorySource  # noqa: PLC0415

    path = options.history or readable_path(os.environ)
    if path is None:
        raise SourceError(Reason.NOT_FOUND, _NO_HISTORY)
    with HistoryReader(path) as reader:
        yield HistorySource(reader)


_NO_HISTORY = """\
there is no history on this machine: the daemon keeps one (kvwatch run) from the day it is started.
  Is it somewhere else? Give --history FILE. Does Prometheus scrape kvwatch? Give --prometheus URL."""


def _question(options: argparse.Namespace, source: Source, now: float) -> Question | None:
    """Return what the options ask; None where nothing was ever seen."""
    last = source.latest(now if options.to is None else parse_moment(options.to, now))
    if last is None:
        return None
    end = last if options.to is None else parse_moment(options.to, now)
    end = end // STEP_SECONDS * STEP_SECONDS
    window = options.window or _WINDOW_SECONDS
    since = None if options.since is None else parse_moment(options.since, now)
    if options.baseline is None and since is not None:
        return _asked(options, end, since, options.since, window)
    if since is not None:
        window = (end - since) // STEP_SECONDS * STEP_SECONDS
        if window < STEP_SECONDS:
            raise QuestionError(f"--from {options.since} is not before --to {options.to or 'now'}")
    name = options.baseline or "1d"
    given = name == START or shift_seconds(name) is not None
    baseline = name if given else parse_moment(name, now)
    return _asked(options, end, baseline, name, window)


def _asked(
    options: argparse.Namespace, end: float, baseline: str | float, name: str, window: float
) -> Question:
    if isinstance(baseline, float):
        baseline = baseline // STEP_SECONDS * STEP_SECONDS
    return Question(
        server=options.server,
        end_at=end,
        baseline=baseline,
        baseline_name=name,
        window_seconds=max(STEP_SECONDS, window // STEP_SECONDS * STEP_SECONDS),
    )
