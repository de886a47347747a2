"""Rules about what a model's own dimensions make of the settings: lengths, ranks, types, blocks, windows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.check.rule import Hit
from kvwatch.check.slot_sizing import context_may_shrink
from kvwatch.check.vllm_sizing import given
from kvwatch.cost.llamacpp import LlamaOptionsError, allocate
from kvwatch.cost.spec import LayerKind
from kvwatch.cost.vllm import OptionError, plan_blocks
from kvwatch.plan import GgufModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.check.evidence import Evidence
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm import BlockPlan, VllmOptions

_FOUR_BITS = 4
_LONG_TOKENS = 32_768
_PART = 0.25
"""Of the weights: below it halving the cache of a request is no gain worth a finding."""
_SIXTEEN_BITS = frozenset({"auto", "bfloat16", "float16", "half"})
_HEADED = frozenset({LayerKind.FULL, LayerKind.WINDOW, LayerKind.CHUNKED})
_LATENT = frozenset({LayerKind.LATENT, LayerKind.LATENT_WINDOW})
_STRETCHING = ("--hf-overrides", "--hf-config-path", "--rope-scaling")
_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"


def length_over_model(evidence: Evidence) -> Iterator[Hit]:
    """Find lengths beyond the model's own, which vLLM refuses (0.32.0, config/model.py)."""
    for server, sizing in evidence.vllm():
        launch, spec = server.launch, sizing.spec
        length = launch.full_length_tokens
        if spec is None or length is None or "full_length_tokens" not in launch.stated:
            continue
        most = spec.allowed_positions
        if most is None or spec.pooling or length <= most or given(launch, _STRETCHING) is not None:
            continue
        if any(tokens[0].startswith("VLLM_ALLOW_LONG_MAX_MODEL_LEN") for tokens in launch.unknown):
            continue
        yield Hit(
            message=(
                f"{server.name} does not start: --max-model-len {length:,} is beyond the model's own"
                f" {most:,} by {length - most:,}. Set it to {most:,} or less; {_ALLOWED} lets it start"
                f" and answer nonsense past {most:,}."
            ),
            place=server.where("full_length_tokens"),
            servers=(server.name,),
            numbers={"full_length_tokens": length, "max_positions": most},
        )


def ranks_replicate_cache(evidence: Evidence) -> Iterator[Hit]:
    """Find tensor-parallel ranks that keep copies of the cache: more ranks than KV heads, or one latent."""
    for server, sizing in evidence.vllm():
        spec, options, plan = sizing.spec, sizing.options, sizing.plan
        if spec is None or options is None or plan is None or options.tensor_parallel == 1:
            continue
        ranks, heads = options.tensor_parallel, _heads(spec)
        if heads is None or ranks <= heads or not plan.groups:
            continue
        whole = _at(spec, replace(options, tensor_parallel=1, decode_context_parallel=1))
        alike = _at(spec, replace(options, tensor_parallel=heads, decode_context_parallel=1))
        if whole is None or alike is None or options.decode_context_parallel > 1:
            continue
        if plan.bytes_per_token < alike.bytes_per_token:
            continue  # the layers that grow are still divided
        latent = any(layer.kind in _LATENT for layer in spec.layers)
        kept = "a latent cache is never divided" if latent else f"the model has {heads} KV heads"
        yield Hit(
            message=(
                f"{server.name}: {ranks} tensor-parallel ranks, and {kept}: each entry is kept"
                f" {ranks // heads} times. A token takes {plan.bytes_per_token:,.0f} bytes on each rank, as"
                f" with {heads} {'rank' if heads == 1 else 'ranks'}; divided by {ranks} it would be"
                f" {whole.bytes_per_token / ranks:,.0f}. More requests fit with --tensor-parallel-size"
                f" {heads} --data-parallel-size {ranks // heads} if the weights do, or with"
                f" --decode-context-parallel-size {ranks // heads}."
            ),
            place=server.where("tensor_parallel"),
            servers=(server.name,),
            numbers={
                "tensor_parallel": ranks,
                "kv_heads": heads,
                "bytes_per_token": plan.bytes_per_token,
                "copies": ranks // heads,
            },
        )


def _heads(spec: ModelSpec) -> int | None:
    """Return the fewest KV heads of its layers: a latent vector counts as one."""
    if any(layer.kind in _LATENT for layer in spec.layers):
        return 1
    return min((layer.kv_heads for layer in spec.layers if layer.kind in _HEADED), default=None)


def _at(spec: ModelSpec, options: VllmOptions) -> BlockPlan | None:
    try:
        return plan_blocks(spec, options)
    except OptionError:
        return None


def small_weights_wide_cache(evidence: Evidence) -> Iterator[Hit]:
    """Find 4-bit weights whose long requests keep a cache of 16 bits."""
    for server, sizing in evidence.vllm():
        spec, options, plan = sizing.spec, sizing.options, sizing.plan
        if spec is None or options is None or plan is None or spec.weight_bits != _FOUR_BITS:
            continue
        full, model = plan.full_length or 0, server.model
        if full < _LONG_TOKENS or spec.cache_dtype is not None or options.cache_dtype not in _SIXTEEN_BITS:
            continue
        now = plan.resident_blocks(full) * plan.bytes_per_block
        halved = _at(spec, replace(options, cache_dtype="fp8"))
        weights = getattr(getattr(model, "weights", None), "total_bytes", None)
        if halved is None or weights is None:
            continue
        weights_each = weights // (options.tensor_parallel * options.pipeline_parallel)
        then = halved.resident_blocks(full) * halved.bytes_per_block
        if now < _PART * weights_each or then >= now:
            continue
        yield Hit(
            message=(
                f"{server.name}: the weights have 4 bits ({size(weights_each)} a rank), the KV cache 16: one"
                f" request of {full:,} tokens takes {size(now)}, {now / weights_each:.0%} of the weights."
                f" --kv-cache-dtype fp8 makes it {size(then)}, where the card and the model allow it."
            ),
            place=server.where("cache_dtype", "full_length_tokens"),
            servers=(server.name,),
            numbers={"weights_bytes": weights_each, "request_bytes": now, "request_fp8_bytes": then},
        )

    yield from _small_gguf(evidence)


def _small_gguf(evidence: Evidence) -> Iterator[Hit]:
    for server, sizing in evidence.llamacpp():
        pool, options, model = sizing.pool, sizing.options, server.model
        if pool is None or options is None or sizing.model is None or not isinstance(model, GgufModel):
            continue
        bits, weights = model.bits_per_weight, model.weights
        if bits is None or weights is None or bits >= _FOUR_BITS + 1 or pool.slot_limit_tokens < _LONG_TOKENS:
            continue
        if (options.cache_type_k, options.cache_type_v) != ("f16", "f16") or context_may_shrink(sizing):
            continue
        try:
            then = allocate(
                sizing.model, replace(options, cache_type_k="q8_0", cache_type_v="q8_0")
            ).total_bytes
        except LlamaOptionsError:
            continue
        if pool.total_bytes < _PART * weights.total_bytes or then >= pool.total_bytes:
            continue
        yield Hit(
            message=(
                f"{server.name}: the weights have {bits:.1f} bits each ({size(weights.total_bytes)}), the KV"
                f" cache 16: {pool.n_ctx:,} cells take {size(pool.total_bytes)},"
                f" {pool.total_bytes / weights.total_bytes:.0%} of the weights. -ctk q8_0 -ctv q8_0 makes it"
                f" {size(then)}."
            ),
            place=server.where("cache_type_k", "ctx_size"),
            servers=(server.name,),
            numbers={
                "weights_bytes": weights.total_bytes,
                "pool_bytes": pool.total_bytes,
                "pool_q8_0_bytes": then,
            },
        )


def window_kept_whole(evidence: Evidence) -> Iterator[Hit]:
    """Find windows that are paid for as if every token were kept."""
    for server, sizing in evidence.vllm():
        spec, options, plan = sizing.spec, sizing.options, sizing.plan
        if spec is None or options is None or plan is None or options.hybrid_manager or not plan.full_length:
            continue
        better = _at(spec, replace(options, hybrid_manager=True))
        if better is None or not any(layer.window for layer in spec.layers):
            continue
        full = plan.full_length
        now = plan.resident_blocks(full) * plan.bytes_per_block
        then = better.resident_blocks(full) * better.bytes_per_block
        if then >= now:
            continue
        yield Hit(
            message=(
                f"{server.name}: without the hybrid KV cache manager the model's window layers keep every"
                f" token: a request of {full:,} tokens holds {size(now)}, with it {size(then)},"
                f" {now / then:.1f} times less. Drop --disable-hybrid-kv-cache-manager."
            ),
            place=server.where("hybrid_manager"),
            servers=(server.name,),
            numbers={"request_bytes": now, "request_hybrid_bytes": then},
        )
    for server, slots in evidence.llamacpp():
        pool, model = slots.pool, slots.model
        if pool is None or model is None or server.launch.swa_full is not True or not model.window:
            continue
        windowed = [cache for cache in pool.caches if cache.kind in (LayerKind.WINDOW, LayerKind.CHUNKED)]
        held = sum(cache.k_bytes + cache.v_bytes for cache in windowed)
        if not windowed:
            continue
        yield Hit(
            message=(
                f"{server.name}: --swa-full makes the window of {model.window:,} tokens as long as the"
                f" context: {size(held)} of {size(pool.total_bytes)}. Drop it unless prompts must be"
                f" reused from before the window."
            ),
            place=server.where("swa_full"),
            servers=(server.name,),
            numbers={"window_bytes": held, "pool_bytes": pool.total_bytes},
        )


def block_size_grows(evidence: Evidence) -> Iterator[Hit]:
    """Find block sizes that are not what was asked for, or so large that short requests waste them."""
    for server, sizing in evidence.vllm():
        options, plan = sizing.options, sizing.plan
        asked = None if options is None else options.block_size
        if plan is None or asked is None or not plan.groups:
            continue
        real = max(
            (group.block_size for group in plan.groups if group.kind is not LayerKind.RECURRENT), default=0
        )
        if real <= asked:
            continue
        states = any(group.kind is LayerKind.RECURRENT for group in plan.groups)
        least = plan.resident_blocks(1)
        why = (
            "a block must hold a whole state of the recurrent layers"
            if states
            else "layers with smaller pages take larger blocks"
        )
        yield Hit(
            message=(
                f"{server.name}: --block-size {asked} becomes {real:,}, because {why}. A request of one token"
                f" holds {least:,} blocks, {size(least * plan.bytes_per_block)},"
                f" and the last block wastes up to {real - 1:,} tokens. Drop --block-size; count in blocks of"
                f" {real:,}."
            ),
            place=server.where("block_size"),
            servers=(server.name,),
            numbers={"asked_tokens": asked, "block_size_tokens": real},
        )
