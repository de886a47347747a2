"""From a Hugging Face config.json to what its model keeps of every request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvwatch.cost.families import family_of
from kvwatch.cost.fields import Fields
from kvwatch.cost.positions import read_max_positions
from kvwatch.cost.spec import ModelSpec, ModelSpecError
from kvwatch.readings import Reason

if TYPE_CHECKING:
    from kvwatch.cost.attention import Reading


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
    family = family_of(architecture, config)
    fields = Fields(architecture, family.text_config(config), family.defaults)
    reading: Reading = family.read(fields)
    return ModelSpec(
        architecture=architecture,
        model_type=_text(config.get("model_type")),
        dtype=_dtype(config, fields),
        layers=reading.layers,
        hidden_layers=reading.hidden_layers,
        attention_heads=reading.attention_heads,
        max_positions=read_max_positions(fields),
        block_layer=reading.block_layer,
        ssm_dtype=reading.ssm_dtype,
        encoder_only=reading.encoder_only,
        prefix_caching=reading.prefix_caching,
        pooling=family.pooling,
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
