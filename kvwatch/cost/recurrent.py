"""Recurrent layers beside attention layers: what the families of hybrids have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.cost.attention import Reading, attention_layer, hidden_layers
from kvwatch.cost.spec import Layer, LayerKind
from kvwatch.cost.windows import model_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kvwatch.cost.attention import Heads
    from kvwatch.cost.fields import Fields
    from kvwatch.cost.states import State

RECURRENT_TYPES = frozenset({"mamba", "linear_attention", "conv", "short_conv", "mamba2"})
ATTENTION_TYPES = frozenset({"attention", "full_attention"})


def state_layer(index: int, state: State) -> Layer:
    """Return a recurrent layer."""
    return Layer(
        kind=LayerKind.RECURRENT, index=index, state=state.parts, checkpoint_blocks=state.checkpoint_blocks
    )


def alternate(fields: Fields, heads: Heads, state: State, attention: Collection[int], count: int) -> Reading:
    """Return a hybrid whose layers are either attention (those listed) or recurrent."""
    windows = model_windows(fields, count)
    layers = [
        attention_layer(index, heads, windows[index]) if index in attention else state_layer(index, state)
        for index in range(count)
    ]
    return Reading(
        layers=tuple(layers), hidden_layers=count, attention_heads=heads.query, state_chunk=state.chunk
    )


def typed_layers(fields: Fields, count: int, *names: str) -> list[int]:
    """Return the layers that a list of types calls attention; an unknown type is refused."""
    types = fields.listed(count, *names)
    for kind in types:
        if kind not in RECURRENT_TYPES and kind not in ATTENTION_TYPES:
            raise fields.missing(names[0], f"layer type {kind} is not known")
    return [index for index, kind in enumerate(types) if kind in ATTENTION_TYPES]


def pure(state_of: Callable[[Fields], State]) -> Callable[[Fields], Reading]:
    """Return the rule of a model with recurrent layers only; the engine caches no prefixes for it."""

    def read(fields: Fields) -> Reading:
        count = hidden_layers(fields)
        state = state_of(fields)
        return Reading(
            layers=tuple(state_layer(index, state) for index in range(count)),
            hidden_layers=count,
            attention_heads=0,
            prefix_caching=False,
            state_chunk=state.chunk,
        )

    return read
