"""Read files of variables as their readers do: docker's `--env-file`, compose's `.env`, systemd's."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Place
from kvwatch.check.reading.expansion import Variables, value_of
from kvwatch.check.reading.shell_lexer import whole
from kvwatch.check.reading.words import Word, lines_of

if TYPE_CHECKING:
    from kvwatch.check.reading.given_files import GivenFile

MAX_VARIABLES = 5_000
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=(.*)", re.ASCII)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_COMMAND = re.compile(r"\s(?:\S*/)?(?:vllm|llama-server|python3?|exec|nohup|docker|podman)\s")


class Style(Enum):
    """Who reads the file: it decides what quotes and `$` mean."""

    DOCKER = "docker"
    """`docker run --env-file`: a value is all that stands behind `=`."""
    COMPOSE = "compose"
    """Quotes are taken off, variables of the same file replaced."""
    SYSTEMD = "systemd"
    """Quotes are taken off, nothing is replaced."""


def looks_like_variables(text: str) -> bool:
    """Say whether every line that says something sets a variable to something a shell would not run."""
    if text.startswith("#!"):
        return False
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("#", ";"))]
    return bool(lines) and all(_LINE.fullmatch(line) for line in lines) and not _runs(lines)


def _runs(lines: list[str]) -> bool:
    """Say whether a line runs a command behind its assignments, as `A=1 vllm serve` does."""
    values = [match[2] for line in lines if (match := _LINE.fullmatch(line))]
    return any(_COMMAND.search(_QUOTED.sub("", value)) for value in values) or any(
        line.endswith("\\") for line in lines
    )


def read_variables(file: GivenFile, style: Style) -> dict[str, Word]:
    """Return the variables that a file sets, the last one of a name winning."""
    found: dict[str, Word] = {}
    for number, line in enumerate(file.text.split("\n"), 1):
        if line.lstrip().startswith(("#", ";")):
            continue
        match = _LINE.fullmatch(line)
        if match is None or len(found) >= MAX_VARIABLES:
            continue
        place = Place(file=file.name, line=number)
        found[match[1]] = _value(match[2], place, style, found)
    return found


def _value(written: str, place: Place, style: Style, known: dict[str, Word]) -> Word:
    if style is Style.DOCKER:
        return Word(text=written, place=place)
    text = written.strip()
    quote = text[:1] if text[:1] in ("'", '"') else ""
    end = text.find(quote, 1) if quote else -1
    if end > 0:
        text = text[1:end]
    elif style is Style.COMPOSE:
        text = re.split(r"\s#", text, maxsplit=1)[0].strip()
    if style is Style.SYSTEMD or quote == "'":
        return Word(text=text, place=place)
    lines = lines_of("", place.line or 1)
    return value_of(whole(text), Variables(values=known), place.file, lines)
