"""What the command line of a vLLM server decides about its cache, and what is missing or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.cost.spec import ModelSpec

NEWEST_VERSION = (0, 32, 0)
"""The newest release whose planner these rules were compared with."""

DTYPE_BYTES = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint8": 1,
    "int8": 1,
}


class OptionError(ValueError):
    """An option that makes the engine refuse, or that no rule covers."""

    def __init__(self, option: str, detail: str) -> None:
        super().__init__(f"{option}: {detail}")
        self.option = option
        self.detail = detail


class MissingOptionError(OptionError):
    """An option whose value decides the number and is not known."""

    def __init__(self, option: str, detail: str = "needed for this model and not known") -> None:
        super().__init__(option, detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """Options of `vllm serve` that change what its planner allocates; None where not known."""

    engine_version: tuple[int, ...] | None = None
    """None: the newest known."""
    dtype: str = "auto"
    cache_dtype: str = "auto"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    decode_context_parallel: int = 1
    block_size: int | None = None
    """--block-size, or the size that the engine reports; None: as the engine chooses."""
    max_model_len: int | None = None
    """None: as the engine derives it from the model file."""
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    hybrid_manager: bool = True
    async_scheduling: bool = True
    prefix_caching: bool = True
    """False where it is switched off; True is the engine's default for the model."""
    mamba_cache_mode: str | None = None
    """none, align or all, as the engine reports it; None: as it chooses."""
    mamba_cache_dtype: str = "auto"
    mamba_ssm_dtype: str = "auto"
    runner: str = "auto"
    """auto, generate or pooling."""
    speculative_tokens: int = 0
    compute_capability: tuple[int, int] = (9, 0)
    """Of the device: decides the attention backend and by it the default block size. Hopper unless told."""

    @property
    def version(self) -> tuple[int, ...]:
        """Return the engine version that decides the rules."""
        return NEWEST_VERSION if self.engine_version is None else self.engine_version


def default_batched_tokens(device_bytes: int, device_name: str = "") -> int:
    """Return `vllm serve`'s default of --max-num-batched-tokens on a GPU (0.32.0, engine/arg_utils.py).

    `device_bytes` is the card's total memory. A100 cards count as small ones.
    """
    gib = 1 << 30
    if device_bytes >= 160 * gib:
        return 16384
    if device_bytes >= 70 * gib and "a100" not in device_name.lower():
        return 8192
    return 2048


def is_pooling(spec: ModelSpec, options: VllmOptions) -> bool:
    """Say whether the server runs the model as a pooling (embedding, scoring) model."""
    return spec.pooling if options.runner == "auto" else options.runner == "pooling"


def model_element_bytes(spec: ModelSpec, options: VllmOptions) -> int:
    """Return the bytes of one element of the model's dtype, as vLLM resolves it.

    With `auto` a float32 checkpoint is served in 16 bits, and so is one that states nothing: its weights are
    16 bits wide or are cast down to them (0.32.0, config/model.py `_resolve_auto_dtype`).
    """
    name = options.dtype
    if name == "auto":
        name = "bfloat16" if spec.dtype in (None, "float32", "float") else spec.dtype or "bfloat16"
    if name not in DTYPE_BYTES:
        raise OptionError("dtype", f"{name} is not known")
    return DTYPE_BYTES[name]
