"""Options that several commands share, and their types: a wrong value is told with what is allowed."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.config import History

T = TypeVar("T")

_SLOWEST, _FASTEST = 1.0, 36_000.0


def add_config_options(command: argparse.ArgumentParser) -> None:
    """Add what says which servers are watched."""
    command.add_argument("--config", type=Path, metavar="FILE", help="configuration file (YAML)")
    command.add_argument(
        "--server",
        type=url,
        action="append",
        metavar="URL",
        help="an inference server to watch, beside those of the file and those found; may be repeated",
    )
    command.add_argument(
        "--no-discovery",
        dest="discovery",
        action="store_false",
        help="watch only the servers that are named; do not look for others on this machine",
    )


def add_web_config_option(command: argparse.ArgumentParser) -> None:
    """Add the option that names the web configuration, also as Prometheus' exporters spell it."""
    command.add_argument(
        "--web-config-file",
        "--web.config.file",
        dest="web_config_file",
        type=Path,
        metavar="FILE",
        help="TLS, client certificates and users, in the format of Prometheus' exporters",
    )


def add_listen_option(command: argparse.ArgumentParser) -> None:
    """Add where the daemon serves."""
    command.add_argument(
        "--listen",
        type=listen,
        metavar="ADDRESS",
        help="where to serve (default 127.0.0.1:9836; port 0: any)",
    )


def url(text: str) -> str:
    """Return a server's base address."""
    from kvwatch.config_values import parse_url  # noqa: PLC0415

    return _parsed(parse_url, text)


def listen(text: str) -> object:
    """Return where to listen."""
    from kvwatch.config_values import parse_listen  # noqa: PLC0415

    return _parsed(parse_listen, text)


def add_demo_options(command: argparse.ArgumentParser) -> None:
    """Add what a demonstration is told; its defaults are those of kvwatch.demo.day."""
    add_listen_option(command)
    command.add_argument(
        "--speed",
        type=speed,
        default=360.0,
        metavar="N",
        help="simulated seconds in one real second (default 360)",
    )
    command.add_argument(
        "--from",
        dest="opening",
        type=time_of_day,
        default=8 * 3600.0,
        metavar="HH:MM",
        help="moment of the scripted day to begin with (default 08:00)",
    )


def duration(text: str) -> float:
    """Return seconds between two polls."""
    from kvwatch.config_values import duration_between  # noqa: PLC0415

    return _parsed(duration_between("200ms", "1h"), text)


def history(text: str) -> Callable[[History | None], History | None]:
    """Return what makes the configuration's history the one that is asked for."""
    from kvwatch.config import History  # noqa: PLC0415

    if text == "off":
        return lambda _: None
    path = Path(text).absolute()
    return lambda history: (history or History()).model_copy(update={"path": path})


def span(text: str) -> float:
    """Return seconds of a span of history."""
    from kvwatch.config_values import duration_between  # noqa: PLC0415

    return _parsed(duration_between("1s", "31d"), text)


def size(text: str) -> int:
    """Return bytes from a number or a size such as 12GiB."""
    from kvwatch.config_values import parse_size  # noqa: PLC0415

    return _parsed(parse_size, int(text) if text.isdecimal() else text)


def speed(text: str) -> float:
    """Return how many simulated seconds pass in a real one."""
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not _SLOWEST <= speed <= _FASTEST:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from {_SLOWEST:g} to {_FASTEST:g}")
    return speed


def time_of_day(text: str) -> float:
    """Return the seconds since midnight of a time such as 16:30."""
    try:
        hours, minutes = (int(part) for part in text.split(":"))
    except ValueError:
        hours = minutes = -1
    if not (0 <= hours < 24 and 0 <= minutes < 60):  # noqa: PLR2004 - of a day, of an hour
        raise argparse.ArgumentTypeError(f"{text!r}: give a time of the day, such as 16:30")
    return 3600.0 * hours + 60.0 * minutes


def _parsed(parse: Callable[[object], T], value: object) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
