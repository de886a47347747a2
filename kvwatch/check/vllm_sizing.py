"""What a vLLM server's pool will be, as far as its files say before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.vllm import OptionError, VllmOptions, default_batched_tokens, plan_blocks
from kvwatch.flags.launch import Origin
from kvwatch.plan import Model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvwatch.check.declaration import DeclaredServer
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm import BlockPlan
    from kvwatch.flags.launch import Launch

LARGEST_DEFAULT_SHARE = 0.92
"""From 0.20.0; 0.9 before."""
SMALLEST_DEFAULT_SHARE = 0.9
LEAST_BATCH = 2048
"""The smallest default of --max-num-batched-tokens of a server with a GPU: a lower bound of the charge."""
_DECIDING = (
    "dtype",
    "cache_dtype",
    "tensor_parallel",
    "pipeline_parallel",
    "decode_context_parallel",
    "runner",
    "mamba_cache_dtype",
    "mamba_ssm_dtype",
)
"""Fields with a default in every release: with neither value nor default, something unread may set them."""
_REMODELLING = (
    "--disable-sliding-window",
    "--hf-overrides",
    "--hf-config-path",
    "--kv-cache-dtype-skip-layers",
    "--rope-scaling",
    "--spec-method",
    "--spec-model",
)
"""Options that change the model or add a cache of a draft, which is not reckoned."""
_LIGHTENING = (
    "--quantization",
    "-q",
    "--cpu-offload-gb",
    "--offload-backend",
    "--load-format",
    "--language-model-only",
    "--mm-encoder-only",
)
"""Options with which a rank holds less than the files of the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One rank's KV memory; where `exact` is false, no more than this."""

    size_bytes: int
    exact: bool
    words: str
    """How it comes about: `0.90 x 44.99 GiB - 14.99 GiB of weights`."""
    basis: str
    """pin, blocks, measured or weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizing:
    """The plan of a server's pool; `why` says what keeps it from being known."""

    spec: ModelSpec | None = None
    options: VllmOptions | None = None
    plan: BlockPlan | None = None
    why: str | None = None
    pool: Pool | None = None
    weights_bytes: int | None = None
    """The least that the largest rank holds of the checkpoint."""

    @property
    def usable_blocks(self) -> int | None:
        """Return the pool's blocks without the null block; an upper bound where the pool is one."""
        if self.plan is None or self.pool is None or not self.plan.groups:
            return None
        return max(0, self.plan.num_blocks(self.pool.size_bytes) - 1)

    @property
    def least_pool_bytes(self) -> int | None:
        """Return the smallest pool that starts; where the release is not known, by the mildest."""
        if self.plan is None or self.options is None or not self.plan.groups:
            return None
        known = self.options.engine_version is not None
        return self.plan.minimum_pool_bytes if known else self.plan.start_blocks * self.plan.bytes_per_block


def given(launch: Launch, options: Iterable[str]) -> str | None:
    """Return the first of these options that was given and that no field stands for."""
    wanted = tuple(options)
    for tokens in launch.unknown:
        name = tokens[0].partition("=")[0].partition(".")[0].replace("_", "-")
        if name in wanted:
            return name
    return None


def size_blocks(server: DeclaredServer, total_bytes: int | None) -> BlockSizing:
    """Plan a server's pool; `total_bytes` is the memory of its smallest card."""
    launch, model = server.launch, server.model
    weights = _weights(model, launch) if isinstance(model, Model) else None
    pool = _pool(server, total_bytes, weights)
    if not isinstance(model, Model):
        return BlockSizing(
            why=server.model_detail or "its model file is not here", pool=pool, weights_bytes=weights
        )
    why = _unsettled(launch)
    if why is not None:
        return BlockSizing(spec=model.spec, why=why, pool=pool, weights_bytes=weights)
    options = _options(server, total_bytes)
    try:
        plan = plan_blocks(model.spec, options)
        # Costs that need an option which nobody stated say so only when they are asked for.
        _ = plan.start_blocks, plan.resident_blocks(1)
    except (OptionError, ModelSpecError) as error:
        return BlockSizing(spec=model.spec, why=str(error), pool=pool, weights_bytes=weights)
    if launch.num_gpu_blocks_override is not None and plan.groups:
        blocks = launch.num_gpu_blocks_override
        pool = Pool(
            size_bytes=blocks * plan.bytes_per_block,
            exact=True,
            words=f"{blocks:,} blocks of {size(plan.bytes_per_block)}",
            basis="blocks",
        )
    return BlockSizing(spec=model.spec, options=options, plan=plan, pool=pool, weights_bytes=weights)


def doubtful(launch: Launch) -> bool:
    """Tell whether something that could not be read may have set anything at all."""
    return launch.origin("pin_bytes") is Origin.UNKNOWN


def share_bounds(launch: Launch) -> tuple[float, float] | None:
    """Return the least and the greatest share that a server may claim; None where nothing bounds it.

    Where the release is not known, its default is one of two.
    """
    if launch.share_ratio is not None:
        return launch.share_ratio, launch.share_ratio
    if "share_ratio" in launch.stated or doubtful(launch) or share_abbreviated(launch):
        return None
    return SMALLEST_DEFAULT_SHARE, LARGEST_DEFAULT_SHARE


def share_abbreviated(launch: Launch) -> bool:
    """Tell whether an abbreviation that may stand for several options may stand for the share."""
    return any("--gpu-memory-utilization".startswith(note.partition(":")[0]) for note in launch.notes)


def one_rank_a_card(server: DeclaredServer) -> bool:
    """Tell whether no card has two ranks of a server: then what was measured of a card is one rank's."""
    cards = server.cards or ()
    return len(set(cards)) == len(cards) and server.replicas == 1


def length_is_certain(server: DeclaredServer, spec: ModelSpec) -> bool:
    """Tell whether the longest request is known: left to the engine, it is not where it may be lowered.

    `auto` takes what fits; a pooling model's tokenizer may lower the model's own length.
    """
    if "full_length_tokens" in server.launch.stated:
        return server.launch.full_length_tokens is not None
    return not spec.pooling


def _unsettled(launch: Launch) -> str | None:
    """Say what keeps the plan from being known, apart from the model."""
    unknown = [name for name in _DECIDING if getattr(launch, name) is None]
    if unknown:
        return f"{', '.join(unknown)}: not known"
    for name in ("block_size", "max_num_batched_tokens", "hybrid_manager", "prefix_caching"):
        if name in launch.stated and getattr(launch, name) is None:
            return f"{name}: could not be read"
    if launch.full_length_tokens is not None and launch.full_length_tokens <= 0:
        return "max_model_len: not above zero"
    if launch.speculative_tokens or "speculative_tokens" in launch.stated:
        return "the draft of speculative decoding keeps a cache of its own, which is not reckoned"
    option = given(launch, _REMODELLING)
    return None if option is None else f"{option} changes what the model keeps"


def _options(server: DeclaredServer, total_bytes: int | None) -> VllmOptions:
    launch = server.launch
    batch = launch.max_num_batched_tokens
    if batch is None:
        batch = LEAST_BATCH if total_bytes is None else default_batched_tokens(total_bytes)
    return VllmOptions(
        engine_version=server.version,
        dtype=launch.dtype or "auto",
        cache_dtype=launch.cache_dtype or "auto",
        tensor_parallel=launch.tensor_parallel or 1,
        pipeline_parallel=launch.pipeline_parallel or 1,
        decode_context_parallel=launch.decode_context_parallel or 1,
        block_size=launch.block_size,
        max_model_len=launch.full_length_tokens,
        max_num_batched_tokens=batch,
        max_num_seqs=launch.request_limit,
        hybrid_manager=launch.hybrid_manager is not False,
        async_scheduling=launch.async_scheduling is not False,
        prefix_caching=launch.prefix_caching is not False,
        mamba_cache_dtype=launch.mamba_cache_dtype or "auto",
        mamba_ssm_dtype=launch.mamba_ssm_dtype or "auto",
        runner=launch.runner or "auto",
    )


def _weights(model: Model, launch: Launch) -> int | None:
    """Return the least that the largest rank holds of a checkpoint; None where less may be loaded."""
    if model.weights is None or given(launch, _LIGHTENING) is not None:
        return None
    sizes = (
        launch.tensor_parallel,
        launch.pipeline_parallel,
        launch.data_parallel,
        launch.prefill_context_parallel,
    )
    known = [number for number in sizes if number is not None]
    if len(known) < len(sizes):
        return None
    total, by_dtype = model.weights.total_bytes, model.weights.by_dtype
    if not by_dtype and model.spec.dtype in (None, "float32", "float"):
        total //= 2  # a checkpoint of 32 bits, or one that does not say, is served in 16
    # Halved by `--dtype auto` (0.32.0, config/model.py, _resolve_auto_dtype).
    total -= sum(by_dtype.get(wide, 0) for wide in ("F32", "F64")) // 2 if launch.dtype != "float32" else 0
    # Experts are divided among data-parallel ranks too (0.32.0, model_executor/layers/fused_moe/config.py).
    return total // math.prod(known)


def _pool(server: DeclaredServer, total_bytes: int | None, weights: int | None) -> Pool | None:
    """Return what is known of one rank's pool without a model's plan."""
    launch = server.launch
    if launch.pin_bytes is not None:
        return Pool(
            size_bytes=launch.pin_bytes, exact=True, words=f"the pin, {size(launch.pin_bytes)}", basis="pin"
        )
    bounds = share_bounds(launch)
    if total_bytes is None or bounds is None or "pin_bytes" in launch.stated:
        return None
    low, share = bounds
    asked = math.ceil(total_bytes * share)
    if server.measured_bytes is not None and one_rank_a_card(server):
        return Pool(
            size_bytes=max(0, asked - server.measured_bytes),
            exact=low == share,
            words=f"{share:.2f} x {size(total_bytes)} - {size(server.measured_bytes)} measured",
            basis="measured",
        )
    if weights is None:
        return None
    return Pool(
        size_bytes=max(0, asked - weights),
        exact=False,
        words=f"{share:.2f} x {size(total_bytes)} - {size(weights)} of weights",
        basis="weights",
    )
