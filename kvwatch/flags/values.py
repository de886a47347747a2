"""Read the words of options as the engines do; ValueError, which never quotes the word, where they refuse."""

from __future__ import annotations

import json
import math
import re

from kvwatch.flags.secrets import HIDDEN

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_LEADING_INTEGER = re.compile(r"\s*([+-]?\d+)")
_LEADING_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_GIB = 1 << 30


def text(word: str) -> str:
    """Return a word that is not empty."""
    if not word or HIDDEN in word:
        raise ValueError("no value")
    return word


def integer(word: str) -> int:
    """Read an integer as Python's int does."""
    try:
        return int(word)
    except ValueError:
        raise ValueError("not an integer") from None


def count(word: str) -> int:
    """Read an integer above zero."""
    value = integer(word)
    if value <= 0:
        raise ValueError("not above zero")
    return value


def size(word: str) -> int:
    """Read an integer with a decimal (k, m, g, t) or binary (K, M, G, T) suffix.

    Only decimal suffixes allow a fraction (vLLM 0.32.0, utils/argparse_utils.py, human_readable_int).
    """
    match = _SIZE.fullmatch(word.strip())
    if match is None:
        return integer(word)
    number, suffix = match.groups()
    power = _POWERS[suffix.lower()]
    return _whole(float(number) * 1000**power) if suffix.islower() else integer(number) * 1024**power


def length(word: str) -> int | None:
    """Read a length; `auto` and -1 (vLLM 0.14) leave it to the engine."""
    return None if word.strip().lower() in ("auto", "-1") else size(word)


def ratio(word: str) -> float:
    """Read a number above 0 and at most 1."""
    value = _number(word)
    if not 0 < value <= 1:
        raise ValueError("not a ratio")
    return value


def gibibytes(word: str) -> int:
    """Read a number of GiB as bytes."""
    value = _whole(_number(word) * _GIB)
    if value < 0:
        raise ValueError("not a size")
    return value


def speculative_tokens(word: str) -> int | None:
    """Read `num_speculative_tokens` out of vLLM's `--speculative-config`; None where it is not in it."""
    try:
        value = json.loads(word)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    tokens = value.get("num_speculative_tokens") if isinstance(value, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None


def leading_integer(word: str) -> int:
    """Read the integer that a word begins with, as C++'s std::stoi does."""
    match = _LEADING_INTEGER.match(word)
    if match is None:
        raise ValueError("not an integer")
    return int(match[1])


def leading_number(word: str) -> float:
    """Read the number that a word begins with, as C++'s std::stof does."""
    match = _LEADING_NUMBER.match(word)
    if match is None:
        raise ValueError("not a number")
    return float(match[1])


def _whole(value: float) -> int:
    """Cut the fraction off a number that is one."""
    if not math.isfinite(value):
        raise ValueError("not a number")
    return int(value)


def layers(word: str) -> int:
    """Read `--n-gpu-layers`: a number, `auto` (-1) or `all` (-2) (common/arg.cpp, b11434)."""
    return {"auto": -1, "all": -2}.get(word) or leading_integer(word)


def switch(word: str) -> bool:
    """Read llama.cpp's words for true and false (common/arg.cpp, is_truthy, is_falsey)."""
    if word in ("on", "enabled", "true", "1"):
        return True
    if word in ("off", "disabled", "false", "0"):
        return False
    raise ValueError("neither on nor off")


def switch_or_auto(word: str) -> str:
    """Read on, off or auto."""
    if word in ("auto", "-1"):
        return "auto"
    return "on" if switch(word) else "off"


def names(word: str) -> tuple[str, ...]:
    """Split llama-server's comma-separated names."""
    found = tuple(dict.fromkeys(name.strip() for name in text(word).split(",") if name.strip()))
    if not found:
        raise ValueError("no value")
    return found


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError("not a number") from None
