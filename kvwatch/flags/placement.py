"""Which words of a command set which field of `Launch`: for those who point at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.flags import llamacpp, llamacpp_names, llamacpp_options, vllm_argv, vllm_names, vllm_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MODELS = frozenset(llamacpp_options.MODEL_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """One option of a command: `words` of the command from `position` on.

    `fields` are those it sets, none where no field stands for it; `named` is its full name.
    """

    position: int
    words: int
    named: str
    fields: tuple[str, ...] = ()


def stated(engine: str, argv: Sequence[str]) -> Iterator[Stated]:
    """Yield the options among the words of an engine's command, in order."""
    return _vllm(argv) if engine == "vllm" else _llamacpp(argv)


def takes_value(engine: str, word: str) -> bool:
    """Say whether the word behind an option belongs to it for certain."""
    if not word.startswith("-") or (engine == "vllm" and "=" in word):
        return False
    if engine == "vllm":
        given = vllm_argv.split([word, "x"]).given
        known = vllm_names.SINGLES | vllm_names.FORMER_SINGLES | vllm_names.MANIES | vllm_names.OPTIONALS
        return bool(given) and len(given[0].words) == 1 and (given[0].name in known or "." in given[0].name)
    name = word.replace("_", "-") if word.startswith("--") else word
    return name in llamacpp_names.SINGLES or name in llamacpp_names.PAIRS


def variable_fields(engine: str) -> dict[str, tuple[str, ...]]:
    """Return the environment variables that set fields."""
    found: dict[str, tuple[str, ...]] = {"CUDA_VISIBLE_DEVICES": ("visible_devices",)}
    if engine == "llamacpp":
        found |= {
            option.variable: _settled(option.field) for option in llamacpp_options.OPTIONS if option.variable
        }
    return found


def config_fields(key: str) -> tuple[str, ...]:
    """Return the fields that a key of vLLM's configuration file sets."""
    given = vllm_argv.split([f"--{key}", "x"]).given
    option = vllm_options.BY_NAME.get(given[0].name) if given else None
    return (option.field,) if option else ()


def is_config_key(key: str) -> bool:
    """Say whether vLLM has an option of that name."""
    names = (
        vllm_names.BOOLEANS
        | vllm_names.FLAGS
        | vllm_names.SINGLES
        | vllm_names.MANIES
        | vllm_names.OPTIONALS
        | vllm_names.FORMER_BOOLEANS
        | vllm_names.FORMER_SINGLES
        | vllm_names.FORMER_MANIES
    )
    return f"--{key.replace('_', '-')}" in names


def _vllm(argv: Sequence[str]) -> Iterator[Stated]:
    position = 0
    for given in vllm_argv.split(argv).given:
        size = len(given.tokens)
        # Words that belong to no option stand between.
        while position < len(argv) and tuple(argv[position : position + size]) != given.tokens:
            position += 1
        option = vllm_options.BY_NAME.get(given.name)
        fields = (option.field,) if option else ()
        yield Stated(position=position, words=size, named=given.name, fields=fields)
        position += size


def _llamacpp(argv: Sequence[str]) -> Iterator[Stated]:
    for position, name, tokens in llamacpp.split(argv):
        option = llamacpp_options.BY_NAME.get(name)
        fields = _settled(option.field) if option else ()
        yield Stated(position=position, words=len(tokens), named=name, fields=fields)


def _settled(field: str) -> tuple[str, ...]:
    return ("model",) if field in _MODELS else (field,)
