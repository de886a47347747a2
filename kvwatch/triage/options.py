"""The options of `kvwatch triage`, and the help that teaches them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.triage.access_options import add_access_options, api_url

if TYPE_CHECKING:
    from collections.abc import Callable

DESCRIPTION = """\
Say what changed a server's capacity: which factor moved (the pool, the cost of a token, the length of
prompts, the length of answers), the most likely cause, what would disprove it, and what can be done.
Two hours are compared: the last one that was watched, and the same hour a day before.
"""

EPILOG = """\
examples:
  kvwatch triage                                          every server of this machine, worst first
  kvwatch triage --server chat                            one server, now against this hour yesterday
  kvwatch triage --server chat --baseline 7d              against the same hour a week ago
  kvwatch triage --server chat --baseline start           against the hour after its last start
  kvwatch triage --server chat --baseline 2026-10-31T14:00 against the hour that began then
  kvwatch triage --server chat --from 'yesterday 09:00' --to 'yesterday 11:30'
                                                          the hour from 9:00 against the hour until 11:30
  kvwatch triage --prometheus http://prometheus:9090 --server chat --markdown
  kvwatch triage --prometheus https://mimir/prometheus --prometheus-header X-Scope-OrgID=team-a

The daemon need not run: its history is only read. Anything that answers like Prometheus can be asked
(Thanos, Mimir, VictoriaMetrics); only the series that kvwatch exports are needed.

exit status: 0 nothing changed, 1 something did, 2 usage, 3 cannot tell: too little was seen, or the source
cannot be read
"""


def add_arguments(command: argparse.ArgumentParser, duration: Callable[[str], float]) -> None:
    """Add the options of `kvwatch triage`; `duration` reads seconds such as 30s."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("--server", metavar="NAME", help="one server; default: all of them, worst first")
    command.add_argument("--all", action="store_true", help="all servers, even where only one is known")
    command.add_argument("--json", action="store_true", help="print everything as JSON")
    command.add_argument("--markdown", action="store_true", help="print Markdown, for an incident channel")
    when = command.add_argument_group("what is compared")
    when.add_argument(
        "--to", metavar="TIME", help="where the hour of now ends; default: the last moment that was watched"
    )
    when.add_argument(
        "--baseline",
        metavar="1d|7d|start|TIME",
        help="the hour to compare with: the same one a day (default), a week or 30d before, the one after"
        " the last start, or the one that begins at a moment",
    )
    when.add_argument(
        "--from",
        dest="since",
        metavar="TIME",
        help="what changed since: the same as --baseline TIME; beside --baseline, where now begins",
    )
    when.add_argument(
        "--window", type=duration, metavar="TIME", help="compare so long instead of an hour: 15m, 3h"
    )
    where = command.add_argument_group("where it is read from")
    source = where.add_mutually_exclusive_group()
    source.add_argument(
        "--history", type=Path, metavar="FILE", help="default: the file that the daemon writes"
    )
    source.add_argument("--prometheus", type=api_url, metavar="URL", help="any Prometheus-compatible API")
    add_access_options(where, duration)
