"""What llama.cpp's code says of each architecture beyond the keys of its GGUF file.

Every row was read from llama.cpp b11434: the layer rules from `src/models/<name>.cpp` (`load_arch_hparams`),
the kind of memory from `llama_model::create_memory` in `src/llama-model.cpp`, the names from
`src/llama-arch.cpp`. An architecture that is not here is refused by name.
"""

from __future__ import annotations

from kvwatch.cost.llamacpp_rules import (
    Architecture,
    Indexer,
    Latent,
    Memory,
    Pattern,
    Presence,
    Recurrence,
    State,
    Window,
)

_PLAIN = """
apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell cogvlm
command-r dbrx deci deepseek deepseek2-ocr dots1 ernie4_5 ernie4_5-moe exaone falcon gemma glm4 glm4moe
gpt2 gptneox granite granitemoe grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2
jais jais2 llama llama-embed maincoder minicpm minicpm3 minimax-m2 mistral3 mpt nemotron olmo olmoe
openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plm pockettts qwen qwen2 qwen2moe qwen2vl
qwen3 qwen3moe qwen3tts qwen3vl qwen3vlmoe refact seed_oss smollm3 stablelm starcoder starcoder2 t5
t5encoder talkie xverse
"""
"""Full attention in every layer. phi3 is among them although its files name a window: the code ignores it."""

_NO_CACHE = """
bert clef dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert neo-bert
nomic-bert nomic-bert-moe rnd1 wavtokenizer-dec
"""


def _windowed(
    period: int, presence: Presence = Presence.REQUIRED, *, dense_first: bool = False
) -> Architecture:
    return Architecture(window=Window(period=period, presence=presence, dense_first=dense_first))


def _hybrid(
    state: State,
    recurrence: Recurrence = Recurrence.NO_KV_HEADS,
    *,
    latent: Latent = Latent.NEVER,
    window: Window | None = None,
    latent_values: bool = False,
    rollback: bool = False,
    plain_draft_heads: bool = False,
    heads_always: bool = False,
) -> Architecture:
    return Architecture(
        memory=Memory.HYBRID,
        state=state,
        recurrence=recurrence,
        latent=latent,
        window=window,
        latent_values=latent_values,
        rollback=rollback,
        plain_draft_heads=plain_draft_heads,
        heads_always=heads_always,
        trunk_only=False,
    )


_FLAGGED = Architecture(window=Window(pattern=Pattern.ARRAY))
_STATE_SPACE = Architecture(memory=Memory.RECURRENT, recurrence=Recurrence.ALL, state=State.SSM)
_RECEPTANCE = Architecture(memory=Memory.RECURRENT, recurrence=Recurrence.ALL, state=State.WKV)
_LATENT = Architecture(latent=Latent.OPTIONAL)
_GATED_DELTA = Architecture(
    memory=Memory.HYBRID,
    state=State.SSM,
    recurrence=Recurrence.INTERVAL,
    interval=4,
    rollback=True,
    plain_draft_heads=True,
)
_GEMMA4_WINDOW = Window(pattern=Pattern.ARRAY, own_head_sizes=True)

ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys(_PLAIN.split(), Architecture()),
    **dict.fromkeys(_NO_CACHE.split(), Architecture(memory=Memory.NONE)),
    # Layer counts and other single rules.
    "graniteswitch": Architecture(router_layer=True, trunk_only=False),
    "grok": Architecture(flash_attention=False),
    "nanbeige": Architecture(loops_key=True),
    # Windows.
    "afmoe": _windowed(4, Presence.OPTIONAL),
    "cohere2": _windowed(4),
    "cohere2moe": _windowed(4, dense_first=True),
    "dflash": Architecture(
        draft_only=True,
        window=Window(presence=Presence.OPTIONAL, pattern=Pattern.ARRAY),
        streams_window=True,
    ),
    "eagle3": Architecture(draft_only=True),
    "exaone-moe": _windowed(4),
    "exaone4": Architecture(
        window=Window(presence=Presence.DEFAULTED, size=4096, period=4, only_layers=64),
    ),
    "gemma2": Architecture(window=Window(presence=Presence.DEFAULTED, size=4096, period=2)),
    "gemma3": _windowed(6, Presence.OPTIONAL),
    "gemma3n": Architecture(window=Window(period=5), first_layers_only=20),
    "gemma4": Architecture(window=_GEMMA4_WINDOW, shared_layers_key=True),
    "gemma4-assistant": Architecture(memory=Memory.SHARED, window=_GEMMA4_WINDOW, draft_only=True),
    "gpt-oss": _windowed(2),
    "granite_swa": _FLAGGED,
    "laguna": _windowed(4, Presence.OPTIONAL, dense_first=True),
    "llama4": Architecture(window=Window(presence=Presence.UNLESS_ZERO, size=8192, period=4, chunked=True)),
    "maple": _FLAGGED,
    "mellum": _windowed(4, Presence.OPTIONAL),
    "mimo2": _FLAGGED,
    "muse-glimmer": _windowed(4),
    "olmo2": _windowed(4, Presence.OPTIONAL),
    "plamo3": _windowed(8, Presence.OPTIONAL),
    "smallthinker": Architecture(
        window=Window(presence=Presence.OPTIONAL, size=4096, period=4, dense_first=True)
    ),
    "spark2_5": _FLAGGED,
    "step35": _FLAGGED,
    # Recurrent states and hybrids.
    "arwkv7": _RECEPTANCE,
    "bailingmoe3": _hybrid(State.DELTA_KEYS, latent=Latent.REQUIRED, rollback=True, plain_draft_heads=True),
    "falcon-h1": _hybrid(State.SSM, Recurrence.ALL),
    "granitehybrid": _hybrid(State.SSM),
    "jamba": _hybrid(State.SSM_UNGROUPED),
    "kimi-k3": _hybrid(State.DELTA_KEYS, latent=Latent.REQUIRED, latent_values=True, rollback=True),
    "kimi-linear": _hybrid(State.DELTA_KEYS, latent=Latent.REQUIRED),
    "lfm2": _hybrid(
        State.SHORT_CONV,
        window=Window(presence=Presence.OPTIONAL, pattern=Pattern.ATTENTION_LAYERS),
        rollback=True,
    ),
    "lfm2moe": _hybrid(State.SHORT_CONV, rollback=True),
    "mamba": Architecture(memory=Memory.RECURRENT, recurrence=Recurrence.ALL, state=State.SSM_UNGROUPED),
    "mamba2": _STATE_SPACE,
    "minimax-01": Architecture(
        memory=Memory.HYBRID, state=State.LIGHTNING, recurrence=Recurrence.INTERVAL, interval=8
    ),
    "nemotron_h": _hybrid(State.SSM, Recurrence.NO_KV_HEADS_NO_FFN, rollback=True),
    "nemotron_h_moe": _hybrid(
        State.SSM, Recurrence.NO_KV_HEADS_NO_FFN, rollback=True, plain_draft_heads=True
    ),
    "plamo2": _hybrid(State.SSM, heads_always=True),
    "qwen35": _GATED_DELTA,
    "qwen35moe": _GATED_DELTA,
    "qwen3next": Architecture(
        memory=Memory.HYBRID,
        state=State.SSM,
        recurrence=Recurrence.INTERVAL,
        interval=4,
        plain_draft_heads=True,
    ),
    "rwkv6": _RECEPTANCE,
    "rwkv6qwen2": _RECEPTANCE,
    "rwkv7": _RECEPTANCE,
    # Latent caches, indexers, compression.
    "deepseek2": _LATENT,
    "mistral4": _LATENT,
    "deepseek32": Architecture(
        memory=Memory.SPARSE_LATENT, latent=Latent.REQUIRED, indexer=Indexer.ALL, plain_draft_heads=True
    ),
    "deepseek4": Architecture(
        memory=Memory.COMPRESSED,
        window=Window(pattern=Pattern.ALL),
        indexer=Indexer.ALL,
        trunk_only=False,
        rollback=True,
        draft_probe=True,
    ),
    "dots3note": Architecture(
        memory=Memory.SPARSE_LATENT_WINDOW,
        latent=Latent.REQUIRED,
        window=Window(pattern=Pattern.ARRAY),
        indexer=Indexer.FLAGS,
        plain_draft_heads=True,
    ),
    "glm-dsa": Architecture(
        memory=Memory.SPARSE_LATENT,
        latent=Latent.REQUIRED,
        indexer=Indexer.FLAGS_OR_LENGTH,
        plain_draft_heads=True,
    ),
    "glm5-next": Architecture(
        memory=Memory.HYBRID_INDEXER,
        state=State.DELTA_KEYS,
        recurrence=Recurrence.NO_KV_HEADS,
        latent=Latent.REQUIRED,
        latent_values=True,
        indexer=Indexer.FLAGS_OR_ALL,
        indexer_row=3,
        indexer_pool_key="attention.indexer.kpool",
        rollback=True,
    ),
    "hy_v4": Architecture(
        memory=Memory.SPARSE_LATENT,
        latent=Latent.REQUIRED,
        indexer=Indexer.FLAGS_IF_TOP_K,
        trunk_only=False,
    ),
    "minimax-m3": Architecture(memory=Memory.SPARSE_BLOCKS, indexer=Indexer.AFTER_DENSE, trunk_only=False),
    "qwen4exp": Architecture(
        memory=Memory.HYBRID_INDEXER,
        state=State.SSM,
        recurrence=Recurrence.INTERVAL,
        interval=4,
        indexer=Indexer.ALL,
        indexer_row=2,
        indexer_pool_key="attention.compress_ratios",
        rollback=True,
        per_layer_embedding=True,
    ),
}
