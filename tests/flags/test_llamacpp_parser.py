"""`llama-server`: our reading of command lines against the contexts that a real b11434 made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvwatch.flags import llamacpp
from kvwatch.flags.command import Command
from kvwatch.flags.launch import Launch, Origin

HERE = Path(__file__).parent
STARTED = json.loads((HERE / "llamacpp-started.json").read_text())
TABLE = json.loads((HERE / "llamacpp-b11434.json").read_text())

WORDS = {"enabled": True, "disabled": False, "true": True, "false": False, "unused": None, "unset": None}


def read(*argv: str, version: tuple[int, ...] | None = (11434,), **environ: str) -> Launch:
    """Parse a llama-server's command line."""
    return llamacpp.parse(Command(argv=("llama-server", *argv), environ=environ), version=version)


@pytest.mark.parametrize("case", STARTED, ids=lambda case: case["name"])
def test_agrees_with_the_context_that_a_real_server_made(case: dict[str, Any]) -> None:
    """Slots, sharing and cells are those of the running server wherever we claim to know them."""
    launch = read("-m", "m.gguf", *case["argv"], **case["environ"])
    context = case["context"]
    assert launch.request_limit == context["n_seq_max"]
    assert launch.kv_unified == context["kv_unified"]
    assert launch.pool_tokens == (context["n_ctx"] if case["name"] != "explicit-zero" else None)


def test_defaults_are_those_that_the_real_server_prints() -> None:
    """Each default that `--help` of b11434 states plainly is the one applied to it."""
    launch = read("-m", "m.gguf")
    compared = set()
    by_name = {name: option for option in TABLE["options"] for name in option["names"]}
    for option in llamacpp.OPTIONS:
        printed = by_name[option.names[0]]["default"]
        if option.field not in launch.defaulted or printed is None:
            continue
        value = getattr(launch, option.field)
        if option.read is None:
            expected = WORDS.get(printed)
            if expected is not None:
                compared.add(option.field)
                assert value == (expected if option.value else not expected), option.field
        elif WORDS.get(printed, printed) is None:
            compared.add(option.field)
            assert value is None, option.field
        elif value is not None:
            compared.add(option.field)
            assert value == option.read(printed), option.field
    assert {
        "port",
        "host",
        "parallel",
        "batch_size",
        "ubatch_size",
        "cache_type_k",
        "n_gpu_layers",
    } <= compared
    assert {"swa_full", "no_kv_offload", "metrics_page", "slots_page"} <= compared


@pytest.mark.parametrize(
    "argv, field, value",
    [
        pytest.param(["-nkvo"], "no_kv_offload", True, id="negated-short"),
        pytest.param(["-nkvo", "-kvo"], "no_kv_offload", False, id="the-last-one-wins"),
        pytest.param(["--no_kv_offload"], "no_kv_offload", True, id="underscores"),
        pytest.param(["-ngl", "all"], "n_gpu_layers", -2, id="all-layers"),
        pytest.param(["-ngl", "auto"], "n_gpu_layers", -1, id="automatic-layers"),
        pytest.param(["--gpu-layers", "12"], "n_gpu_layers", 12, id="an-alias"),
        pytest.param(["-fa", "on"], "flash_attention", "on", id="attention-on"),
        pytest.param(["-fa", "0"], "flash_attention", "off", id="attention-off-as-number"),
        pytest.param(["-fa", "-c", "512"], "flash_attention", "on", id="attention-as-an-old-flag"),
        pytest.param(["-fit", "off"], "fit", False, id="fit-off"),
        pytest.param(["-md", "d.gguf"], "draft_model", "d.gguf", id="draft"),
        pytest.param(["-a", "x, y,x"], "served_names", ("x", "y"), id="names"),
        pytest.param(["-hf", "org/repo:Q4_K_M"], "model", "org/repo:Q4_K_M", id="a-repository"),
        pytest.param(["--metrics"], "metrics_page", True, id="metrics"),
        pytest.param(["--no-slots"], "slots_page", False, id="slots-off"),
        pytest.param(["--host", "/run/llama.sock"], "socket_path", "/run/llama.sock", id="a-socket"),
        pytest.param(["--sleep-idle-seconds", "-1"], "sleep_idle_seconds", None, id="never-sleeps"),
        pytest.param(["--sleep-idle-seconds", "60"], "sleep_idle_seconds", 60, id="sleeps"),
        pytest.param(["--api-prefix", "/llm"], "api_prefix", "/llm", id="a-prefix"),
    ],
)
def test_reads_an_option(argv: list[str], field: str, value: object) -> None:
    """One option gives one field."""
    launch = read(*argv)
    assert getattr(launch, field) == value
    assert launch.origin(field) is Origin.STATED


@pytest.mark.parametrize(
    "argv, version, pool",
    [
        pytest.param(["-c", "4096"], None, 4096, id="unknown-build-one-stream-either-way"),
        pytest.param(["-c", "1000"], None, None, id="unknown-build-and-rounding"),
        pytest.param(["-c", "4096", "-np", "2"], None, 4096, id="unknown-build-split-without-rounding"),
        pytest.param(["-c", "4096", "-np", "3"], None, None, id="unknown-build-split-with-rounding"),
        pytest.param([], (11434,), None, id="size-left-to-fit"),
        pytest.param(["-c", "0", "-np", "2"], (11434,), None, id="size-of-the-model"),
        pytest.param(["-c", "4096", "-np", "many"], (11434,), None, id="unreadable-slots"),
        pytest.param(
            ["-c", "4096", "--gpt-oss-20b-default"], (11434,), None, id="a-preset-may-have-changed-it"
        ),
        pytest.param(
            ["--gpt-oss-20b-default", "-c", "4096", "-np", "2", "-kvu"],
            (11434,),
            4096,
            id="stated-after-preset",
        ),
    ],
)
def test_claims_a_pool_only_where_it_is_certain(
    argv: list[str], version: tuple[int, ...] | None, pool: int | None
) -> None:
    """Cells are known only where neither free memory, nor the model, nor an unknown build decides them."""
    assert read("-m", "m.gguf", *argv, version=version).pool_tokens == pool


def test_says_nothing_of_slots_that_an_unknown_build_chooses() -> None:
    """Without a build the number of slots is unknown, not 4 and not 1."""
    launch = read("-m", "m.gguf", version=None)
    assert launch.request_limit is None
    assert launch.kv_unified is None
    assert launch.origin("parallel") is Origin.UNKNOWN


def test_a_preset_leaves_no_default_standing() -> None:
    """`--fim-...` and their like set other options, so nothing that was not stated after them is known."""
    launch = read("--port", "9000", "--fim-qwen-3b-default", "-ub", "256")
    assert launch.port is None
    assert launch.batch_size is None
    assert launch.ubatch_size == 256
    assert launch.unknown == (("--fim-qwen-3b-default",),)


def test_keeps_what_no_field_stands_for() -> None:
    """Other options and variables are kept as given, with their values."""
    launch = read("--temp", "0.5", "--mlock", "--new-thing", "1", "-2", LLAMA_ARG_THREADS="4")
    assert launch.unknown == (
        ("LLAMA_ARG_THREADS=4",),
        ("--temp", "0.5"),
        ("--mlock",),
        ("--new-thing", "1", "-2"),
    )


def test_reads_a_routers_child() -> None:
    """A child of a router is a server of its own, with the port and name that the router gave it."""
    command = Command(
        argv=(
            *("/app/llama-server", "--host", "127.0.0.1", "--port", "40123", "--alias", "org/model:Q8_0"),
            *("--model", "/models/m.gguf", "--ctx-size", "8192", "--parallel", "2"),
        ),
    )
    assert llamacpp.recognises(command)
    launch = llamacpp.parse(command, version=(11434,))
    assert (launch.port, launch.served_names, launch.model) == (40123, ("org/model:Q8_0",), "/models/m.gguf")
    assert (launch.request_limit, launch.pool_tokens, launch.kv_unified) == (2, 8192, False)


def test_a_variable_that_cannot_be_read_is_not_a_default() -> None:
    """A switch that is neither on nor off stops the real server; here it leaves the field unknown."""
    launch = read("-m", "m.gguf", LLAMA_ARG_KV_OFFLOAD="perhaps")
    assert launch.no_kv_offload is None
    assert launch.origin("no_kv_offload") is Origin.UNKNOWN


def test_another_builds_names_of_drafts_leave_drafts_unknown() -> None:
    """Variables and options that b11434 no longer has may have named a draft model."""
    for launch in (read(LLAMA_ARG_MODEL_DRAFT="d.gguf"), read("--draft-model-of-old", "d.gguf")):
        assert launch.origin("draft_model") is Origin.UNKNOWN
        assert launch.origin("draft_type") is Origin.UNKNOWN
    assert read().origin("draft_model") is Origin.DEFAULT


def test_sharing_refused_without_a_build_is_unknown() -> None:
    """`-no-kvu` means nothing where slots turn out to be automatic, and without a build nobody knows."""
    launch = read("-no-kvu", version=None)
    assert launch.kv_unified is None
    assert launch.origin("kv_unified") is Origin.UNKNOWN
