"""Which rule reads which architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvwatch.cost.attention import Reading, read_uniform
from kvwatch.cost.fields import Fields
from kvwatch.cost.spec import ModelSpecError
from kvwatch.readings import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How an architecture's config is read."""

    read: Callable[[Fields], Reading]
    text_path: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    pooling: bool = False

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the object that describes the language model."""
        for name in self.text_path:
            nested = config.get(name)
            if isinstance(nested, Mapping):
                return nested
        return config


UNIFORM = Family(read=read_uniform)
FAMILIES: dict[str, Family] = dict.fromkeys(
    (
        "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM", "OPTForCausalLM", "GPT2LMHeadModel", "GPTJForCausalLM", "GPTNeoXForCausalLM",
        "BloomForCausalLM", "PhiForCausalLM", "GemmaForCausalLM", "CohereForCausalLM", "Glm4ForCausalLM",
        "Glm4MoeForCausalLM", "GraniteForCausalLM", "Olmo2ForCausalLM", "OlmoeForCausalLM", "StableLmForCausalLM",
        "SmolLM3ForCausalLM", "MiniMaxM2ForCausalLM",
    ),
    UNIFORM,
)  # fmt: skip


def family_of(architecture: str, config: Mapping[str, Any]) -> Family:
    """Return the rule of an architecture, or refuse it by its name."""
    del config
    family = FAMILIES.get(architecture)
    if family is None:
        raise ModelSpecError(Reason.UNKNOWN_ARCHITECTURE, architecture=architecture)
    return family
