"""Which layers keep a window of tokens, and how wide it is: the patterns of config.json files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvwatch.cost.fields import Fields

    Windows = Callable[[Fields, int], Sequence[int | None]]

LOCAL_TYPES = frozenset({"sliding_attention", "swa", "local_attention"})


def read_window(fields: Fields, *names: str) -> int | None:
    """Return the window in tokens; 0 and `use_sliding_window: false` mean none.

    The switch is the config class's (transformers: qwen2, qwen3, smollm3); 0 is the engine's
    (vLLM 0.32.0, config/model.py).
    """
    if fields.get("use_sliding_window") is False:
        return None
    window = fields.optional(*(names or ("sliding_window",)))
    return window or None


def model_windows(fields: Fields, count: int) -> Sequence[int | None]:
    """Return the windows of model code that knows none of its own layers'.

    The model's one window then counts for every layer; with a list of `layer_types`, for those that it calls
    sliding (vLLM 0.32.0, engine/arg_utils.py, llama.py, models/transformers/base.py).
    """
    window = read_window(fields)
    types = fields.items("layer_types")
    if window is None:
        return [None] * count
    if types is None:
        return [window] * count
    return typed_windows(fields.listed(count, "layer_types"), window)


def typed_windows(types: Sequence[object], window: int | None) -> list[int | None]:
    """Return the window of each layer that its type calls local."""
    return [window if kind in LOCAL_TYPES else None for kind in types]


def periodic(default: int, *, name: str = "", full_first: bool = False, added: int = 0) -> Windows:
    """Return a pattern rule: `layer_types` wins, else all but every n-th layer have a window.

    `name`: the field that states n; `default`: n where it is silent, 0 means that no layer has a window.
    `full_first`: the full layer comes first in each period, not last. `added`: tokens beyond the window.
    """

    def windows(fields: Fields, count: int) -> Sequence[int | None]:
        window = read_window(fields)
        if window is not None:
            window += added
        if fields.items("layer_types") is not None:
            return typed_windows(fields.listed(count, "layer_types"), window)
        period = (fields.optional(name) if name else None) or default
        if not period:
            return [None] * count
        offset = 0 if full_first else 1
        return [None if (index + offset) % period == 0 else window for index in range(count)]

    return windows


def listed_windows(fields: Fields, count: int) -> Sequence[int | None]:
    """Return the windows that `layer_types` must name."""
    if fields.items("layer_types") is None:
        raise fields.missing("layer_types")
    return periodic(0)(fields, count)


def alternating_windows(fields: Fields, count: int) -> Sequence[int | None]:
    """Return a window for every other layer, whatever `layer_types` says (0.32.0, gpt_oss.py)."""
    window = read_window(fields)
    return [window if index % 2 == 0 else None for index in range(count)]


def no_windows(fields: Fields, count: int) -> Sequence[int | None]:
    """Return full attention for every layer, for model code that takes no window."""
    del fields
    return [None] * count
