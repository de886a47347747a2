"""What the cost model says of a start, from the model's own files and the settings that the log prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvwatch.byte_sizes import size
from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.llamacpp import LlamaModel, LlamaOptions, LlamaOptionsError, allocate
from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.vllm import OptionError, VllmOptions, plan_blocks
from kvwatch.cost.vllm_longest import longest_length
from kvwatch.startup_log.amounts import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.cost.gguf import GgufHeader
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm import BlockPlan
    from kvwatch.startup_log.facts import Start

_HALF_DIGIT = GIB // 200
_CLOSE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """The model's figures beside the log's."""

    sentences: tuple[str, ...]
    numbers: Mapping[str, float]
    agrees: bool | None = None
    """None where there is nothing to compare."""


class NoOpinionError(Exception):
    """Why the cost model cannot speak of a start."""


def judge_vllm(start: Start, config: Mapping[str, Any]) -> Opinion:
    """Return the cost model's view of a vLLM start; raise NoOpinionError."""
    if start.configuration.get("speculative_config", "None") != "None":
        raise NoOpinionError(
            "the draft of speculative decoding keeps a cache of its own, which is not reckoned"
        )
    try:
        spec = read_hf_config(config)
        options = _options(start)
        plan = plan_blocks(spec, options)
        return _vllm(start, spec, options, plan)
    except (ModelSpecError, OptionError) as error:
        raise NoOpinionError(str(error)) from error


def _options(start: Start) -> VllmOptions:
    settings, config = start.settings, start.configuration
    return VllmOptions(
        engine_version=start.release,
        dtype=config.get("dtype", "auto").removeprefix("torch."),
        cache_dtype=config.get("kv_cache_dtype") or settings.get("kv_cache_dtype", "auto"),
        tensor_parallel=_count(config, "tensor_parallel_size")
        or _count(settings, "tensor_parallel_size")
        or 1,
        pipeline_parallel=_count(config, "pipeline_parallel_size")
        or _count(settings, "pipeline_parallel_size")
        or 1,
        decode_context_parallel=_count(config, "decode_context_parallel_size") or 1,
        block_size=_count(settings, "block_size"),
        max_model_len=start.max_model_len,
        max_num_batched_tokens=_count(settings, "max_num_batched_tokens"),
        max_num_seqs=_count(settings, "max_num_seqs"),
        hybrid_manager=settings.get("disable_hybrid_kv_cache_manager") != "True",
        async_scheduling=settings.get("async_scheduling") != "False",
        prefix_caching=config.get("enable_prefix_caching") != "False",
        runner="pooling" if settings.get("runner") == "pooling" else "auto",
    )


def _vllm(start: Start, spec: ModelSpec, options: VllmOptions, plan: BlockPlan) -> Opinion:
    if not plan.groups:
        return Opinion(sentences=("The model keeps no KV cache.",), numbers={})
    per_request = plan.start_blocks * plan.bytes_per_block
    sentences = [
        (
            f"By the model's files ({spec.architecture}): {plan.bytes_per_token:,.0f} bytes a token,"
            f" {plan.bytes_per_block:,} a block; the planner charges {plan.start_blocks:,} blocks"
            f" ({size(per_request)}) for one request of {plan.full_length or 0:,} tokens."
        )
    ]
    numbers: dict[str, float] = {
        "bytes_per_token": plan.bytes_per_token,
        "bytes_per_block": plan.bytes_per_block,
        "request_bytes": per_request,
        "minimum_pool_bytes": plan.minimum_pool_bytes,
    }
    if start.failure is not None:
        sentences += _of_failure(start, spec, options, plan, numbers)
        return Opinion(sentences=tuple(sentences), numbers=numbers)
    low, high = _blocks(start, plan)
    if high is None or low is None:
        return Opinion(sentences=tuple(sentences), numbers=numbers)
    tokens = [plan.kv_cache_size_tokens(low) or 0, plan.kv_cache_size_tokens(high) or 0]
    numbers.update(kv_tokens_least=tokens[0], kv_tokens_most=tokens[1])
    between = f"{tokens[0]:,}" if tokens[0] == tokens[1] else f"{tokens[0]:,} to {tokens[1]:,}"
    sentence = f"This pool makes {between} tokens"
    if start.kv_tokens is None:
        return Opinion(sentences=(*sentences, f"{sentence}."), numbers=numbers)
    agrees = tokens[0] <= start.kv_tokens <= tokens[1] or _near(start.kv_tokens, tokens[1])
    numbers["kv_tokens"] = start.kv_tokens
    if agrees:
        sentences.append(f"{sentence}; the engine says {start.kv_tokens:,}: they agree.")
    else:
        off = 100 * (start.kv_tokens / tokens[1] - 1) if tokens[1] else 0.0
        sentences.append(f"{sentence}; the engine says {start.kv_tokens:,}: {off:+.1f} %. {_why(start, off)}")
    return Opinion(sentences=tuple(sentences), numbers=numbers, agrees=agrees)


def _why(start: Start, off: float) -> str:
    if off < 0 and (start.expected_ranks or 1) > max(1, len(start.ranks)):
        return "Not every rank printed its memory: all get the pool of the smallest."
    return (
        "A setting that the log does not print, a layer that is not reckoned, or another model than this one."
    )


def _blocks(start: Start, plan: BlockPlan) -> tuple[int | None, int | None]:
    """Return the fewest and the most blocks that the printed figures allow."""
    if start.num_blocks is not None:
        return start.num_blocks, start.num_blocks
    pool = start.memory.kv_bytes
    if pool is None:
        return None, None
    doubt = 0 if start.memory.kv_bytes_exact else _HALF_DIGIT
    return plan.num_blocks(max(0, pool - doubt)), plan.num_blocks(pool + doubt)


def _of_failure(
    start: Start, spec: ModelSpec, options: VllmOptions, plan: BlockPlan, numbers: dict[str, float]
) -> list[str]:
    """Say what length would have fitted into the memory that a failed start had."""
    if start.failure is None or start.failure.kind != "kv_too_small" or not start.memory.kv_bytes:
        return []
    available = start.memory.kv_bytes
    if start.profiled_blocks is not None and start.num_blocks is not None:
        available = start.num_blocks * plan.bytes_per_block
    longest = longest_length(spec, options, available, plan.full_length or 0)
    if longest is None:
        return ["Not even one token fits into that memory."]
    numbers["longest_max_model_len"] = longest
    return [f"Into {size(available)} fits a --max-model-len of {longest:,}, by the model's files."]


def judge_llamacpp(start: Start, header: GgufHeader) -> Opinion:
    """Return the cost model's view of a llama-server's start; raise NoOpinionError."""
    slots = start.slots
    if slots is None or slots.count is None or start.kv_tokens is None or slots.unified is None:
        raise NoOpinionError("the log does not say the whole context (start llama-server with -lv 4)")
    if slots.contexts > 1:
        raise NoOpinionError("a draft's context is in the figures, which is not reckoned from the log")
    try:
        pool = allocate(
            LlamaModel.from_header(header),
            LlamaOptions(
                ctx_size=start.kv_tokens,
                parallel=slots.count,
                kv_unified=slots.unified,
                cache_type_k=slots.cache_type_k or "f16",
                cache_type_v=slots.cache_type_v or "f16",
                ubatch_size=slots.ubatch_size or 512,
            ),
        )
    except (ModelSpecError, LlamaOptionsError) as error:
        raise NoOpinionError(str(error)) from error
    held = sum(device.kv_bytes + device.recurrent_bytes for device in start.devices)
    if not held:
        held = (start.memory.kv_bytes or 0) + (start.recurrent_bytes or 0)
    sentence = (
        f"By the model's file: {pool.bytes_per_token:,.0f} bytes a token,"
        f" {size(pool.total_bytes)} for this context"
    )
    numbers: dict[str, float] = {"bytes_per_token": pool.bytes_per_token, "kv_bytes": pool.total_bytes}
    if not held:
        return Opinion(sentences=(f"{sentence}.",), numbers=numbers)
    agrees = abs(pool.total_bytes - held) <= MIB // 50 * max(1, len(start.devices)) or _near(
        held, pool.total_bytes
    )
    if agrees:
        return Opinion(
            sentences=(f"{sentence}; the server made {size(held)}: they agree.",),
            numbers=numbers,
            agrees=True,
        )
    off = 100 * (held / pool.total_bytes - 1) if pool.total_bytes else 0.0
    return Opinion(
        sentences=(f"{sentence}; the server made {size(held)}: {off:+.1f} %.",), numbers=numbers, agrees=False
    )


def _near(value: float, reference: float) -> bool:
    return abs(value - reference) <= _CLOSE * abs(reference) / 10


def _count(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() and 0 < len(text) < 10 and int(text) else None  # noqa: PLR2004
