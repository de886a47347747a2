"""`vllm serve`: our reading of command lines against what the real parser of 0.32.0 made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvwatch.flags import vllm
from kvwatch.flags.command import Command
from kvwatch.flags.launch import Origin

TABLE = json.loads((Path(__file__).parent / "vllm-0.32.0.json").read_text())

FIELDS = {
    "model": "model",
    "host": "host",
    "port": "port",
    "uds": "socket_path",
    "served_model_name": "served_names",
    "max_model_len": "full_length_tokens",
    "max_num_seqs": "request_limit",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "data_parallel_size": "data_parallel",
    "decode_context_parallel_size": "decode_context_parallel",
    "prefill_context_parallel_size": "prefill_context_parallel",
    "gpu_memory_utilization": "share_ratio",
    "kv_cache_memory_bytes": "pin_bytes",
    "block_size": "block_size",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "kv_cache_dtype": "cache_dtype",
    "dtype": "dtype",
    "runner": "runner",
    "mamba_cache_dtype": "mamba_cache_dtype",
    "mamba_ssm_cache_dtype": "mamba_ssm_dtype",
    "disable_hybrid_kv_cache_manager": "hybrid_manager",
    "async_scheduling": "async_scheduling",
    "enable_prefix_caching": "prefix_caching",
    "kv_offloading_size": "kv_offload_bytes",
    "speculative_config": "speculative_tokens",
    "api_server_count": "api_servers",
    "headless": "headless",
    "disable_log_stats": "metrics_page",
}
"""Real destination -> our field."""


def translated(name: str, value: Any) -> Any:
    """Say a real parser's value in our words."""
    if name in ("disable_hybrid_kv_cache_manager", "disable_log_stats"):
        return not value
    if name == "served_model_name":
        return tuple(value)
    if name == "kv_offloading_size":
        return int(value * 2**30)
    if name == "speculative_config":
        return value["num_speculative_tokens"]
    if name == "max_model_len" and value == -1:
        return None
    return value


def real_defaults() -> dict[str, Any]:
    """Say the real parser's defaults in our words."""
    return {
        FIELDS[name]: None if option["default"] is None else translated(name, option["default"])
        for option in TABLE["options"]
        for name in [option["names"][0].removeprefix("--").replace("-", "_")]
        if name in FIELDS and name not in ("model", "served_model_name")
    }


@pytest.mark.parametrize("case", TABLE["parsed"], ids=lambda case: case["name"])
def test_reads_what_the_real_parser_reads(case: dict[str, Any]) -> None:
    """Every setting that the real parser took from a command line is stated with that value."""
    asked: list[str] = []

    def config_text(path: str) -> str:
        asked.append(path)
        return str(case["config"])

    command = Command(argv=("vllm", *case["argv"]), cwd="/srv")
    launch = vllm.parse(command, version=(0, 32, 0), config_text=config_text)
    expected = {FIELDS[name]: translated(name, value) for name, value in case["given"].items()}
    if "socket_path" in expected:
        expected.pop("host")  # the engine does not listen there
    stated = {name: getattr(launch, name) for name in launch.stated}
    assert {name: stated[name] for name in expected} == expected
    # A setting given as its default is stated here and cannot be told there.
    defaults = real_defaults()
    assert {name: value for name, value in stated.items() if name not in expected} == {
        name: defaults[name] for name in stated.keys() - expected.keys()
    }
    assert asked in ([], ["/srv/config.yaml"])


def test_defaults_are_those_of_the_real_parser() -> None:
    """Each default that we apply to 0.32.0 is the real parser's own."""
    launch = vllm.parse(Command(argv=("vllm", "serve", "m")), version=(0, 32, 0), config_text=None)
    real = real_defaults()
    compared = launch.defaulted & real.keys()
    assert {name: getattr(launch, name) for name in compared} == {name: real[name] for name in compared}
    assert launch.defaulted - real.keys() == {"api_prefix", "served_names", "visible_devices"}


@pytest.mark.parametrize(
    "name", ["full_length_tokens", "request_limit", "max_num_batched_tokens", "block_size"]
)
def test_what_the_engine_chooses_by_model_and_device_is_unknown(name: str) -> None:
    """Settings whose default depends on more than the release are unknown unless stated."""
    launch = vllm.parse(Command(argv=("vllm", "serve", "m")), version=(0, 32, 0), config_text=None)
    assert getattr(launch, name) is None
    assert launch.origin(name) is Origin.UNKNOWN
