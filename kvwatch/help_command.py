"""`kvwatch help TOPIC`: a command, a metric, an alert's runbook or a page of the documentation."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvwatch.metrics import Metric

FINE, USAGE = 0, 2

NOTES = """\
TOPIC is a command, a metric (with or without kvwatch_), an alert, or a page; without one they are listed.

examples:
  kvwatch help triage
  kvwatch help full_length_requests_headroom
  kvwatch help KvwatchNoRoom
  kvwatch help configuration | less
"""

_PACKAGED = Path(__file__).parent / "docs"
_SOURCE_TREE = Path(__file__).parents[1] / "docs"
_PREFIX = "kvwatch_"
_SHORTEST_PART = 3


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the argument of `kvwatch help`."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = NOTES
    command.add_argument("topic", nargs="?", metavar="TOPIC", help="what to explain")


def run_help(parser: argparse.ArgumentParser, topic: str | None) -> int:
    """Print what is known of a topic; return 0, or 2 where there is no such topic."""
    from kvwatch.metrics import CATALOGUE  # noqa: PLC0415

    commands, pages = commands_of(parser), _pages()
    metrics = {metric.name: metric for metric in CATALOGUE}
    if topic is None:
        parser.print_help()
        print(f"\n{_topics(pages, len(metrics))}", end="")
        return FINE
    name = topic if topic in metrics else _PREFIX + topic
    if topic in commands:
        commands[topic].print_help()
        if topic in pages:
            print(f"\nmore: kvwatch help {topic}.md")
    elif name in metrics:
        print(_explained(metrics[name], pages), end="")
    elif (page := topic.removesuffix(".md")) in pages:
        print(pages[page].read_text(encoding="utf-8"), end="")
    else:
        print(
            f"kvwatch help: {topic} is no topic; {_guess(topic, [*commands, *pages, *metrics])}",
            file=sys.stderr,
        )
        return USAGE
    return FINE


def _guess(topic: str, known: list[str]) -> str:
    """Return what may have been meant: names with the word in them, else names that look like it."""
    part = topic.lower()
    near = [name for name in known if len(part) >= _SHORTEST_PART and part in name.lower()]
    near = near or difflib.get_close_matches(
        topic, [name.removeprefix(_PREFIX) for name in known], cutoff=0.5
    )
    return f"did you mean {', '.join(near)}?" if near else "`kvwatch help` lists the topics"


def commands_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to look at a parser
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return action.choices
    return {}


def _pages() -> dict[str, Path]:
    """Return the pages of the documentation by name: runbooks by their alert, rules by their id."""
    folder = _PACKAGED if _PACKAGED.is_dir() else _SOURCE_TREE
    files = (
        *folder.glob("*.md"),
        *(folder / "runbooks").glob("Kvwatch*.md"),
        *(folder / "checks").glob("[a-z]*.md"),
    )
    return {file.stem: file for file in sorted(files)}


def _explained(metric: Metric, pages: Mapping[str, Path]) -> str:
    """Say what a metric means, and which runbooks speak of it."""
    text = (
        f"{metric.name}  ({metric.kind})\n\n{metric.help}\n\nlabels: {', '.join(metric.labels) or 'none'}\n"
    )
    text += "Where it is not known it is absent: kvwatch_source_up and kvwatch_source_reason say why.\n"
    alerts = [name for name in _alerts(pages) if metric.name in pages[name].read_text(encoding="utf-8")]
    if alerts:
        text += f"alerts whose runbook speaks of it: {', '.join(alerts)}\n"
    return text


def _alerts(pages: Mapping[str, Path]) -> Iterator[str]:
    return (name for name, file in pages.items() if file.parent.name == "runbooks")


def _topics(pages: Mapping[str, Path], metrics: int) -> str:
    """List the topics that are no commands."""
    alerts = list(_alerts(pages))
    rules = [name for name, file in pages.items() if file.parent.name == "checks"]
    general = [name for name in pages if name not in alerts and name not in rules]
    return (
        f"pages (kvwatch help PAGE):\n{_wrapped(general)}\n"
        f"alerts (kvwatch help ALERT):\n{_wrapped(alerts)}\n"
        f"rules of kvwatch check (kvwatch help RULE):\n{_wrapped(rules)}\n"
        f"metrics (kvwatch help METRIC): the {metrics} that kvwatch help metrics lists\n"
    )


def _wrapped(names: list[str]) -> str:
    lines = textwrap.wrap("  ".join(names), 76, break_on_hyphens=False, break_long_words=False)
    return textwrap.indent("\n".join(lines), "  ") + "\n"
