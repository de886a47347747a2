"""Recurrent states by kind of layer (vLLM 0.32.0, model_executor/layers/mamba/mamba_utils.py)."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.cost.spec import StatePart, StateRole


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The tensors of a state, and the further blocks that a prompt's checkpoints take."""

    parts: tuple[StatePart, ...]
    checkpoint_blocks: int = 0
    chunk: int | None = None
    """Tokens that the kernels read at once, for kinds whose state can be kept at every block."""


def mamba1_state(chunk: int, inner: int, state: int, conv: int) -> State:
    """Return the state of a Mamba layer: a convolution's last inputs and a state vector per channel."""
    return State(
        parts=(
            StatePart(role=StateRole.CONV, split=inner, rest=conv - 1),
            StatePart(role=StateRole.SSM, split=inner, rest=state),
        ),
        chunk=chunk,
    )


def mamba2_state(
    *, chunk: int, inner: int, groups: int, heads: int, width: int, state: int, conv: int
) -> State:
    """Return the state of a Mamba 2 layer; in prefix-caching mode its prompts keep one checkpoint more."""
    return State(
        parts=(
            StatePart(role=StateRole.CONV, split=inner, groups=groups, group_width=2 * state, rest=conv - 1),
            StatePart(role=StateRole.SSM, split=heads, rest=width * state),
        ),
        checkpoint_blocks=1,
        chunk=chunk,
    )


def delta_state(*, key_heads: int, value_heads: int, key_width: int, value_width: int, conv: int) -> State:
    """Return the state of a gated delta net."""
    channels = 2 * key_heads * key_width + value_heads * value_width
    return State(
        parts=(
            StatePart(role=StateRole.CONV, split=channels, rest=conv - 1),
            StatePart(role=StateRole.SSM, split=value_heads, rest=value_width * key_width),
        )
    )


def kimi_state(heads: int, width: int, conv: int) -> State:
    """Return the state of Kimi delta attention, 32 bits wide unless told otherwise."""
    return State(
        parts=(
            StatePart(role=StateRole.CONV, split=3 * heads * width, rest=conv - 1),
            StatePart(role=StateRole.SSM, split=heads, rest=width * width, auto_dtype="float32"),
        )
    )


def linear_state(heads: int, width: int) -> State:
    """Return the state of linear (lightning) attention: one square matrix per head."""
    return State(parts=(StatePart(role=StateRole.CONV, split=heads, rest=width * width),))


def short_conv_state(width: int, conv: int) -> State:
    """Return the state of a short convolution: its last inputs."""
    return State(parts=(StatePart(role=StateRole.CONV, split=width, rest=conv - 1),))
