"""What a model keeps of every request: its cache-owning layers, as immutable values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.readings import Reason


class ModelSpecError(Exception):
    """A model file that cannot be read as a cost: says which architecture and which field.

    `reason` is UNKNOWN_ARCHITECTURE or MISSING_FIELD; no number may be derived after it.
    """

    def __init__(
        self, reason: Reason, *, architecture: str | None = None, field: str | None = None, detail: str = ""
    ) -> None:
        named = [f"architecture {architecture}"] if architecture else []
        named += [f"field {field}"] if field else []
        super().__init__(f"{reason}: " + ", ".join(named) + (f" ({detail})" if detail else ""))
        self.reason = reason
        self.architecture = architecture
        self.field = field
        self.detail = detail


class LayerKind(StrEnum):
    """How a layer's cache grows with a request."""

    FULL = "full"
    """Every token is kept."""
    WINDOW = "window"
    """The last `window` tokens are kept."""
    CHUNKED = "chunked"
    """The tokens of the current chunk of `window` tokens are kept."""
    LATENT = "latent"
    """One compressed vector for each token (MLA); never divided among ranks."""
    LATENT_WINDOW = "latent_window"
    """One compressed vector for each of the last `window` tokens."""
    INDEXER = "indexer"
    """Keys of a sparse attention's indexer, beside a latent or full layer."""
    RECURRENT = "recurrent"
    """A state of constant size for each request."""
    CROSS = "cross"
    """Keys and values of the encoder's tokens, constant while decoding."""


class StateRole(StrEnum):
    """Which option decides the element type of a part of a recurrent state."""

    CONV = "conv"
    """Model dtype, or the engine's `mamba_cache_dtype`."""
    SSM = "ssm"
    """As CONV unless the model or the engine's `mamba_ssm_cache_dtype` says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """One tensor of a recurrent state: elements = (split + groups x group_width) / ranks x rest.

    `groups` are raised to the number of ranks when that does not divide them, as heads need theirs beside
    them (vLLM 0.32.0, model_executor/layers/mamba/mamba_utils.py).
    """

    role: StateRole
    split: int
    rest: int
    groups: int = 0
    group_width: int = 0
    dtype: str | None = None
    """Element type where neither the model's nor the engine's choice counts."""
    auto_dtype: str | None = None
    """Element type where the engine's choice is `auto`."""
    replicated: bool = False
    """Every rank holds the whole tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A cache-owning layer of the whole model, not yet divided among ranks; widths in elements per head."""

    kind: LayerKind
    index: int
    """Decoder layer it belongs to: pipeline ranks are cut by it."""
    kv_heads: int = 0
    k_width: int = 0
    v_width: int = 0
    window: int | None = None
    state: tuple[StatePart, ...] = ()
    checkpoint_blocks: int = 0
    """Further state blocks of a request while a prompt is read in prefix-caching mode."""
    element_bytes: int | None = None
    """Bytes of an element that no cache dtype changes."""
    ignores_cache_dtype: bool = False
    """The layer is built without the cache dtype: it always stores the model's dtype."""
    encoder_tokens: int | None = None
    """CROSS: the most tokens an encoder hands over."""
    sink_tokens: int = 0
    """Learned sink keys kept beside every request's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as the cost rules see it."""

    architecture: str
    model_type: str | None
    dtype: str | None
    """Element type as the model file states it: bfloat16, float16, float32; None where it says nothing."""
    layers: tuple[Layer, ...]
    hidden_layers: int
    """Decoder layers, cache-owning or not: what pipeline ranks divide."""
    attention_heads: int
    max_positions: int | None
    """Longest request that the file allows, as vLLM derives it; None where the file is silent."""
    block_layer: Layer | None = None
    """The layer that the engine sizes a hybrid's block by, where it is not the first attention layer."""
    cache_dtype: str | None = None
    """Cache dtype that the checkpoint carries and the engine takes where its own is `auto`."""
    allowed_positions: int | None = None
    """A length beyond which every release refuses `max_model_len`; None where the file names none."""
    weight_bits: int | None = None
    """Bits of a quantised weight, where the checkpoint states one number; None where it is not quantised."""
    ssm_dtype: str | None = None
    """Element type of recurrent states where the engine's choice is `auto`."""
    encoder_only: bool = False
    state_chunk: int | None = None
    """Tokens that recurrent kernels read at once; None where states cannot be cached at each block."""
    prefix_caching: bool = True
    """False where the engine switches it off for this architecture."""
    pooling: bool = False
    """The architecture is served as a pooling model unless it is converted."""
