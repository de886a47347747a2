"""The fields of a model as llama.cpp holds them after loading: file keys and built-in rules together.

Follows `llama_model_base::load_hparams` (`src/llama-model.cpp`), `load_arch_hparams` (`src/models/*.cpp`) and
`llama_hparams` (`src/llama-hparams.cpp`) of b11434.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.llamacpp_keys import MAX_LAYERS, Keys
from kvwatch.cost.llamacpp_layers import WindowFields, indexer_layers, recurrent_layers, window_fields
from kvwatch.cost.llamacpp_rules import Latent, Memory, State

if TYPE_CHECKING:
    from kvwatch.cost.llamacpp_rules import Architecture

TOKEN_SHIFTS = 2
"""States of the token shift where the file does not count them."""
COMPRESSED_RATIOS = (4, 128)
"""Tokens in a cell of the two compressed caches (`llama-kv-cache-dsv4.cpp`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFields:
    """Elements of one layer's recurrent state of one sequence: convolution, state, and embedding history."""

    conv: int = 0
    state: int = 0
    history: int = 0
    history_layers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFields:
    """Widths of one head in elements; the window's differ only where the file says so."""

    key: int
    value: int
    window_key: int
    window_value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """A loaded model's fields, one value a layer where layers differ."""

    layers: int
    """All of them, draft layers, repetitions and a router layer included."""
    trunk: int
    """Without the draft (MTP) layers behind the trunk."""
    draft_layers: int
    """0 where the layers behind the trunk are no draft head."""
    context_train: int
    causal: bool
    kv_heads: tuple[int, ...]
    feed_forward: tuple[int, ...]
    heads: HeadFields
    latent: bool
    window: WindowFields | None
    recurrent: tuple[bool, ...]
    state: StateFields
    cached: int
    """Leading layers that own a cache."""
    indexer: tuple[bool, ...]
    indexer_width: int
    """Elements of one indexer row."""
    indexer_key_width: int
    """Elements of one indexer key."""
    ratios: tuple[int, ...]
    """Tokens in one compressed cell by layer, 0 for none."""


def read_fields(keys: Keys, rules: Architecture) -> Fields:
    """Read a model's fields; raises `ModelSpecError` that names a missing or impossible one."""
    context_train = keys.required("context_length")
    width = keys.required("embedding_length")
    file_layers = keys.required("block_count")
    if not 0 < file_layers <= MAX_LAYERS:
        raise keys.refuse("block_count", f"{file_layers} is not within 1 to {MAX_LAYERS}")
    behind = keys.whole("nextn_predict_layers", 0)
    if behind > file_layers:
        raise keys.refuse("nextn_predict_layers", f"{behind} of {file_layers} layers")
    ratios = _ratios(keys, rules, file_layers)
    if rules.draft_probe and behind and not _has_draft_head(keys, file_layers - behind, ratios):
        behind = 0
    attention_heads = keys.per_layer("attention.head_count", file_layers) or (0,) * file_layers
    kv_heads = keys.per_layer("attention.head_count_kv", file_layers) or attention_heads
    feed_forward = keys.per_layer("feed_forward_length", file_layers) or (0,) * file_layers
    layers, draft_layers = file_layers, behind
    if rules.router_layer:
        layers, behind, draft_layers = file_layers - behind + 1, 1, 0
        kv_heads = (*kv_heads[: layers - 1], 1)
        feed_forward = (*feed_forward[: layers - 1], 0)
    if rules.loops_key:
        loops = keys.whole("num_loops", 1)
        if not 0 < loops * file_layers <= MAX_LAYERS or (loops > 1 and behind):
            raise keys.refuse("num_loops", f"{loops} times {file_layers} layers")
        layers, kv_heads, feed_forward = layers * loops, kv_heads * loops, feed_forward * loops
    trunk = layers - behind
    heads = _heads(keys, rules, width, attention_heads[0])
    recurrent = recurrent_layers(keys, rules, layers, trunk, kv_heads, feed_forward)
    indexer = indexer_layers(keys, rules, layers, trunk, context_train)
    key_width = keys.required("attention.indexer.key_length") if any(indexer) else 0
    return Fields(
        layers=layers,
        trunk=trunk,
        draft_layers=draft_layers,
        context_train=context_train,
        causal=keys.truth("attention.causal", absent=True),
        kv_heads=kv_heads,
        feed_forward=feed_forward,
        heads=heads,
        latent=_latent(keys, rules),
        window=window_fields(keys, rules, layers, trunk, recurrent),
        recurrent=recurrent,
        state=_state(keys, rules, width, attention_heads[0], heads.key),
        cached=_cached(keys, rules, layers),
        indexer=indexer,
        indexer_width=key_width * (rules.indexer_row if _pooled(keys, rules) else 1),
        indexer_key_width=key_width,
        ratios=ratios,
    )


def _heads(keys: Keys, rules: Architecture, width: int, attention_heads: int) -> HeadFields:
    """Return the head widths; models without attention heads have none."""
    own = rules.window is not None and rules.window.own_head_sizes
    if not attention_heads and not rules.heads_always:
        key = value = 0
    else:
        default = width // attention_heads if attention_heads else 0
        key = keys.whole("attention.key_length", default)
        value = keys.whole("attention.value_length", default)
    if rules.latent_values:
        value = keys.required("attention.kv_lora_rank")
    if own:
        window_key = keys.required("attention.key_length_swa")
        window_value = keys.required("attention.value_length_swa")
    else:
        window_key = keys.whole("attention.key_length_swa", key)
        window_value = keys.whole("attention.value_length_swa", value)
    return HeadFields(key=key, value=value, window_key=window_key, window_value=window_value)


def _latent(keys: Keys, rules: Architecture) -> bool:
    """Return whether keys and values are kept as one latent vector (`llama_hparams::is_mla`)."""
    if rules.latent is Latent.NEVER:
        return False
    names = ("attention.key_length_mla", "attention.value_length_mla")
    if rules.latent is Latent.REQUIRED:
        widths = [keys.required(name) for name in names]
    else:
        widths = [keys.whole(name, 0) for name in names]
    if bool(widths[0]) != bool(widths[1]):
        raise keys.refuse(names[0] if widths[1] else names[1], "one of the two latent widths is missing")
    return bool(widths[0])


def _cached(keys: Keys, rules: Architecture, layers: int) -> int:
    """Return how many leading layers own a cache (`llama_hparams::has_kv`)."""
    if rules.shared_layers_key:
        shared = keys.whole("attention.shared_kv_layers", 0)
        if shared >= layers:
            raise keys.refuse("attention.shared_kv_layers", f"{shared} of {layers} layers")
        return layers - shared
    return layers if rules.first_layers_only is None else min(layers, rules.first_layers_only)


def _state(keys: Keys, rules: Architecture, width: int, attention_heads: int, key: int) -> StateFields:
    """Return the size of a state (`llama_hparams::n_embd_r`, `n_embd_s`, `ple_conv_state`)."""
    match rules.state:
        case State.NONE:
            return StateFields()
        case State.WKV:
            head = keys.required("wkv.head_size")
            return StateFields(conv=keys.whole("token_shift_count", TOKEN_SHIFTS) * width, state=width * head)
        case State.SHORT_CONV:
            taps = keys.required("shortconv.l_cache")
            if not taps:
                raise keys.refuse("shortconv.l_cache", "0 taps")
            return StateFields(conv=width * (taps - 1))
        case State.DELTA_KEYS:
            kernel, head = keys.required("ssm.conv_kernel"), keys.required("kda.head_dim")
            kernel = kernel or 4
            return StateFields(
                conv=3 * (kernel - 1) * attention_heads * head, state=head * head * attention_heads
            )
        case State.LIGHTNING:
            return StateFields(state=key * key * attention_heads)
        case State.SSM | State.SSM_UNGROUPED:
            kernel, inner = keys.required("ssm.conv_kernel"), keys.required("ssm.inner_size")
            size = keys.required("ssm.state_size")
            groups = keys.required("ssm.group_count") if rules.state is State.SSM else 0
            conv = max(0, kernel - 1) * (inner + 2 * groups * size)
            history, owners = _history(keys, rules, width)
            return StateFields(conv=conv, state=size * inner, history=history, history_layers=owners)


def _history(keys: Keys, rules: Architecture, width: int) -> tuple[int, frozenset[int]]:
    """Return the size of the n-gram embedding's history and the layers that hold it."""
    owners = frozenset(keys.list_of("ple.layers") or ()) if rules.per_layer_embedding else frozenset[int]()
    if not owners:
        return 0, owners
    kernel, gram = keys.required("ple.conv_kernel"), keys.required("ple.ngram_size")
    if not kernel or not gram:
        raise keys.refuse("ple.conv_kernel", "0")
    return (kernel - 1) * gram * keys.required("hyper_connection.count") * width, owners


def _pooled(keys: Keys, rules: Architecture) -> bool:
    """Return whether the indexer keeps pooled keys beside its own."""
    if not rules.indexer_pool_key:
        return False
    ratios = keys.per_layer(rules.indexer_pool_key, keys.required("block_count"))
    return any(ratios or ())


def _ratios(keys: Keys, rules: Architecture, layers: int) -> tuple[int, ...]:
    """Return the tokens in a compressed cell by layer; a list shorter than the layers stops the engine."""
    if rules.memory is not Memory.COMPRESSED:
        return ()
    ratios = keys.list_of("attention.compress_ratios")
    if ratios is None or len(ratios) < layers:
        raise keys.refuse("attention.compress_ratios", f"a list of {layers} ratios is required")
    return ratios[:layers]


def _has_draft_head(keys: Keys, first: int, ratios: tuple[int, ...]) -> bool:
    """Return whether the draft layers' projection is in the file, from the first draft layer on."""
    name = f"blk.{first}.nextn.eh_proj.weight"
    if name in keys.tensors or keys.shards == 1:
        return name in keys.tensors
    if any(ratio in COMPRESSED_RATIOS for ratio in ratios[first:]):
        raise keys.refuse("nextn_predict_layers", f"{name} may be in another shard")
    return True
