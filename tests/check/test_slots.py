"""A llama-server before it starts, with its model's file and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.check.verdict import Finding, Severity
from kvwatch.sources.model import ModelFiles
from tests.check.fleet import found, server

MODELS = Path(__file__).parent / "models"
OVER = "unified-pool-over-committed"


def judged(options: str, name: str | None = "plain.gguf", build: int | None = 11434) -> dict[str, Finding]:
    """Return the findings on one llama-server."""
    model = None if name is None else ModelFiles().read(MODELS / name)
    version = None if build is None else (build,)
    return found(server("a", f"llama-server -m x.gguf {options}", version=version, model=model))


@pytest.mark.parametrize(
    "options, over",
    [
        ("-c 8192", True),
        ("-c 8192 -np 4", False),
        ("-c 8192 -np 4 -kvu", True),
        ("-c 8192 -np 1 -kvu", False),
        ("-c 32768 -np 4 -kvu", False),
        ("-c 4096 -np 4 -kvu --kv-unified-per-slot 1024", False),
        ("-c 4096 -np 4 -kvu --kv-unified-per-slot 2048", True),
        ("", False),
    ],
)
def test_slots_over_commit_a_shared_pool(options: str, over: bool) -> None:  # noqa: FBT001
    """A model trained for 8,192: the training context and a cap limit what a slot may claim."""
    rules = judged(options)
    assert (OVER in rules) is over
    assert not over or rules[OVER].severity is Severity.WARNING


@pytest.mark.parametrize("build", [11434, None])
def test_without_the_models_file_it_is_a_note_with_its_condition(build: int | None) -> None:
    """The training context is not known, and neither is the build: told as what it depends on."""
    finding = judged("-c 8192", None, build)[OVER]
    assert finding.severity is Severity.NOTE
    assert "over 2,048 tokens are enough to over-commit" in finding.message
    assert OVER not in judged("-c 8192 -np 4", None, build)
    assert OVER not in judged("", None, build)


def test_a_model_that_was_read_bounds_its_slots_though_the_build_is_not_known() -> None:
    """Trained for 8,192: four slots claim no more than 32,768, whatever the build."""
    assert OVER not in judged("-c 32768", build=None)
    message = judged("-c 16384", build=None)[OVER].message
    assert "4 x 8,192 = 32,768, 2.0 times the pool. When they do" in message
    assert OVER not in judged("-c 8192 -np 4 -kvu -ctv q8_0 -fa off")


def test_the_split_pool_that_mends_it_does() -> None:
    """-np 4 alone gives each slot a part; -np 1 one slot all of it."""
    assert "-np 1 for full length, or -np 4 without --kv-unified" in judged("-c 8192")[OVER].message
    assert OVER not in judged("-c 8192 -np 1") | judged("-c 32768 -np 4")


@pytest.mark.parametrize(
    "options, each",
    [("-c 4096 -np 3", 1536), ("-c 8192 -np 4", 2048), ("-c 163840 -np 6", 27392)],
)
def test_a_divided_context_is_rounded_as_the_engine_does(options: str, each: int) -> None:
    """With the model's file and without it the part is the same."""
    for name in ("plain.gguf", None):
        finding = judged(options, name)["parallel-divides-context"]
        assert finding.numbers["slot_limit_tokens"] == min(each, 8192 if name else each)


def test_a_quantised_cache_under_tensor_split_depends_on_the_build() -> None:
    """Refused, not known, allowed; an f16 cache is never a matter."""
    rule, options = "quantised-cache-tensor-split", "-c 4096 -np 1 -sm tensor -ctk q8_0"
    assert judged(options, None, 9442)[rule].severity is Severity.ERROR
    assert judged(options, None, 9450)[rule].severity is Severity.WARNING
    assert judged(options, None, None)[rule].severity is Severity.WARNING
    assert rule not in judged(options, None, 9484)
    assert rule not in judged("-c 4096 -np 1 -sm tensor", None, 9442)
    assert rule not in judged("-c 4096 -np 1 -sm layer -ctk q8_0", None, 9442)


def test_k_alone_may_be_quantised_without_flash_attention() -> None:
    """Only V needs it."""
    assert "quantised-v-without-flash" not in judged("-c 4096 -np 1 -fa off -ctk q8_0")
    assert "quantised-v-without-flash" in judged("-c 4096 -np 1 -fa off -ctv q4_0", None)
    assert "cache-refused" not in judged("-c 4096 -np 1 -fa off -ctv q4_0")


def test_a_window_as_long_as_the_context_is_told_with_its_bytes() -> None:
    """--swa-full on a model with a window, and nothing on one without."""
    assert (
        "window of 512 tokens"
        in judged("-c 8192 -np 1 --swa-full", "window.gguf")["window-kept-whole"].message
    )
    assert "window-kept-whole" not in judged("-c 8192 -np 1 --swa-full")


def test_zero_context_keeps_fit_away_and_leaving_it_out_does_not() -> None:
    """Only `-c 0` is a matter."""
    assert judged("-c 0 -np 1")["context-zero"].numbers["pool_bytes"] == 32 << 20
    assert "its file is not read" in judged("-c 0 -np 1", None)["context-zero"].message
    assert "context-zero" not in judged("-np 1")


@pytest.mark.parametrize("options", ["-c 512 -np 300", "-ctk q5_9 -c 512 -np 1"])
def test_what_the_engine_refuses_is_an_error_in_its_words(options: str) -> None:
    """Slots, types and heads."""
    assert judged(options)["cache-refused"].severity is Severity.ERROR


def test_a_cpu_server_has_no_cache_in_the_wrong_place() -> None:
    """--device none computes where its cache lies."""
    assert "cache-in-host-memory" in judged("-c 512 -np 1 -nkvo", None)
    assert "cache-in-host-memory" not in judged("-c 512 -np 1 -nkvo -dev none", None)
