"""Find the server's own words in a command: behind interpreters, launchers and full paths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.flags.word_list import word_set

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")
_VALUED_PYTHON_FLAGS = frozenset("XW")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

# Programs that start another one and stay, or that a command in a file begins with.
_LAUNCHERS = word_set(
    """
    catchsegv conda dumb-init env exec gosu hatch ionice mamba micromamba nice nohup nsys numactl pdm pipx
    pixi poetry setsid stdbuf su-exec sudo systemd-run taskset tini time timeout uv uvx
    """
)


def base_name(word: str) -> str:
    """Return the last part of a path."""
    return word.rpartition("/")[2]


def starts_another(argv: Sequence[str]) -> bool:
    """Say whether a command's own program is a launcher: it starts the server and may stay as its parent."""
    words = (word for word in argv if not _ASSIGNMENT.match(word))
    return base_name(next(words, "")) in _LAUNCHERS


def find(argv: Sequence[str], match: Callable[[Sequence[str]], Sequence[str] | None]) -> Sequence[str] | None:
    """Return the words after the server's program; None where there is none.

    `match` is asked with the words from a possible program on (`-m MODULE` for a module).
    """
    start = 0
    while start < len(argv) and _ASSIGNMENT.match(argv[start]):
        start += 1
    if start == len(argv):
        return None
    if base_name(argv[start]) not in _LAUNCHERS:
        return _match_program(argv[start:], match)
    for position in range(start + 1, len(argv)):
        found = _match_program(argv[position:], match)
        if found is not None:
            return found
    return None


def _match_program(
    words: Sequence[str], match: Callable[[Sequence[str]], Sequence[str] | None]
) -> Sequence[str] | None:
    """Look through an interpreter to what it runs."""
    if _PYTHON.fullmatch(base_name(words[0])):
        run = _run_by_python(words[1:])
        return match(run) if run else None
    return match(words)


def _run_by_python(words: Sequence[str]) -> Sequence[str] | None:
    """Return what Python runs: a script and its words, or `-m`, the module and its words."""
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("-") or word == "-":
            return words[position - 1 :]
        if word.startswith("--"):
            position += word == "--check-hash-based-pycs"
            continue
        for index, flag in enumerate(word[1:], 2):
            if flag == "m":
                return ["-m", *filter(None, [word[index:]]), *words[position:]]
            if flag == "c":
                return None
            if flag in _VALUED_PYTHON_FLAGS:
                position += index == len(word)
                break
    return None
