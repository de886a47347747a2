"""Make the tiny random models the real engines serve in the engine tests.

    python models.py uniform DIR      Llama, four layers, full attention      (vLLM's environment)
    python models.py hybrid DIR       Gemma 3, ten window and two full layers (vLLM's environment)
    python models.py lora DIR         a LoRA adapter for the Llama            (vLLM's environment)
    python models.py gguf FILE        llama GGUF, eight layers, 50 MB         (llama-server's environment)

The weights are random and the text they produce is noise; only the shapes matter. The tokenizers
know single bytes only, so one ASCII character is one token and every length is exact. A model
that is already there is left alone, and one appears under its name only when it is complete.
"""
# ruff: noqa: PLC0415 - the libraries of one environment are missing in the other

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

SEED = 20
BYTES = 256
BOS, EOS = BYTES, BYTES + 1
VOCAB_SIZE = BYTES + 2


def byte_symbols() -> list[str]:
    """Return GPT-2's printable stand-in for each byte, in the order of the byte values."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(BYTES, 2 * BYTES))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(BYTES)]


def save_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer with no merges into a Hugging Face model folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, "<s>": BOS, "</s>": EOS}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")  # noqa: S106 - no password
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)


def make_uniform(folder: Path) -> None:
    """Write a Llama whose layers all keep the whole context: one KV group in vLLM."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(folder)


def make_hybrid(folder: Path) -> None:
    """Write a Gemma 3 with ten sliding-window and two full layers: several KV groups in vLLM."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(SEED)
    config = Gemma3TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=128,
        max_position_embeddings=4096,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    Gemma3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(folder)


def make_lora(folder: Path) -> None:
    """Write a LoRA adapter of rank 8 for the query projections of the uniform model."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(SEED)
    rank, width, layers = 8, 256, 4
    folder.mkdir()
    save_file(
        {
            f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight": torch.randn(shape)
            for layer in range(layers)
            for part, shape in (("A", (rank, width)), ("B", (width, rank)))
        },
        folder / "adapter_model.safetensors",
    )
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def make_gguf(file: Path) -> None:
    """Write a llama GGUF, large enough that llama-server can be watched while it is busy."""
    import gguf
    import numpy as np

    layers, width, inner, heads, kv_heads, head_dim = 8, 512, 1536, 8, 4, 64
    random = np.random.default_rng(SEED)

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("kvwatch-tiny")
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*byte_symbols(), "<s>", "</s>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * BYTES + [gguf.TokenType.CONTROL] * 2)
    # The loader insists on a list of merges; this one joins two bytes no UTF-8 text contains.
    writer.add_token_merges(["ÿ þ"])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(value=False)

    def add_matrix(name: str, rows: int, columns: int) -> None:
        weights = random.normal(0.0, columns**-0.5, (rows, columns))
        writer.add_tensor(f"{name}.weight", weights.astype(np.float16))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, dtype=np.float32))

    add_matrix("token_embd", VOCAB_SIZE, width)
    for layer in range(layers):
        block = f"blk.{layer}"
        add_norm(f"{block}.attn_norm")
        add_matrix(f"{block}.attn_q", heads * head_dim, width)
        add_matrix(f"{block}.attn_k", kv_heads * head_dim, width)
        add_matrix(f"{block}.attn_v", kv_heads * head_dim, width)
        add_matrix(f"{block}.attn_output", width, heads * head_dim)
        add_norm(f"{block}.ffn_norm")
        add_matrix(f"{block}.ffn_gate", inner, width)
        add_matrix(f"{block}.ffn_up", inner, width)
        add_matrix(f"{block}.ffn_down", width, inner)
    add_norm("output_norm")
    add_matrix("output", VOCAB_SIZE, width)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


MAKERS = {"uniform": make_uniform, "hybrid": make_hybrid, "lora": make_lora, "gguf": make_gguf}


def make(kind: str, target: Path) -> bool:
    """Make the model unless it is there; return whether it had to be made."""
    if target.exists():
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.part")
    if draft.is_dir():
        shutil.rmtree(draft)
    MAKERS[kind](draft)
    draft.rename(target)
    return True


def main() -> None:
    """Make the model named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=MAKERS)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    made = make(arguments.kind, arguments.target)
    print("made" if made else "found", arguments.target)


if __name__ == "__main__":
    main()
