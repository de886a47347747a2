"""What a `llama-server` was told: its words over its environment over its build's defaults.

Read in `common/arg.cpp` (common_params_parse_ex): no `--name=value`, no abbreviations, a word behind an
option that takes a value always is that value, an integer ends where its digits end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvwatch.flags import llamacpp_names as names
from kvwatch.flags import values
from kvwatch.flags.llamacpp_options import (
    BY_NAME,
    MODEL_FIELDS,
    OPTIONS,
    PRESETS,
    defaults,
    is_modern,
)
from kvwatch.flags.llamacpp_pool import settle_pool
from kvwatch.flags.options import Statements
from kvwatch.flags.programs import base_name, find
from kvwatch.flags.word_list import word_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvwatch.flags.command import Command
    from kvwatch.flags.launch import Launch

ENGINE = "llamacpp"

_PROGRAMS = frozenset({"llama-server", "llama-server.exe"})
_NUMBER = re.compile(r"-\d+(\.\d+)?")
_FLASH_WORDS = word_set("on off auto enabled disabled true false 1 0 -1")
_PREFIX, _NEGATIVE_PREFIX = "LLAMA_ARG_", "LLAMA_ARG_NO_"
_NAMES = names.FLAGS | names.SINGLES | names.PAIRS
_FIELDS = frozenset(option.field for option in OPTIONS)
_DRAFT_FIELDS = frozenset(field for field in _FIELDS if field.startswith("draft_"))


def recognises(command: Command) -> bool:
    """Say whether a command starts a llama-server, a router or one of its children."""
    return find(command.argv, _server_words) is not None


def parse(
    command: Command,
    *,
    version: tuple[int, ...] | None,
    config_text: Callable[[str], str] | None = None,  # noqa: ARG001 -- one signature for all engines
) -> Launch:
    """Return what the server was told; ValueError where the command starts none.

    `version` is the build, (11434,); None where the server does not say it: then only defaults that never
    changed count. A build that a feature of its pages proves, as a lower bound, is as good.
    """
    words = find(command.argv, _server_words)
    if words is None:
        raise ValueError("not the command of a llama-server")
    statements = Statements()
    applied = defaults(version)
    _take_environment(statements, command.environ)
    _take_words(statements, words)
    _settle_model(statements)
    _settle_address(statements)
    _settle_draft(statements, applied)
    _settle_sleep(statements)
    settle_pool(statements, applied, modern=is_modern(version))
    return statements.launch(ENGINE, applied)


def _server_words(words: Sequence[str]) -> Sequence[str] | None:
    program, *rest = words
    if base_name(program) in _PROGRAMS:
        return rest
    return rest[1:] if base_name(program) == "llama" and rest[:1] == ["serve"] else None


def _take_environment(statements: Statements, environ: Mapping[str, str]) -> None:
    """State what the variables say; `LLAMA_ARG_NO_X` with any value negates what has a negative spelling."""
    rest = dict(environ)
    devices = rest.pop("CUDA_VISIBLE_DEVICES", None)
    if devices is not None:
        statements.put("visible_devices", devices)
    for option in OPTIONS:
        if option.variable is None:
            continue
        word = rest.pop(option.variable, None)
        if option.negatives:
            negative = option.variable.replace(_PREFIX, _NEGATIVE_PREFIX, 1)
            word = "0" if rest.pop(negative, None) is not None else word
        if word is None:
            continue
        if option.read is not None:
            statements.state(option, (word,))
        elif not option.negatives:
            # A flag without a negative spelling takes no notice of any other word.
            if word in ("on", "enabled", "true", "1"):
                statements.state(option, ())
        else:
            try:
                statements.state(option, (), negated=not values.switch(word))
            except ValueError as error:
                statements.doubt((option.field,), f"{option.variable}: {error}")
    for name, value in sorted(rest.items()):
        if name.startswith(_PREFIX):
            _doubt_draft(statements, name)
            statements.keep((f"{name}={value}",))


def _doubt_draft(statements: Statements, name: str) -> None:
    """Take no default for granted where another build's name speaks of drafts: those names moved most."""
    if re.search("draft|spec", name, re.IGNORECASE):
        statements.doubt(_DRAFT_FIELDS, f"{name}: not known")


def split(words: Sequence[str]) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield each option: its position, its name spelled with dashes, and its words with its own first."""
    position = 0
    while position < len(words):
        written = words[position]
        name = _normal(written)
        taken = _taken(name, words[position + 1 :])
        yield position, name, (written, *words[position + 1 : position + 1 + taken])
        position += 1 + taken


def _take_words(statements: Statements, words: Sequence[str]) -> None:
    """State what the command line says."""
    for _, name, tokens in split(words):
        taken = len(tokens) - 1
        option = BY_NAME.get(name)
        if option is not None and option.field == "flash_attention" and not taken:
            # Until August 2025 `-fa` was a flag.
            statements.put("flash_attention", "on")
        elif option is not None:
            statements.state(option, tokens[1:], negated=name in option.negatives)
        else:
            if name in PRESETS:
                statements.doubt(_FIELDS, f"{name}: sets other options")
            elif name not in _NAMES:
                _doubt_draft(statements, name)
            statements.keep(tokens)


def _normal(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


def _taken(name: str, behind: Sequence[str]) -> int:
    """Count the words behind an option that are its values; of an unknown one, all that are no options."""
    if name in names.FLAGS or not name.startswith("-"):
        return 0
    if name in ("-fa", "--flash-attn"):
        return int(bool(behind) and behind[0] in _FLASH_WORDS)
    if name in names.SINGLES:
        return min(1, len(behind))
    if name in names.PAIRS:
        return min(2, len(behind))
    taken = 0
    for word in behind:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            break
        taken += 1
    return taken


def _settle_model(statements: Statements) -> None:
    """Make one model of the ways to name it."""
    given = [statements.values.pop(name) for name in MODEL_FIELDS if name in statements.values]
    if given:
        statements.put("model", given[0])
    if statements.doubtful.intersection(MODEL_FIELDS):
        statements.doubtful.add("model")


def _settle_address(statements: Statements) -> None:
    """Tell a Unix socket from an address."""
    host = statements.values.get("host")
    if host is not None and host.endswith(".sock") and "," not in host:
        statements.put("socket_path", host)
        statements.doubt(("host", "port"), "--host: a Unix socket")


def _settle_draft(statements: Statements, applied: dict[str, Any]) -> None:
    """Without a draft model nothing speculates by itself; with one, the type is the engine's to choose."""
    if "draft_model" not in statements.values and "draft_model" not in statements.doubtful:
        applied["draft_type"] = None


def _settle_sleep(statements: Statements) -> None:
    """Negative is never, as not given."""
    if (statements.values.get("sleep_idle_seconds") or 0) < 0:
        statements.put("sleep_idle_seconds", None)
