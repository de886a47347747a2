"""Which layers of a model have a window, a recurrent state, an indexer: file keys and built-in rules.

Follows `load_swa_pattern` and `set_swa_pattern` (`src/llama-model.cpp`, `src/llama-hparams.cpp`) and the
`load_arch_hparams` of `src/models/*.cpp` of b11434.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.llamacpp_keys import Keys, by_layer
from kvwatch.cost.llamacpp_rules import Indexer, Pattern, Presence, Recurrence, Window
from kvwatch.readings import Reason

if TYPE_CHECKING:
    from kvwatch.cost.llamacpp_rules import Architecture

LONG_CONTEXT = 1_048_576
LONG_CONTEXT_INDEXERS = (1, 1) + (1, 0, 0, 0) * 19
"""Layers that own an indexer in files of the long-context release, which carry no flags (`glm-dsa.cpp`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFields:
    """The window in force: its size in tokens and the layers that have it."""

    size: int
    chunked: bool
    flags: tuple[bool, ...]


def window_fields(
    keys: Keys, rules: Architecture, layers: int, trunk: int, recurrent: tuple[bool, ...]
) -> WindowFields | None:
    """Return the window in force, None where every layer attends to everything."""
    window = rules.window
    if rules.streams_window and keys.whole("hyper_connection.count", 0):
        window = Window(pattern=Pattern.ALL)
    if window is None or (window.only_layers is not None and trunk != window.only_layers):
        return None
    name = "attention.sliding_window"
    match window.presence:
        case Presence.REQUIRED:
            size = keys.required(name)
        case Presence.DEFAULTED:
            size = keys.whole(name, window.size or 0)
        case Presence.OPTIONAL | Presence.UNLESS_ZERO:
            absent = 1 if window.presence is Presence.UNLESS_ZERO else 0
            size = keys.whole(name, absent)
            if not size:
                return None
            size = size if window.size is None else window.size
    flags = _window_flags(keys, window, layers, trunk, recurrent)
    return WindowFields(size=size, chunked=window.chunked, flags=flags)


def _window_flags(
    keys: Keys, window: Window, layers: int, trunk: int, recurrent: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Return which layers have the window (`load_swa_pattern`, `set_swa_pattern`)."""
    name = "attention.sliding_window_pattern"
    if window.pattern is Pattern.ALL:
        return (True,) * layers
    if window.pattern is Pattern.ATTENTION_LAYERS:
        return by_layer(layers, lambda index: index < trunk and not recurrent[index])
    flags = keys.flags(name, layers)
    if flags is None and window.pattern is Pattern.ARRAY:
        raise keys.refuse(name, "one flag a layer is required")
    if flags is None:
        period = keys.whole(name, window.period)
        full = 0 if window.dense_first else period - 1
        flags = by_layer(layers, lambda index: index < trunk and (not period or index % period != full))
    if not any(flags):
        raise keys.refuse(name, "no layer has the window: the engine stops", Reason.NOT_SUPPORTED)
    return flags


def recurrent_layers(
    keys: Keys,
    rules: Architecture,
    layers: int,
    trunk: int,
    kv_heads: tuple[int, ...],
    feed_forward: tuple[int, ...],
) -> tuple[bool, ...]:
    """Return which layers hold a recurrent state."""
    match rules.recurrence:
        case Recurrence.NONE:
            return (False,) * layers
        case Recurrence.ALL:
            return (True,) * layers
        case Recurrence.NO_KV_HEADS:
            return by_layer(layers, lambda index: index < trunk and not kv_heads[index])
        case Recurrence.NO_KV_HEADS_NO_FFN:
            return by_layer(
                layers, lambda index: index < trunk and not kv_heads[index] and not feed_forward[index]
            )
        case Recurrence.INTERVAL:
            flags = keys.per_layer("attention.recurrent_layers", layers)
            if flags is not None:
                return tuple(bool(flag) for flag in flags)
            interval = keys.whole("full_attention_interval", rules.interval)
            if not interval:
                raise keys.refuse("full_attention_interval", "0 is no interval")
            return by_layer(layers, lambda index: index < trunk and (index + 1) % interval != 0)


def indexer_layers(
    keys: Keys, rules: Architecture, layers: int, trunk: int, context_train: int
) -> tuple[bool, ...]:
    """Return which layers own an indexer."""
    name = "attention.indexer.types"
    match rules.indexer:
        case Indexer.NONE:
            return (False,) * layers
        case Indexer.ALL:
            return (True,) * layers
        case Indexer.AFTER_DENSE:
            dense = keys.whole("leading_dense_block_count", 0)
            return by_layer(layers, lambda index: index >= dense)
        case Indexer.FLAGS:
            flags = keys.flags(name, layers)
            if flags is None:
                raise keys.refuse(name, "one flag a layer is required")
            return flags
        case Indexer.FLAGS_OR_ALL:
            default = (True,) * layers
        case Indexer.FLAGS_OR_LENGTH:
            built_in = (*LONG_CONTEXT_INDEXERS, *(0,) * layers)[:layers]
            default = (True,) * layers if context_train < LONG_CONTEXT else tuple(map(bool, built_in))
        case Indexer.FLAGS_IF_TOP_K:
            if not keys.whole("attention.indexer.top_k", 0):
                return (False,) * layers
            default = (False,) * layers
    own = keys.per_layer(name, trunk)
    return default if own is None else (*(bool(flag) for flag in own), *default[trunk:])
