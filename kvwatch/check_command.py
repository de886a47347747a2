"""`kvwatch check FILES...`: whether the servers that files describe fit their cards, before they start."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.options import size, url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.declaration import Declaration
    from kvwatch.check.reading.declare import Given
    from kvwatch.check.verdict import Finding

CLEAN, FOUND, UNREADABLE = 0, 1, 2

_BUILD = re.compile(r"b?(\d{3,6})", re.ASCII)
_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?", re.ASCII)
_CARD = re.compile(r"([^=\s]+)=([^:]+)(?::(.*))?")

NOTES = """\
It reads what starts servers, each file recognised by its content:

  shell command lines and scripts    vllm serve, python -m vllm..., llama-server, docker run; their variables,
                                     arrays and loops, scripts that they run
  docker compose files               command, entrypoint, environment, env_file, devices, extends, .env
  Kubernetes manifests               every kind with containers, ConfigMaps among the files, $(VAR)
  systemd units                      ExecStart, Environment, EnvironmentFile, drop-ins
  vLLM's --config files              by themselves, or where a command names one
  kvwatch's own configuration        share, pin, model_config and the rest, joined to servers of the same name

Which server is on which card: device lists, CUDA_VISIBLE_DEVICES, reservations and GPU limits of the files;
else --card. Files that call a card by number are taken as one machine's: check one machine at a time.
A variable or a template that no file settles is reported and what it sets stays unknown; nothing is guessed
and nothing is run. Leave a rule out for what stands near a comment, with a reason:

  # kvwatch: ignore=unpinned-neighbours they are started one after the other

examples:
  kvwatch check docker-compose.yml
  kvwatch check --card 0=46068MiB chat.yaml embed.yaml          both on the one card
  kvwatch check --card A=80GiB:chat,embed --card B=80GiB:big *.service
  kvwatch check --from http://127.0.0.1:9836 start.sh           sizes and footprints of a running kvwatch
  kvwatch check --model chat=/models/chat --format json k8s/*.yaml
  helm template my-chart | kvwatch check -

exit status: 0 nothing found, 1 something at or above --fail-on, 2 a file or --from cannot be read
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `kvwatch check`, and what it teaches."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = NOTES
    command.add_argument(
        "files", nargs="+", metavar="FILE", help="what starts servers; - reads standard input"
    )
    command.add_argument(
        "--card",
        dest="cards",
        type=_card,
        action="append",
        default=[],
        metavar="NAME=SIZE[:SERVER,...]",
        help="a card, its memory, and who is on it where the files do not say; may be repeated."
        " One card without servers takes all that have no place of their own",
    )
    command.add_argument(
        "--from",
        dest="live",
        type=url,
        metavar="URL",
        help="a running kvwatch: its cards, and what servers of the same name were measured to hold",
    )
    command.add_argument(
        "--model",
        dest="models",
        type=_named_path,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="where the model of a server is on this machine: config.json, folder or GGUF; may be repeated",
    )
    command.add_argument(
        "--display",
        dest="displays",
        action="append",
        default=[],
        metavar="CARD",
        help="a card that draws a screen; may be repeated",
    )
    command.add_argument(
        "--engine-version",
        dest="versions",
        type=_version,
        action="append",
        default=[],
        metavar="VERSION",
        help="release where the files state none: 0.11.0 is vLLM's, b11434 llama.cpp's; may be repeated",
    )
    command.add_argument(
        "--format", choices=("text", "json", "github", "sarif"), default="text", help="default text"
    )
    command.add_argument(
        "--fail-on",
        choices=("error", "warning"),
        default="error",
        help="what makes the exit status 1 (default error)",
    )


def run_check(options: argparse.Namespace) -> int:
    """Print what is wrong with what files describe; return the exit status."""
    from kvwatch.check.formats import render  # noqa: PLC0415 - help needs none of it
    from kvwatch.check.reading.declare import read  # noqa: PLC0415
    from kvwatch.check.reading.live import LiveError  # noqa: PLC0415
    from kvwatch.check.rules import check  # noqa: PLC0415

    try:
        reading = read(options.files, _given(options))
    except LiveError as error:
        print(f"kvwatch check: {error}", file=sys.stderr)
        return UNREADABLE
    declaration = _with_displays(reading.declaration, options.displays)
    if declaration is None:
        return UNREADABLE
    findings = check(declaration)
    print(render(declaration, findings, options.format), end="")
    if reading.unopened:
        names = ", ".join(reading.unopened[:8])
        print(f"kvwatch check: cannot read {names}", file=sys.stderr)
        return UNREADABLE
    return FOUND if _fails(findings, options.fail_on) else CLEAN


def _with_displays(declaration: Declaration, displays: Sequence[str]) -> Declaration | None:
    """Return the declaration with the cards that draw a screen; None, with a word, where there is no such."""
    unknown = set(displays) - {card.name for card in declaration.cards}
    if unknown:
        print(f"kvwatch check: --display: no card is called {min(unknown)!r:.60}", file=sys.stderr)
        return None
    cards = (replace(card, display=card.name in displays or None) for card in declaration.cards)
    return replace(declaration, cards=tuple(cards))


def _fails(findings: Sequence[Finding], level: str) -> bool:
    levels = {"error"} if level == "error" else {"error", "warning"}
    return any(finding.ignored is None and finding.severity in levels for finding in findings)


def _given(options: argparse.Namespace) -> Given:
    from kvwatch.check.reading.card_options import CardOption  # noqa: PLC0415
    from kvwatch.check.reading.declare import Given  # noqa: PLC0415
    from kvwatch.check.reading.live import read_live  # noqa: PLC0415

    return Given(
        cards=tuple(
            CardOption(name=name, total_bytes=total, servers=servers)
            for name, total, servers in options.cards
        ),
        versions=dict(options.versions),
        models=dict(options.models),
        live=None if options.live is None else read_live(options.live),
    )


def _card(text: str) -> tuple[str, int, tuple[str, ...]]:
    match = _CARD.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=SIZE or NAME=SIZE:SERVER,... (0=80GiB:chat)")
    total = size(match[2].strip())
    if total <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a card of no memory")
    servers = tuple(name.strip() for name in (match[3] or "").split(",") if name.strip())
    return match[1], total, servers


def _named_path(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=PATH, such as chat=/models/chat")
    return name, path


def _version(text: str) -> tuple[str, tuple[int, ...]]:
    build = _BUILD.fullmatch(text)
    if build:
        return "llamacpp", (int(build[1]),)
    release = _RELEASE.fullmatch(text)
    if release is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give vLLM's release (0.11.0) or llama.cpp's build (b11434)"
        )
    return "vllm", tuple(int(part or 0) for part in release.groups())
