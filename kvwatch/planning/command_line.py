"""The words of `kvwatch plan` as cards and servers; pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from kvwatch.planning.errors import SpecificationError
from kvwatch.planning.keys import KEYS
from kvwatch.planning.question import DEFAULT_CEILING
from kvwatch.planning.specification import (
    Request,
    cards_of,
    ceiling_of,
    checked_name,
    footprint_of,
    split_entry,
    values_of,
)

if TYPE_CHECKING:
    import argparse

    from kvwatch.planning.question import Card


def written(options: argparse.Namespace) -> tuple[tuple[Card, ...], tuple[Request, ...]]:
    """Return what the command line says."""
    ceiling = DEFAULT_CEILING if options.ceiling is None else ceiling_of(options.ceiling)
    own = {name: text for name in KEYS if (text := getattr(options, name)) is not None}
    requests: dict[str, Request] = {}
    default: str | None = None
    if options.model is not None:
        default = options.name or _short_name(options.model)
        requests[default] = Request(name=default, model=options.model, values=values_of(own, "the options"))
    elif own:
        raise SpecificationError(f"--{min(own).replace('_', '-')} is of a MODEL, and none is named")
    for text in options.server:
        name, model, pairs = split_entry(text)
        if name is None or name in requests:
            raise SpecificationError(f"--server {text}: write NAME=MODEL with a name of its own")
        requests[name] = Request(name=name, model=model, values=values_of(pairs, f"--server {name}"))
    for text in options.measured:
        name, total, pairs = split_entry(text)
        name = _named(name, default, f"--measured {text}")
        about: dict[str, str] = {key: pairs.pop(key) for key in ("length", "on") if key in pairs}
        request = requests.get(name) or Request(name=name)
        footprint = footprint_of(f"--measured {name}", total, pairs)
        values = {**values_of(about, f"--measured {name}"), **request.values}
        requests[name] = replace(request, footprint=footprint, values=values)
    for text in options.log:
        head, equals, file = text.partition("=")
        name = _named(head if equals else None, default, f"--log {text}")
        requests[name] = replace(requests.get(name) or Request(name=name), log=file if equals else text)
    return cards_of(options.card, ceiling), tuple(requests.values())


def _named(name: str | None, default: str | None, place: str) -> str:

    if name is None and default is None:
        raise SpecificationError(f"{place}: whose is it? write NAME=...")
    return checked_name(name or default or "")


def _short_name(model: str) -> str:
    """Return a server's name for a model that was given none: its folder, its file, the end of its id."""
    path = PurePath(model)
    name = path.parent.name if path.name == "config.json" else path.name.removesuffix(".gguf")
    return (
        "".join(sign if sign.isascii() and (sign.isalnum() or sign in "_.-") else "-" for sign in name)[:64]
        or "server"
    )
