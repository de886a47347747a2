"""How many blocks a request's recurrent states take, by release and prefix caching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.cost.spec import LayerKind

if TYPE_CHECKING:
    from kvwatch.cost.spec import Layer, ModelSpec
    from kvwatch.cost.vllm_options import VllmOptions
    from kvwatch.cost.vllm_version import EngineRules


def state_mode(spec: ModelSpec, options: VllmOptions, rules: EngineRules) -> str:
    """Return the engine's mode for recurrent groups: none, align or all.

    0.32.0, model_executor/models/config.py `MambaModelConfig`; 0.18.1 and 0.14.1 for `all`.
    """
    if not any(layer.kind is LayerKind.RECURRENT for layer in spec.layers):
        return "none"
    if options.mamba_cache_mode is not None:
        return options.mamba_cache_mode
    if not (options.prefix_caching and spec.prefix_caching and rules.hybrid_prefixes):
        return "none"
    return "all" if spec.state_chunk is not None and rules.all_states_default else "align"


def state_blocks(layer: Layer, mode: str, options: VllmOptions, rules: EngineRules) -> int:
    """Return the state blocks that one request holds at most in a mode that keeps a constant number."""
    if mode == "align":
        return 2 + options.speculative_tokens + (layer.checkpoint_blocks if rules.checkpoints else 0)
    return 1 + options.speculative_tokens
