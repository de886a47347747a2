"""Keep secrets out: of what is kept of a command line, of every repr, and of every message."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from kvwatch.flags import llamacpp_names, vllm_names
from kvwatch.flags.word_list import word_set

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HIDDEN = "***"
"""What stands where a secret stood; no setting is ever read from it."""

_SECRET = re.compile(r"key|token|secret|passw|passphrase|credential|auth", re.IGNORECASE)
_COUNT = re.compile(r"tokens", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(\.\d+)?[kKmMgGtT]?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.-]*=")
_USER = re.compile(r"(://)[^/@\s]+@")
# A name that ends in such a word, then a value: inside JSON, or in a whole command given to a shell.
_INSIDE = re.compile(
    r"(?:api[_-]?key|(?<![A-Za-z])(?:key|token|secret|password|passwd|passphrase|credentials?|auth\w*)|bearer)"
    r"[\"']?(?:\s*[:=]|\s+\S)",
    re.IGNORECASE,
)

HARMLESS = word_set(
    """
    --allow-credentials --cors-credentials --dbo-decode-token-threshold --dbo-prefill-token-threshold
    --enable-prompt-tokens-details --enable-tokenizer-info-endpoint --image-max-tokens --image-min-tokens
    --long-prefill-token-threshold --long-prefill-token-threshold-adaptive --max-num-batched-tokens
    --max-num-queued-tokens --max-num-scheduled-tokens --max-prompt-adapter-token --mtmd-batch-max-tokens
    --no-allow-credentials --no-cors-credentials --no-enable-prompt-tokens-details
    --no-enable-tokenizer-info-endpoint --no-long-prefill-token-threshold-adaptive
    --no-return-tokens-as-token-ids --no-skip-tokenizer-init --no-tokens-only --return-tokens-as-token-ids
    --skip-tokenizer-init --spec-tokens --tokenizer --tokenizer-mode --tokenizer-pool-extra-config
    --tokenizer-pool-size --tokenizer-pool-type --tokenizer-revision --tokens-only
    """
)
"""Options of the engines whose names sound like a secret and whose values are none."""


class _Takes(Enum):
    """How many of the tokens after an option are its value."""

    NOTHING = 0
    MAYBE_ONE = 1
    ONE = 2
    ONE_OR_MORE = 3
    REST = 4
    """All that do not look like options."""


_SECRETS = {
    "--api-key": _Takes.ONE_OR_MORE,
    "--api-key-file": _Takes.ONE,
    "--hf-token": _Takes.MAYBE_ONE,
    "-hft": _Takes.ONE,
    "--ssl-key-file": _Takes.ONE,
    "--ssl-keyfile": _Takes.ONE,
}
_SHORTEST_ABBREVIATION = len("--ap")

_NAMES = (
    vllm_names.BOOLEANS
    | vllm_names.FLAGS
    | vllm_names.SINGLES
    | vllm_names.MANIES
    | vllm_names.OPTIONALS
    | vllm_names.FORMER_BOOLEANS
    | vllm_names.FORMER_SINGLES
    | vllm_names.FORMER_MANIES
    | llamacpp_names.FLAGS
    | llamacpp_names.SINGLES
    | llamacpp_names.PAIRS
)


_COUNTERS = frozenset(name for name in HARMLESS if name.endswith(("-tokens", "-token-threshold", "-token")))


def says_secret(name: str) -> bool:
    """Say whether an option or a variable of that name may hold a secret."""
    name = _normal(name)
    return name not in HARMLESS and (bool(_SECRET.search(name)) or _takes(name) is not _Takes.NOTHING)


def without_secrets(argv: Iterable[str]) -> tuple[str, ...]:
    """Return the command line with every value that may be a secret replaced; nothing moves."""
    kept: list[str] = []
    takes, counts = _Takes.NOTHING, False
    for token in argv:
        if takes in (_Takes.ONE, _Takes.ONE_OR_MORE):
            kept.append(HIDDEN)
            takes = _Takes.REST if takes is _Takes.ONE_OR_MORE else _Takes.NOTHING
            continue
        if takes in (_Takes.MAYBE_ONE, _Takes.REST) and not _is_option(token):
            kept.append(token if counts and _NUMBER.fullmatch(token) else HIDDEN)
            takes = _Takes.NOTHING if takes is _Takes.MAYBE_ONE else takes
            continue
        takes, counts = _Takes.NOTHING, False
        name, equals, value = token.partition("=")
        if not token.startswith("-") or not says_secret(name):
            kept.append(_without_inner_secrets(token))
        elif equals:
            kept.append(token if _is_count(name) and _NUMBER.fullmatch(value) else f"{name}={HIDDEN}")
        else:
            kept.append(token)
            takes, counts = _takes(_normal(name)), _is_count(name)
            takes = _Takes.REST if takes is _Takes.NOTHING else takes
    return tuple(kept)


def without_secret_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that may hold a secret."""
    return {
        name: _without_inner_secrets(value)
        for name, value in environ.items()
        if not says_secret(name) or (_is_count(name) and _NUMBER.fullmatch(value))
    }


def _takes(name: str) -> _Takes:
    """Return how many values a known secret option takes, its abbreviations included (argparse)."""
    if name in _SECRETS:
        return _SECRETS[name]
    if name in _NAMES or len(name) < _SHORTEST_ABBREVIATION or not name.startswith("--"):
        return _Takes.NOTHING
    return next((takes for secret, takes in _SECRETS.items() if secret.startswith(name)), _Takes.NOTHING)


def _normal(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def _is_count(name: str) -> bool:
    """Say whether the name, or what it may abbreviate, counts tokens: there a number is no secret."""
    name = _normal(name)
    return not _SECRET.search(_COUNT.sub("", name)) or any(known.startswith(name) for known in _COUNTERS)


def _is_option(token: str) -> bool:
    """Say whether a token behind a secret's name is another option rather than the secret itself."""
    return token.startswith("--") or token.partition("=")[0] in _NAMES


def _without_inner_secrets(token: str) -> str:
    """Hide a user in an address, an assigned secret, and text that names a secret inside."""
    assignment = _ASSIGNMENT.match(token)
    if assignment and says_secret(assignment[0]):
        return f"{assignment[0]}{HIDDEN}"
    if _INSIDE.search(token):
        return HIDDEN
    return _USER.sub(rf"\1{HIDDEN}@", token)
