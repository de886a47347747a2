"""From a Hugging Face config.json to what its model keeps of every request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvwatch.cost.checkpoints import checkpoint_cache_dtype, checkpoint_weight_bits
from kvwatch.cost.class_defaults import class_defaults
from kvwatch.cost.encoders import read_encoder
from kvwatch.cost.families import rule_of
from kvwatch.cost.fields import Fields
from kvwatch.cost.positions import read_allowed_positions, read_max_positions
from kvwatch.cost.spec import ModelSpec, ModelSpecError
from kvwatch.cost.wrapped import unwrap
from kvwatch.readings import Reason


def read_hf_config(config: Mapping[str, object]) -> ModelSpec:
    """Return the cache-owning layers of the model that a config.json describes.

    Raises:
        ModelSpecError: the architecture is not known, or a field that its rule needs is missing.

    """
    if not isinstance(config, Mapping):
        raise ModelSpecError(
            Reason.MISSING_FIELD, field="architectures", detail="config.json holds no JSON object"
        )
    architecture = _architecture(config)
    inner, values, nested = unwrap(architecture, config)
    known = rule_of(inner)
    if known is None:
        raise ModelSpecError(Reason.UNKNOWN_ARCHITECTURE, architecture=architecture)
    rule, pooling = known
    model_type = _text(values.get("model_type"))
    fields = Fields(architecture, values, class_defaults(model_type, nested=nested))
    reading = read_encoder(fields) if values.get("is_causal") is False else rule(fields)
    return ModelSpec(
        architecture=architecture,
        model_type=_text(config.get("model_type")),
        dtype=_dtype(config, fields),
        layers=reading.layers,
        hidden_layers=reading.hidden_layers,
        attention_heads=reading.attention_heads,
        max_positions=read_max_positions(fields),
        block_layer=reading.block_layer,
        cache_dtype=checkpoint_cache_dtype(config),
        allowed_positions=read_allowed_positions(fields),
        weight_bits=checkpoint_weight_bits(config),
        ssm_dtype=reading.ssm_dtype,
        state_chunk=reading.state_chunk,
        encoder_only=reading.encoder_only,
        prefix_caching=reading.prefix_caching,
        pooling=pooling or reading.encoder_only,
    )


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, (list, tuple)) and names and isinstance(names[0], str):
        return names[0]
    raise ModelSpecError(
        Reason.MISSING_FIELD, architecture=_text(config.get("model_type")), field="architectures"
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _dtype(config: Mapping[str, Any], fields: Fields) -> str | None:
    for source in (config, fields.values):
        for name in ("dtype", "torch_dtype"):
            value = source.get(name)
            if isinstance(value, str):
                return value.removeprefix("torch.")
    return None
