"""Split the words of `vllm serve` into options as its parser does (argparse with vLLM's additions).

Read in `utils/argparse_utils.py` (FlexibleArgumentParser) of 0.32.0: underscores in names, `--name=value`,
any unambiguous beginning of a name, dotted names for parts of JSON, `-O3`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.flags import vllm_names as names

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_BOOLEAN_WORDS = {"true": True, "false": False}
_NEGATED = {f"--no-{name[2:]}": name for name in names.BOOLEANS | names.FORMER_BOOLEANS if name[:2] == "--"}
_FLAGS = names.BOOLEANS | names.FORMER_BOOLEANS | names.FLAGS
_SINGLES = names.SINGLES | names.FORMER_SINGLES
_MANIES = names.MANIES | names.FORMER_MANIES
_ALL = frozenset(_NEGATED) | _FLAGS | _SINGLES | _MANIES | names.OPTIONALS


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One option as it stands on the command line.

    Attributes:
        name: its full name; as written where it is not known, or where `candidates` are several.
        words: its values.
        tokens: what was written.
        candidates: the names that an ambiguous beginning may stand for.

    """

    name: str
    words: tuple[str, ...]
    tokens: tuple[str, ...]
    negated: bool = False
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """All options, the words that belong to none, and whether a word may belong to an unknown option."""

    given: tuple[Given, ...]
    positionals: tuple[str, ...]
    doubtful: bool


def split(words: Sequence[str]) -> Split:
    """Split the words after `serve` or after the module."""
    given: list[Given] = []
    positionals: list[str] = []
    doubtful = False
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":
            positionals.extend(words[position:])
            break
        if not _is_option(word):
            positionals.append(word)
            continue
        written, explicit = _parts(word)
        candidates = _candidates(written)
        name = candidates[0] if len(candidates) == 1 else written
        free = _free(words, position)
        taken = _taken(name, free, explicit)
        if taken and not _is_known(name):
            # Its values, or a flag and the model behind it: only a model that stands elsewhere decides.
            doubtful = True
        tokens = (word, *words[position : position + taken])
        position += taken
        given.append(
            _given(name, explicit, tokens, candidates if len(candidates) > 1 else ()),
        )
    return Split(given=tuple(given), positionals=tuple(positionals), doubtful=doubtful)


def _given(name: str, explicit: str | None, tokens: tuple[str, ...], candidates: tuple[str, ...]) -> Given:
    words = tokens[1:] if explicit is None else (explicit,)
    negated = name in _NEGATED
    name = _NEGATED.get(name, name)
    if name in _FLAGS and words:
        # 0.8.5 also took `--enable-chunked-prefill false`.
        negated = negated is not (_BOOLEAN_WORDS.get(words[-1].lower()) is False)
    return Given(name=name, words=words, tokens=tokens, negated=negated, candidates=candidates)


def _is_option(word: str) -> bool:
    """Say whether argparse takes a word for an option."""
    if not word.startswith("-") or word == "-":
        return False
    if _parts(word)[0] in _ALL:
        return True
    return not _NEGATIVE_NUMBER.fullmatch(word) and " " not in word


def _parts(word: str) -> tuple[str, str | None]:
    """Return an option's name, spelled with dashes up to the first dot, and its value behind `=`."""
    if word.startswith("-O") and word != "-O":
        return "-O", word[2:].removeprefix("=")
    written, equals, value = word.partition("=")
    if written.startswith("--"):
        option, dot, path = written.partition(".")
        written = f"{option.replace('_', '-')}{dot}{path}"
    elif written[:2] in _ALL and written not in _ALL:
        return written[:2], word[2:].removeprefix("=")
    return written, value if equals else None


def _candidates(written: str) -> tuple[str, ...]:
    """Return the option's name, or those that begin as written; none where it is unknown."""
    option = written.partition(".")[0]
    if option in _ALL or option != written:
        return (written,)
    return tuple(sorted(name for name in _ALL if name.startswith(written)))


def _is_known(name: str) -> bool:
    return name in _ALL or "." in name


def _free(words: Sequence[str], position: int) -> int:
    """Count the words from a position on that are not options."""
    end = position
    while end < len(words) and words[end] != "--" and not _is_option(words[end]):
        end += 1
    return end - position


def _taken(name: str, free: int, explicit: str | None) -> int:
    """Count how many of the free words behind an option belong to it; an unknown one may take all."""
    if explicit is not None or name in _FLAGS or name in _NEGATED:
        return 0
    if name in _SINGLES or name in names.OPTIONALS or "." in name:
        return min(free, 1)
    return free
