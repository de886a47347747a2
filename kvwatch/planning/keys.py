"""What may be said of a server, key by key: the options of `kvwatch plan` and the keys of a plan file.

Light, since the command line is made of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from kvwatch.planning.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MOST = 10**9


class Key(NamedTuple):
    """One thing that may be said of a server; `field` is the engine's option that it sets."""

    parse: Callable[[str], Any]
    metavar: str
    text: str
    engine: str = ""
    """vllm or llamacpp; empty: of both."""
    field: str = ""


def parse_count(text: str) -> int:
    """Return a whole number from 1."""
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) <= _MOST:
        raise SpecificationError(f"{text!r} is not a count; allowed: a whole number from 1")
    return int(text)


def parse_bytes(text: str) -> int:
    """Return bytes of a number of bytes or of a size such as 6.26GiB."""
    from kvwatch.config_values import RefusedValueError, parse_size  # noqa: PLC0415 - help needs no addresses

    try:
        return parse_size(int(text) if text.isascii() and text.isdecimal() else text)
    except RefusedValueError as error:
        raise SpecificationError(str(error)) from None


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text, re.ASCII):
        raise SpecificationError(f"{text[:40]!r} is not the engine's own word, such as auto, fp8 or q8_0")
    return text


def _switch(text: str) -> bool:
    words = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
    if text not in words:
        raise SpecificationError(f"{text!r} is not a switch; allowed: yes, no")
    return words[text]


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.removeprefix("v").split(".")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise SpecificationError(f"{text!r} is not numbers with dots, such as 0.32.0")
    return tuple(map(int, parts))


def _capability(text: str) -> tuple[int, ...]:
    numbers = _numbers(text)
    if len(numbers) != 2:  # noqa: PLR2004 - major and minor
        raise SpecificationError(f"{text!r} is no compute capability; allowed: two numbers, such as 8.9")
    return numbers


def _runner(text: str) -> str:
    if text not in ("auto", "generate", "pooling"):
        raise SpecificationError(f"{text!r} is no runner; allowed: auto, generate, pooling")
    return text


def _cards(text: str) -> tuple[str, ...]:
    return tuple(text.split("+"))


KEYS: Mapping[str, Key] = {
    "length": Key(
        parse=parse_count, metavar="N", text="the longest request in tokens, prompt and answer together"
    ),
    "concurrency": Key(parse=parse_count, metavar="N", text="requests of that length to be held at once"),
    "on": Key(parse=_cards, metavar="CARD+CARD", text="its cards, one for each rank; default: all there are"),
    "weights": Key(
        parse=parse_bytes, metavar="SIZE", text="weights of one rank, where its files do not settle them"
    ),
    "working": Key(
        parse=parse_bytes,
        metavar="SIZE",
        text="activations, graphs and context of one rank, as measured on a server like it",
    ),
    "engine_version": Key(
        parse=_numbers,
        metavar="X.Y.Z",
        text="default: the newest known",
        engine="vllm",
        field="engine_version",
    ),
    "dtype": Key(parse=_word, metavar="TYPE", text="--dtype", engine="vllm", field="dtype"),
    "cache_dtype": Key(
        parse=_word, metavar="TYPE", text="--kv-cache-dtype", engine="vllm", field="cache_dtype"
    ),
    "tp": Key(parse=parse_count, metavar="N", text="tensor parallel", engine="vllm", field="tensor_parallel"),
    "pp": Key(
        parse=parse_count, metavar="N", text="pipeline parallel", engine="vllm", field="pipeline_parallel"
    ),
    "dcp": Key(
        parse=parse_count,
        metavar="N",
        text="decode context parallel",
        engine="vllm",
        field="decode_context_parallel",
    ),
    "block_size": Key(parse=parse_count, metavar="N", text="--block-size", engine="vllm", field="block_size"),
    "max_num_batched_tokens": Key(
        parse=parse_count,
        metavar="N",
        text="default: vLLM's own for a card of this size",
        engine="vllm",
        field="max_num_batched_tokens",
    ),
    "hybrid_manager": Key(
        parse=_switch,
        metavar="YES",
        text="no: --disable-hybrid-kv-cache-manager",
        engine="vllm",
        field="hybrid_manager",
    ),
    "async_scheduling": Key(
        parse=_switch,
        metavar="YES",
        text="no: --no-async-scheduling",
        engine="vllm",
        field="async_scheduling",
    ),
    "prefix_caching": Key(
        parse=_switch,
        metavar="YES",
        text="no: --no-enable-prefix-caching",
        engine="vllm",
        field="prefix_caching",
    ),
    "mamba_ssm_dtype": Key(
        parse=_word, metavar="TYPE", text="--mamba-ssm-cache-dtype", engine="vllm", field="mamba_ssm_dtype"
    ),
    "runner": Key(
        parse=_runner, metavar="NAME", text="auto, generate, pooling", engine="vllm", field="runner"
    ),
    "compute_capability": Key(
        parse=_capability,
        metavar="X.Y",
        text="of the card: 8.9 for L40S; default 9.0",
        engine="vllm",
        field="compute_capability",
    ),
    "cache_type_k": Key(
        parse=_word, metavar="TYPE", text="f16, q8_0, q4_0 ...", engine="llamacpp", field="cache_type_k"
    ),
    "cache_type_v": Key(
        parse=_word, metavar="TYPE", text="f16, q8_0, q4_0 ...", engine="llamacpp", field="cache_type_v"
    ),
    "kv_unified": Key(
        parse=_switch, metavar="YES", text="one pool for all slots", engine="llamacpp", field="kv_unified"
    ),
    "ubatch_size": Key(
        parse=parse_count, metavar="N", text="default 512", engine="llamacpp", field="ubatch_size"
    ),
    "swa_full": Key(
        parse=_switch, metavar="YES", text="yes: windows of full size", engine="llamacpp", field="swa_full"
    ),
}
