"""`kvwatch top`: a live view in the terminal, of a daemon or of polls of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.options import duration, url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from kvwatch.config import Config

_USAGE = 2
_DAEMON = "http://127.0.0.1:9836"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `kvwatch top` to those of where to look."""
    command.add_argument(
        "--url",
        type=url,
        nargs="?",
        const=_DAEMON,
        metavar="URL",
        help=f"show a running daemon (without URL: {_DAEMON}) in place of polling from here",
    )
    command.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="certificates to trust, for an https URL"
    )
    command.add_argument("--user", metavar="NAME", help="of a daemon that asks for a password")
    command.add_argument(
        "--password-file", type=Path, metavar="FILE", help="holds the password of --user; read anew each time"
    )
    command.add_argument(
        "--interval", type=duration, metavar="TIME", help="time between polls of its own (default 5s)"
    )
    command.add_argument(
        "--glyphs",
        choices=("auto", "ascii", "utf-8"),
        default="auto",
        help="characters of bars (auto: Unicode only where the locale is UTF-8)",
    )
    command.add_argument(
        "--color",
        choices=("auto", "never"),
        default="auto",
        help="never, as the variable NO_COLOR: bold and reverse only; nothing is told by colour alone",
    )


def run_top(options: argparse.Namespace, load: Callable[[], Config | None]) -> int:
    """Show the view until it is ended; return the exit status."""
    if options.url and (options.config or options.server or not options.discovery or options.interval):
        print("kvwatch top: --url shows a daemon, which has its own configuration", file=sys.stderr)
        return _USAGE
    if not options.url and (options.ca_file or options.user or options.password_file):
        print("kvwatch top: --ca-file, --user and --password-file belong to --url", file=sys.stderr)
        return _USAGE
    if bool(options.user) != bool(options.password_file):
        print("kvwatch top: --user and --password-file belong together", file=sys.stderr)
        return _USAGE
    config = None
    if not options.url:
        config = load()
        if config is None:
            return _USAGE
    return _show(options, config)


def _show(options: argparse.Namespace, config: Config | None) -> int:
    import asyncio  # noqa: PLC0415

    from kvwatch.logs import set_up_logging  # noqa: PLC0415
    from kvwatch.top.daemon_page import Daemon  # noqa: PLC0415
    from kvwatch.top.feed import Feed  # noqa: PLC0415
    from kvwatch.top.live import Live  # noqa: PLC0415
    from kvwatch.top.origins import ask_daemon, poll_here, refresh_of  # noqa: PLC0415

    try:
        from kvwatch.top.terminal import Terminal, TerminalError, first_environment, glyphs_for  # noqa: PLC0415
    except ImportError as error:  # a Python that was built without it
        print(f"kvwatch top: this Python has no curses: {error}", file=sys.stderr)
        return _USAGE

    set_up_logging("logfmt", "critical")  # the view says what is not known, and lines would spoil it
    glyphs = glyphs_for(options.glyphs, first_environment())
    colour = options.color == "auto" and not os.environ.get("NO_COLOR")
    if config is None:
        daemon = Daemon(
            url=options.url,
            ca_file=options.ca_file,
            user=options.user,
            password_file=options.password_file,
        )
        answers = ask_daemon(daemon)
        feed = Feed(origin=options.url, refresh_seconds=refresh_of(None))
    else:
        answers = poll_here(config)
        feed = Feed(origin="polls of its own", refresh_seconds=config.interval_seconds)

    async def show(terminal: Terminal) -> int:
        return await Live(terminal, answers, feed).run()

    try:
        with Terminal(glyphs, colour=colour) as terminal:
            return asyncio.run(show(terminal))
    except TerminalError as error:
        print(f"kvwatch top: {error}", file=sys.stderr)
        return _USAGE
