"""The daemon's configuration: strict, typed, and with every problem of a file named at once.

Nobody but the command line and the wiring imports this module: everyone else gets plain values.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kvwatch.config_models import SECTIONS, Config, History, Server, Strict, keys_of
from kvwatch.config_problems import ConfigError, in_file_order, unknown_key, unreadable, validated
from kvwatch.config_values import Listen, name_of_url, parse_url, shown
from kvwatch.config_yaml import Document, Key, Problem, UnreadableError, parse_yaml, read_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = [
    "Config",
    "ConfigError",
    "History",
    "Listen",
    "Problem",
    "Server",
    "default_config",
    "load_config",
    "parse_config",
]


def default_config() -> Config:
    """Return what holds with no file at all: every default and no server."""
    return Config()


def load_config(path: Path, engines: Collection[str]) -> Config:
    """Read and check a file; raise `ConfigError`. `engines` are what `engine` may be beside `auto`."""
    try:
        text = read_text(path)
    except UnreadableError as error:
        problem = unreadable(str(path), error)
    else:
        return parse_config(text, str(path), engines)
    raise ConfigError((problem,))


def parse_config(text: str, file: str, engines: Collection[str]) -> Config:
    """Check the text of a file; raise `ConfigError`. Relative paths start at the folder of `file`."""
    try:
        document = parse_yaml(text)
    except UnreadableError as error:
        problems: tuple[Problem, ...] = (unreadable(file, error),)
    else:
        values = {} if document.value is None else document.value
        context = {
            "folder": Path(file).absolute().parent,
            "engines": ("auto", *(n for n in engines if n != "auto")),
        }
        config, found = validated(Config, values, context, _message)
        found += [(key, message) for key, message in _contradictions(values, document)]
        if config is not None and not found and not document.problems:
            return config
        problems = in_file_order(file, document, found)
    # Outside of every except clause, so that no traceback carries the input along.
    raise ConfigError(problems)


def _message(key: Key, kind: str, value: object, context: dict[str, Any]) -> str:
    """Say what pydantic found in this file's words."""
    match kind:
        case "value_error":
            return str(context["error"])
        case "extra_forbidden":
            return unknown_key(key, keys_of(_section(key[:-1])))
        case "missing":
            return "the key is missing; every server needs a url, such as http://127.0.0.1:8000"
        case "tuple_type":
            return f"{shown(value)} is not a list; allowed: a list of servers, each `- url: http://127.0.0.1:8000`"
    return f"{shown(value)} is not a mapping; allowed: the keys {', '.join(keys_of(_section(key)))}"


def _section(key: Key) -> type[Strict]:
    """Return the model of the mapping at a key."""
    return SECTIONS[str(key[0])] if key else Config


def _contradictions(values: Any, document: Document) -> Iterator[tuple[Key, str]]:
    """Yield what is wrong between keys that are right by themselves; works on any input."""
    if not isinstance(values, dict):
        return
    yield from _short_window(values)
    servers = values.get("servers")
    names: dict[str, int] = {}
    urls: dict[str, int] = {}
    for index, server in enumerate(servers if isinstance(servers, list) else ()):
        if not isinstance(server, dict):
            continue
        url = _parsed_url(server)
        if url is not None and url.startswith("http://") and "ca_file" in server:
            message = "the url is http, where no certificate is used; leave the key out"
            yield ("servers", index, "ca_file"), message
        if url is not None and urls.setdefault(url, index) != index:
            # Two entries for one server would count its memory and its requests twice.
            message = f"this is the url of {_place(document, urls[url])}; list each server once"
            yield ("servers", index, "url"), message
            url = None
        name = server.get("name", url and name_of_url(url))
        if isinstance(name, str) and names.setdefault(name, index) != index:
            taken = f"is the name of {_place(document, names[name])}"
            if "name" in server:
                yield ("servers", index, "name"), f"{shown(name)} {taken}; names are unique"
            else:
                yield (
                    ("servers", index, "url"),
                    f"{shown(name)}, from the url, {taken}; give one of them a name",
                )


def _parsed_url(server: dict[str, Any]) -> str | None:
    with suppress(ValueError):
        return parse_url(server.get("url"))
    return None


def _place(document: Document, index: int) -> str:
    position = document.position(("servers", index))
    return f"servers[{index}]" + (f" in line {position.line}" if position else "")


def _short_window(values: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    keys = {key: values[key] for key in ("interval", "typical_window") if key in values}
    try:
        config = Config.model_validate(keys)
    except ValidationError:
        return
    # A mean over a window needs the counters at both of its ends.
    if config.typical_window_seconds < 2 * config.interval_seconds:
        key = "typical_window" if "typical_window" in keys else "interval"
        message = "typical_window is shorter than two intervals; lengthen it or shorten the interval"
        yield (key,), message
