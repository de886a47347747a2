"""Kinds of rules that llama.cpp's code, not the model file, holds for an architecture."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Memory(StrEnum):
    """Which memory `create_memory` builds."""

    ATTENTION = "attention"
    """One KV cache, or a full one and a window one where a layer has a window."""
    NONE = "none"
    """No cache at all: encoders and diffusion models."""
    RECURRENT = "recurrent"
    HYBRID = "hybrid"
    """Attention over some layers, a recurrent state over others."""
    HYBRID_INDEXER = "hybrid_indexer"
    """As HYBRID with an indexer's keys beside the attention (`llama-memory-hybrid-idx.cpp`)."""
    SPARSE_LATENT = "sparse_latent"
    """Latent cache and indexer keys (`llama-kv-cache-dsa.cpp`)."""
    SPARSE_LATENT_WINDOW = "sparse_latent_window"
    """The same beside a window cache (`llama-kv-cache-dsa-iswa.cpp`)."""
    SPARSE_BLOCKS = "sparse_blocks"
    """KV cache and indexer keys with values (`llama-kv-cache-msa.cpp`)."""
    COMPRESSED = "compressed"
    """Window cache, two compressed caches and their states (`llama-kv-cache-dsv4.cpp`)."""
    SHARED = "shared"
    """A draft that reads its target's cache and stores nothing."""


class Presence(StrEnum):
    """What the code makes of the window's key."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    """Missing or 0: no window."""
    DEFAULTED = "defaulted"
    """Missing: the size built in."""
    UNLESS_ZERO = "unless_zero"
    """Only an explicit 0 switches it off."""


class Pattern(StrEnum):
    """Which layers have the window."""

    PERIOD = "period"
    """Every layer but the last (or first) of each period; the file may bring a period or one flag a layer."""
    ARRAY = "array"
    """One flag a layer, required."""
    ALL = "all"
    ATTENTION_LAYERS = "attention_layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A sliding or chunked window as the code sets it."""

    presence: Presence = Presence.REQUIRED
    size: int | None = None
    """Tokens: the default of DEFAULTED, and what overrides the file's value elsewhere."""
    pattern: Pattern = Pattern.PERIOD
    period: int = 0
    dense_first: bool = False
    chunked: bool = False
    only_layers: int | None = None
    """The window exists only in models with this many layers."""
    own_head_sizes: bool = False
    """The head sizes of window layers are required keys."""


class Recurrence(StrEnum):
    """Which layers hold a recurrent state."""

    NONE = "none"
    ALL = "all"
    NO_KV_HEADS = "no_kv_heads"
    """`head_count_kv` of the layer is 0."""
    NO_KV_HEADS_NO_FFN = "no_kv_heads_no_ffn"
    """That, and `feed_forward_length` of the layer is 0."""
    INTERVAL = "interval"
    """All but each n-th, unless the file brings one flag a layer."""


class State(StrEnum):
    """Which keys give the size of a state (`llama_hparams::n_embd_r`, `n_embd_s`)."""

    NONE = "none"
    SSM = "ssm"
    SSM_UNGROUPED = "ssm_ungrouped"
    WKV = "wkv"
    SHORT_CONV = "short_conv"
    DELTA_KEYS = "delta_keys"
    """Kimi delta attention."""
    LIGHTNING = "lightning"


class Indexer(StrEnum):
    """Which layers own an indexer."""

    NONE = "none"
    ALL = "all"
    AFTER_DENSE = "after_dense"
    """Those after `leading_dense_block_count`."""
    FLAGS = "flags"
    """One flag a layer, required."""
    FLAGS_OR_ALL = "flags_or_all"
    FLAGS_OR_LENGTH = "flags_or_length"
    """Without flags: all of them, or one in four where the training context has 1,048,576 tokens or more."""
    FLAGS_IF_TOP_K = "flags_if_top_k"
    """Flags, and no indexer at all where `attention.indexer.top_k` is missing or 0."""


class Latent(StrEnum):
    """Whether the keys of the compressed (MLA) cache are read."""

    NEVER = "never"
    OPTIONAL = "optional"
    """Older files lack them and get full keys and values."""
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The rules of one architecture."""

    memory: Memory = Memory.ATTENTION
    window: Window | None = None
    recurrence: Recurrence = Recurrence.NONE
    interval: int = 0
    state: State = State.NONE
    latent: Latent = Latent.NEVER
    latent_values: bool = False
    """The value width is `attention.kv_lora_rank`, whatever `value_length` says."""
    heads_always: bool = False
    """The head widths are read even where the first layer has no attention heads."""
    indexer: Indexer = Indexer.NONE
    indexer_row: int = 1
    """Head-sized slots of an indexer's row where its keys are pooled."""
    indexer_pool_key: str = ""
    """Key that says whether they are pooled."""
    trunk_only: bool = True
    """Draft (MTP) layers are left out of the main context's cache."""
    rollback: bool = False
    """States keep snapshots for speculative decoding (`llm_arch_supports_rs_rollback`)."""
    draft_only: bool = False
    plain_draft_heads: bool = False
    """A hybrid whose MTP context is a plain KV cache (`mtp_on_hybrid_*`)."""
    first_layers_only: int | None = None
    """Only so many leading layers own a cache."""
    shared_layers_key: bool = False
    """`attention.shared_kv_layers` trailing layers own no cache."""
    router_layer: bool = False
    """One more layer with one KV head stands behind the file's last."""
    loops_key: bool = False
    """The layers are repeated `num_loops` times, each with a cache of its own."""
    streams_window: bool = False
    """`hyper_connection.count` above 0 gives every layer a required window."""
    draft_probe: bool = False
    """Draft layers count only where their projection is in the tensor table."""
    per_layer_embedding: bool = False
    """The layers of `ple.layers` hold a history row beside their state."""
    flash_attention: bool = True
    """False: the engine switches it off for this architecture."""
