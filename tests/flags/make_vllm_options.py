"""Write what the real parser of `vllm serve` knows, and what it makes of some command lines.

Run by the Python that has vLLM installed, in this folder's parent's parent:

    python tests/flags/make_vllm_options.py > tests/flags/vllm-0.32.0.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
KEPT = (
    "model",
    "host",
    "port",
    "uds",
    "served_model_name",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "block_size",
    "num_gpu_blocks_override",
    "kv_cache_dtype",
    "dtype",
    "runner",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "disable_hybrid_kv_cache_manager",
    "async_scheduling",
    "enable_prefix_caching",
    "kv_offloading_size",
    "speculative_config",
    "api_server_count",
    "headless",
    "disable_log_stats",
)


def values_of(action: argparse.Action) -> str:
    """Say how many values an option takes: 0, 1, ? (none or one) or + (one or more)."""
    return "1" if action.nargs is None else str(action.nargs)


def main() -> None:
    """Print options and parsed command lines, one a line."""
    with contextlib.redirect_stdout(sys.stderr):
        import vllm  # noqa: PLC0415 -- only where it is installed
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415
        from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

        root = FlexibleArgumentParser(prog="vllm")
        serve = make_arg_parser(root.add_subparsers(dest="subparser").add_parser("serve"))
        options = [
            {
                "names": action.option_strings,
                "values": values_of(action),
                "default": action.default
                if action.dest in KEPT and not isinstance(action.default, argparse.Namespace)
                else None,
            }
            for action in serve._actions
            if action.option_strings
        ]
        parsed = []
        for case in json.loads((HERE / "vllm-command-lines.json").read_text()):
            argv = list(case["argv"])
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                if "config" in case:
                    (Path(folder) / "config.yaml").write_text(case["config"])
                arguments = vars(root.parse_args(argv))
            # What `vllm serve` does with a positional model (entrypoints/cli/serve.py).
            arguments["model"] = arguments["model_tag"] or arguments["model"]
            given = {name: arguments[name] for name in KEPT if arguments[name] != serve.get_default(name)}
            parsed.append({**case, "given": given})
    rows = ",\n".join(json.dumps(option, default=str) for option in options)
    cases = ",\n".join(json.dumps(case, default=str) for case in parsed)
    sys.stdout.write(
        f'{{"version": "{vllm.__version__}", "options": [\n{rows}\n], "parsed": [\n{cases}\n]}}\n'
    )


if __name__ == "__main__":
    main()
