"""The longest request that a config.json allows, as vLLM derives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.cost.fields import Fields

POSITION_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
SCALED_ALREADY = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "mrope"}
)
"""Rotary scalings whose factor the stated positions already hold."""

DEFAULT_POSITIONS = 2048
"""What the engine assumes where a file states no length at all."""

LENGTH_LIMITS = {"EmbeddingGemma2Model": 8192}
"""What the engine serves at most unless told otherwise (vLLM 0.32.0, model_executor/models/config.py)."""


def read_max_positions(fields: Fields) -> int:
    """Return the smallest stated length; `model_max_length` wins, other rotary scalings multiply.

    vLLM 0.32.0, model_arch_config_convertor.py `derive_max_model_len_and_key` and config/model.py
    `_get_and_verify_max_len`. LongRoPE models are served at their original length.
    """
    longest = _stated_positions(fields)
    return min(longest, LENGTH_LIMITS.get(fields.architecture, longest))


def _stated_positions(fields: Fields) -> int:
    stated = [value for name in POSITION_FIELDS if (value := fields.optional(name))]
    if not stated:
        return DEFAULT_POSITIONS
    longest = fields.optional("model_max_length") or min(stated)
    scaling = fields.get("rope_scaling", "rope_parameters")
    if not isinstance(scaling, dict):
        return longest
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "longrope":
        original = fields.optional("original_max_position_embeddings")
        return original or longest
    factor = scaling.get("factor")
    model_type = fields.text("model_type") or ""
    if kind in SCALED_ALREADY or "gemma3" in model_type or not isinstance(factor, (int, float)):
        return longest
    return int(longest * factor)


def read_allowed_positions(fields: Fields) -> int | None:
    """Return a length beyond which every release refuses `max_model_len`; None where the file names none.

    The mildest reading: LongRoPE models are served short and may be asked for all their positions, and
    releases differ in whether YaRN's factor is in the stated positions already.
    """
    stated = [value for name in POSITION_FIELDS if (value := fields.optional(name))]
    if not stated:
        return None
    allowed = max(min(stated), fields.optional("model_max_length") or 0)
    scaling = fields.get("rope_scaling", "rope_parameters")
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    if isinstance(factor, (int, float)) and factor > 1 and kind not in ("llama3", "longrope", "su"):
        allowed = int(allowed * factor)
    return allowed
