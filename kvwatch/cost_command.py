"""`kvwatch cost MODEL`: the cost model alone, from a file on this machine."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost_report import llamacpp_report, vllm_report
from kvwatch.cost_table import render_cost
from kvwatch.readings import SourceError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from kvwatch.cost.gguf import GgufHeader
    from kvwatch.sources.model_path import FoundModel

_DEFAULT_BATCHED_TOKENS = 8192
_LLAMACPP_ONLY = {
    "ctx_size": "--ctx-size",
    "parallel": "--parallel",
    "kv_unified": "--kv-unified",
    "cache_type_k": "--cache-type-k",
    "cache_type_v": "--cache-type-v",
    "ubatch_size": "--ubatch-size",
    "swa_full": "--swa-full",
    "no_kv_offload": "--no-kv-offload",
}


class CostError(Exception):
    """What keeps a model from having a cost, in a sentence."""


def add_arguments(command: argparse.ArgumentParser, size: Callable[[str], int]) -> None:
    """Add the options of `kvwatch cost`; `size` reads a number of bytes such as 12GiB."""
    command.add_argument(
        "model",
        metavar="MODEL",
        help="config.json, model folder, GGUF, or a Hugging Face id in the local cache",
    )
    command.add_argument(
        "--engine", choices=("vllm", "llamacpp"), help="default: llamacpp for a GGUF, else vllm"
    )
    command.add_argument(
        "--length",
        type=_count,
        action="append",
        default=[],
        metavar="N",
        help="a request's tokens; may be repeated",
    )
    command.add_argument("--json", action="store_true", help="print everything as JSON")
    vllm = command.add_argument_group("vLLM")
    vllm.add_argument("--engine-version", type=_version, metavar="X.Y.Z", help="default: the newest known")
    vllm.add_argument("--pool", type=size, metavar="SIZE", help="KV memory of one rank, such as 12GiB")
    vllm.add_argument("--dtype", default="auto")
    vllm.add_argument("--cache-dtype", default="auto", help="--kv-cache-dtype of the server")
    vllm.add_argument("--tp", type=_count, default=1, metavar="N", help="tensor parallel")
    vllm.add_argument("--pp", type=_count, default=1, metavar="N", help="pipeline parallel")
    vllm.add_argument("--dcp", type=_count, default=1, metavar="N", help="decode context parallel")
    vllm.add_argument("--block-size", type=_count, metavar="N")
    vllm.add_argument("--max-model-len", type=_count, metavar="N", help="default: the model's own")
    vllm.add_argument(
        "--max-num-batched-tokens",
        type=_count,
        metavar="N",
        help=f"default {_DEFAULT_BATCHED_TOKENS}",
    )
    vllm.add_argument("--max-num-seqs", type=_count, metavar="N", help="most requests at once: caps the fits")
    vllm.add_argument("--no-hybrid-manager", action="store_true", help="--disable-hybrid-kv-cache-manager")
    vllm.add_argument("--no-async-scheduling", action="store_true")
    vllm.add_argument("--no-prefix-caching", action="store_true")
    vllm.add_argument("--mamba-ssm-dtype", default="auto")
    vllm.add_argument("--runner", choices=("auto", "generate", "pooling"), default="auto")
    llama = command.add_argument_group("llama-server")
    llama.add_argument("--ctx-size", type=int, metavar="N", help="tokens of the whole pool")
    llama.add_argument("--parallel", type=int, metavar="N", help="slots; default 4 that share one pool")
    llama.add_argument("--kv-unified", action="store_true", default=None)
    llama.add_argument("--cache-type-k", metavar="TYPE")
    llama.add_argument("--cache-type-v", metavar="TYPE")
    llama.add_argument("--ubatch-size", type=_count, metavar="N")
    llama.add_argument("--swa-full", action="store_true", default=None)
    llama.add_argument("--no-kv-offload", action="store_true", default=None)


def run_cost(options: argparse.Namespace) -> int:
    """Print the cost of a model; return 0, or 1 with the reason and no number at all."""
    from kvwatch.sources.model_path import find_model  # noqa: PLC0415 - help needs no files

    try:
        model = find_model(options.model)
        engine = "vllm" if model.gguf is None else "llamacpp"
        _check_engine(engine, options)
        report, assumptions = _vllm(model, options) if model.gguf is None else _llamacpp(model.gguf, options)
    except (CostError, ModelSpecError, SourceError) as error:
        print(f"kvwatch cost: {options.model}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2) if options.json else render_cost(report, assumptions), end="")
    if options.json:
        print()
    return 0


def _check_engine(engine: str, options: argparse.Namespace) -> None:
    """Refuse an engine that does not load such a file, and options of the other engine."""
    if options.engine not in (None, engine):
        raise CostError("vLLM's cost is known from config.json, llama-server's from a GGUF file")
    if engine == "vllm":
        foreign = [flag for name, flag in _LLAMACPP_ONLY.items() if getattr(options, name) is not None]
        if foreign:
            raise CostError(f"{', '.join(foreign)}: options of llama-server, which needs a GGUF file")


def _vllm(model: FoundModel, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from kvwatch.cost.hf import read_hf_config  # noqa: PLC0415
    from kvwatch.cost.vllm import OptionError, VllmOptions, plan_blocks  # noqa: PLC0415
    from kvwatch.sources.checkpoint import read_checkpoint  # noqa: PLC0415

    spec = read_hf_config(model.config or {})
    assumptions: list[str] = []
    batched = options.max_num_batched_tokens
    if batched is None:
        batched = _DEFAULT_BATCHED_TOKENS
        assumptions.append(
            f"--max-num-batched-tokens {batched}: vLLM's default on cards of 70 GiB and more;"
            " it is 2048 on smaller ones and on A100, 16384 from 160 GiB"
        )
    try:
        plan = plan_blocks(
            spec,
            VllmOptions(
                engine_version=options.engine_version,
                dtype=options.dtype,
                cache_dtype=options.cache_dtype,
                tensor_parallel=options.tp,
                pipeline_parallel=options.pp,
                decode_context_parallel=options.dcp,
                block_size=options.block_size,
                max_model_len=options.max_model_len,
                max_num_batched_tokens=batched,
                max_num_seqs=options.max_num_seqs,
                hybrid_manager=not options.no_hybrid_manager,
                async_scheduling=not options.no_async_scheduling,
                prefix_caching=not options.no_prefix_caching,
                mamba_ssm_dtype=options.mamba_ssm_dtype,
                runner=options.runner,
            ),
        )
        report = vllm_report(
            spec, plan, pool_bytes=options.pool, lengths=options.length, request_limit=options.max_num_seqs
        )
    except OptionError as error:
        raise CostError(str(error)) from error
    weights = read_checkpoint(model.path.parent)
    report["weights_bytes"] = None if weights is None else weights.total_bytes
    if all(group.window is None for group in plan.groups):
        assumptions = []  # only windows, chunks and encoders depend on the batch
    return report, assumptions


def _llamacpp(header: GgufHeader, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from kvwatch.cost.llamacpp import LlamaModel, LlamaOptions, LlamaOptionsError, allocate  # noqa: PLC0415
    from kvwatch.cost.weights import gguf_weights  # noqa: PLC0415

    llama = LlamaModel.from_header(header)
    names = [name for name in _LLAMACPP_ONLY if name != "no_kv_offload"]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.no_kv_offload:
        given["kv_offload"] = False
    try:
        pool = allocate(llama, LlamaOptions(**given))
    except LlamaOptionsError as error:
        raise CostError(str(error)) from error
    report = llamacpp_report(llama.architecture, pool, lengths=options.length)
    weights = gguf_weights([header])
    report["weights_bytes"] = None if weights is None else weights.total_bytes
    return report, []


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.removeprefix("v").split("."))
