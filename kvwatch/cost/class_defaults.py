"""What a config class fills in where a config.json is silent (transformers 5.19.0, the classes' defaults).

Engines read files through these classes, and files leave out what equals a nested class's default. The
outermost object of a file always states its dimensions: there a missing one is an error, only the rest is
filled in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DIMENSIONS = frozenset(
    {
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "n_embd",
        "n_layer",
        "n_head",
    }
)
"""What the outermost object must state itself."""

_NAMES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv": "num_key_value_heads",
    "head": "head_dim",
    "positions": "max_position_embeddings",
    "window": "sliding_window",
    "linear_conv": "linear_conv_kernel_dim",
    "linear_key": "linear_key_head_dim",
    "linear_value": "linear_value_head_dim",
    "linear_keys": "linear_num_key_heads",
    "linear_values": "linear_num_value_heads",
}
_FLAGS = frozenset({"use_sliding_window", "multi_query", "new_decoder_architecture", "attention_k_eq_v"})

_TABLE = """
afmoe: layers=32 width=2048 heads=16 head=128 positions=16384 window=1024 global_attn_every_n_layers=4
apertus: layers=32 width=4096 heads=32 positions=65536
arcee: layers=32 width=2560 heads=32 positions=4096
aria_text: layers=32 width=4096 heads=32 positions=2048
axk1: layers=61 width=7168 heads=64 kv=64 positions=32768 kv_lora_rank=512 qk_rope_head_dim=64
bamba: layers=32 width=4096 heads=32 kv=8 positions=262144 mamba_n_heads=128 mamba_n_groups=1
    mamba_d_state=256 mamba_d_head=64 mamba_d_conv=4 mamba_expand=2
bitnet: layers=30 width=2560 heads=20 kv=5 positions=2048
bloom: width=64 n_layer=2 n_head=8
cohere: layers=40 width=8192 heads=64 positions=8192
cohere2: layers=40 width=8192 heads=64 positions=8192 window=4096
cohere2_moe: layers=40 width=8192 heads=64 head=128 positions=8192 window=4096
cwm: layers=64 width=6144 heads=48 kv=8 head=128 positions=131072 window=8192
deepseek_v2: layers=32 width=4096 heads=32 positions=2048 kv_lora_rank=512 qk_rope_head_dim=64
deepseek_v3: layers=61 width=7168 heads=128 kv=128 positions=4096 kv_lora_rank=512 qk_rope_head_dim=64
deepseek_v32: layers=61 width=7168 heads=128 kv=128 positions=163840 kv_lora_rank=512 qk_rope_head_dim=64
    index_topk=2048 index_head_dim=128
diffusion_gemma_text: layers=30 width=2304 heads=8 kv=4 head=256 positions=131072 window=512
dots1: layers=62 width=4608 heads=32 kv=32 positions=2048 window=4096
emu3_text_model: layers=32 width=4096 heads=32 kv=8 positions=9216
ernie4_5: layers=18 width=1024 heads=16 kv=2 head=128 positions=131072
ernie4_5_moe: layers=28 width=2560 heads=20 kv=4 positions=131072
ernie4_5_vl_moe_text: layers=28 width=2560 heads=20 kv=4 positions=131072
exaone4: layers=32 width=4096 heads=32 kv=32 positions=2048 window=4096
exaone_moe: layers=32 width=4096 heads=32 kv=32 positions=2048 window=4096
falcon: layers=32 width=4544 heads=71 positions=2048 multi_query=1 new_decoder_architecture=0
falcon_h1: layers=32 width=4096 heads=32 kv=8 positions=8192 mamba_n_heads=128 mamba_n_groups=1
    mamba_d_state=256 mamba_d_head=8 mamba_d_conv=4 mamba_expand=2 mamba_d_ssm=1024
falcon_mamba: layers=32 width=768 conv_kernel=4 state_size=16 expand=2
flex_olmo: layers=32 width=4096 heads=32 positions=4096
gemma: layers=28 width=3072 heads=16 kv=16 head=256 positions=8192
gemma2: layers=26 width=2304 heads=8 kv=4 head=256 positions=8192 window=4096
gemma3_text: layers=26 width=2304 heads=8 kv=4 head=256 positions=131072 window=4096
gemma3n_text: layers=35 width=2048 heads=8 kv=2 head=256 positions=32768 window=512
    num_kv_shared_layers=15
gemma4_text: layers=30 width=2304 heads=8 kv=4 head=256 positions=131072 window=512 num_kv_shared_layers=0
    attention_k_eq_v=0
gemma4_unified_text: layers=30 width=2304 heads=8 kv=4 head=256 positions=262144 window=1024
    num_kv_shared_layers=0 attention_k_eq_v=0
glm: layers=40 width=4096 heads=32 kv=2 head=128 positions=131072
glm4: layers=40 width=4096 heads=32 kv=2 head=128 positions=131072
glm4_moe: layers=46 width=4096 heads=96 kv=8 positions=131072
glm4_moe_lite: layers=47 width=2048 heads=20 kv=20 positions=202752 kv_lora_rank=512 qk_rope_head_dim=64
glm4v_moe_text: layers=46 width=4096 heads=96 kv=8 positions=65536
glm4v_text: layers=40 width=4096 heads=32 kv=2 positions=32768
glm_moe_dsa: layers=78 width=6144 heads=64 kv=64 positions=202752 kv_lora_rank=512 qk_rope_head_dim=64
    index_topk=2048 index_head_dim=128
glm_ocr_text: layers=16 width=1024 heads=16 kv=8 positions=131072
gpt2: n_embd=768 n_layer=12 n_head=12 n_positions=1024
gpt_bigcode: kv=1 multi_query=1 n_embd=768 n_layer=12 n_head=12 n_positions=1024
gpt_neox: layers=44 width=6144 heads=64 positions=2048
gpt_oss: layers=36 width=2880 heads=64 kv=8 head=64 positions=131072 window=128
gptj: n_embd=4096 n_layer=28 n_head=16 n_positions=2048
granite: layers=32 width=4096 heads=32 positions=2048
granite4_vision_text: layers=32 width=4096 heads=32 positions=2048
granite_swa: layers=24 width=2560 heads=20 kv=4 positions=8192 window=128
granitemoe: layers=32 width=4096 heads=32 positions=2048
granitemoe_swa: layers=32 width=4096 heads=32 positions=2048 window=128
granitemoehybrid: layers=32 width=4096 heads=32 positions=2048 mamba_n_heads=128 mamba_n_groups=1
    mamba_d_state=256 mamba_d_head=64 mamba_d_conv=4 mamba_expand=2
granitemoeshared: layers=32 width=4096 heads=32 positions=2048
helium: layers=24 width=2560 heads=20 kv=20 head=128 positions=4096
hrm_text: layers=128 width=1536 heads=12 head=128 positions=2048
hunyuan_v1_dense: layers=32 width=4096 heads=32 positions=2048
hunyuan_v1_moe: layers=32 width=4096 heads=32 positions=2048
hunyuan_vl_text: layers=32 width=4096 heads=32 positions=2048
hy_v3: layers=80 width=4096 heads=64 kv=8 head=128 positions=131072
hyperclovax: layers=32 width=4096 heads=32 positions=2048
jais2: layers=32 width=3328 heads=26 positions=8192
jamba: layers=32 width=4096 heads=32 kv=8 positions=262144 mamba_d_state=16 mamba_d_conv=4 mamba_expand=2
    attn_layer_period=8 attn_layer_offset=4
laguna: layers=40 width=2048 heads=48 kv=8 head=128 positions=131072 window=512
lfm2: layers=32 width=2560 heads=32 kv=8 positions=128000 conv_L_cache=3
lfm2_moe: layers=32 width=2048 heads=32 kv=8 positions=128000 conv_L_cache=3
llama: layers=32 width=4096 heads=32 positions=2048
llama4_text: layers=48 width=5120 heads=40 kv=8 head=128 positions=131072 attention_chunk_size=8192
    no_rope_layer_interval=4
longcat_flash: width=6144 heads=64 positions=131072 kv_lora_rank=512 qk_rope_head_dim=64
mamba: layers=32 width=768 conv_kernel=4 state_size=16 expand=2
mamba2: layers=64 width=4096 n_groups=8 conv_kernel=4 state_size=128 expand=2 num_heads=128
mellum: layers=28 width=2304 heads=32 kv=4 head=128 positions=131072 window=1024
minimax: layers=32 width=4096 heads=32 kv=8 positions=131072
minimax_m2: layers=62 width=3072 heads=48 kv=8 head=128 positions=196608
ministral: layers=32 width=4096 heads=32 kv=8 positions=131072 window=4096
ministral3: layers=34 width=4096 heads=32 kv=8 head=128 positions=262144
mistral: layers=32 width=4096 heads=32 kv=8 positions=131072 window=4096
mixtral: layers=32 width=4096 heads=32 kv=8 positions=131072
nemotron: layers=32 width=6144 heads=48 positions=4096
nemotron_h: width=4096 heads=32 kv=8 head=128 positions=4096 ssm_state_size=128 mamba_num_heads=128
    mamba_head_dim=64 n_groups=8 conv_kernel=4 expand=2
olmo: layers=32 width=4096 heads=32 positions=2048
olmo2: layers=32 width=4096 heads=32 positions=2048
olmo3: layers=32 width=4096 heads=32 positions=2048 window=4096
olmo_hybrid: layers=32 width=3840 heads=30 positions=65536 linear_conv=4 linear_key=96 linear_value=192
    linear_keys=30 linear_values=30
olmoe: layers=16 width=2048 heads=16 positions=4096
opt: layers=12 width=768 heads=12 positions=2048
paddleocr_vl_text: layers=18 width=1024 heads=16 kv=2 head=128 positions=131072
persimmon: layers=36 width=4096 heads=64 positions=16384
phi: layers=24 width=2048 heads=32 positions=2048
phi3: layers=32 width=3072 heads=32 positions=4096
phimoe: layers=32 width=4096 heads=32 kv=8 positions=131072
qwen2: layers=32 width=4096 heads=32 kv=32 positions=32768 use_sliding_window=0
qwen2_5_omni_text: layers=28 width=3584 heads=28 kv=4 positions=32768 use_sliding_window=0
qwen2_5_vl_text: layers=80 width=8192 heads=64 kv=8 positions=32768 use_sliding_window=0
qwen2_moe: layers=24 width=2048 heads=16 kv=16 positions=32768 use_sliding_window=0
qwen2_vl_text: layers=80 width=8192 heads=64 kv=8 positions=32768 use_sliding_window=0
qwen3: layers=32 width=4096 heads=32 kv=32 head=128 positions=32768 use_sliding_window=0
qwen3_5_moe_text: layers=40 width=2048 heads=16 kv=2 head=256 positions=32768 linear_conv=4 linear_key=128
    linear_value=128 linear_keys=16 linear_values=32
qwen3_5_text: layers=32 width=4096 heads=16 kv=4 head=256 positions=32768 linear_conv=4 linear_key=128
    linear_value=128 linear_keys=16 linear_values=32
qwen3_moe: layers=24 width=2048 heads=32 kv=4 positions=32768 use_sliding_window=0
qwen3_next: layers=48 width=2048 heads=16 kv=2 head=256 positions=32768 linear_conv=4 linear_key=128
    linear_value=128 linear_keys=16 linear_values=32
qwen3_omni_moe_text: layers=28 width=2048 heads=28 kv=4 positions=32768
qwen3_vl_moe_text: layers=24 width=2048 heads=16 kv=16 positions=128000
qwen3_vl_text: layers=32 width=4096 heads=32 kv=32 head=128 positions=128000
seed_oss: layers=64 width=4096 heads=80 kv=8 head=128 positions=524288
smollm3: layers=36 width=2048 heads=16 kv=4 positions=32768 use_sliding_window=0 no_rope_layer_interval=4
solar_open: layers=48 width=4096 heads=64 kv=8 head=128 positions=131072
stablelm: layers=32 width=2560 heads=32 kv=32 positions=4096
starcoder2: layers=30 width=3072 heads=24 kv=2 positions=4096
step3p5: max_seq_len=4096 layers=45 width=4096 heads=64 head=128 positions=128000
t5_gemma_module: layers=26 width=2304 heads=8 kv=4 head=256 positions=8192 window=4096
vaultgemma: layers=26 width=2304 heads=8 kv=4 head=256 positions=8192 window=4096
zamba2: layers=54 width=2560 heads=32 positions=4096 mamba_d_state=64 mamba_d_conv=4 mamba_expand=2
    n_mamba_heads=8 mamba_ngroups=1
"""


def _parse(table: str) -> dict[str, dict[str, int | bool]]:
    defaults: dict[str, dict[str, int | bool]] = {}
    entry: dict[str, int | bool] = {}
    for word in table.split():
        if word.endswith(":"):
            entry = defaults.setdefault(word[:-1], {})
            continue
        name, value = word.split("=")
        entry[_NAMES.get(name, name)] = bool(int(value)) if name in _FLAGS else int(value)
    return defaults


_DEFAULTS = _parse(_TABLE)


def class_defaults(model_type: str | None, *, nested: bool) -> Mapping[str, int | bool]:
    """Return the defaults of a config class by its `model_type`; dimensions only for a nested object."""
    found = _DEFAULTS.get(model_type or "", {})
    if nested:
        return found
    return {name: value for name, value in found.items() if name not in DIMENSIONS}
