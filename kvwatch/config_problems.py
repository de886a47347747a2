"""What is wrong with a configuration: every problem of a file, in its order, each with its line and key."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from kvwatch.config_values import shown
from kvwatch.config_yaml import Document, Key, Position, Problem, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Checked = TypeVar("Checked", bound=BaseModel)

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class ConfigError(Exception):
    """A configuration that was refused, with all its problems in the order of the file."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def validated(
    model: type[Checked],
    values: object,
    context: dict[str, Any],
    say: Callable[[Key, str, object, dict[str, Any]], str],
) -> tuple[Checked | None, list[tuple[Key, str]]]:
    """Return what a file holds as a model, or each complaint in the words of `say`.

    `say` gets its key, pydantic's name for its kind, the value and its context.
    """
    try:
        return model.model_validate(values, context=context), []
    except ValidationError as error:
        return None, [
            (detail["loc"], say(detail["loc"], detail["type"], detail["input"], detail.get("ctx", {})))
            for detail in error.errors(include_url=False)
        ]


def unreadable(file: str, error: UnreadableError) -> Problem:
    """Return the problem of a file that cannot be read at all."""
    return Problem(file=file, line=error.position and error.position.line, key="", message=error.message)


def unknown_key(key: Key, allowed: Sequence[str]) -> str:
    """Say that nothing is known by this name, and what is meant by it perhaps."""
    near = difflib.get_close_matches(str(key[-1]).lower().replace("-", "_"), allowed, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"unknown key; {guess}allowed: {', '.join(allowed)}"


def in_file_order(file: str, document: Document, found: Sequence[tuple[Key, str]]) -> tuple[Problem, ...]:
    """Return the problems of a document and those found in its values, by line."""
    placed = [*document.problems]
    for key, message in found:
        placed.append((key, document.position(key) or Position(1, 1), message))
    placed.sort(key=lambda item: item[1])
    return tuple(
        Problem(file=file, line=position.line, key=_spelled(key), message=message)
        for key, position, message in placed
    )


def _spelled(key: Key) -> str:
    """Spell a key as in `servers[0].url`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part if _PLAIN_KEY.fullmatch(part) else shown(part)
            text += f".{plain}" if text else plain
    return text
