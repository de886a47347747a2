"""Options that a parser refuses: by release, by build, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwatch.check.flag_releases import APPEARED, NEWEST, OLDEST, VANISHED, absent_since
from kvwatch.check.rules_flags import _VLLM
from kvwatch.check.verdict import Severity
from kvwatch.flags import vllm_names
from tests.check.fleet import found, server

REAL = json.loads((Path(__file__).parents[1] / "flags" / "vllm-0.32.0.json").read_text())["options"]


def test_every_name_of_the_tables_is_an_option() -> None:
    """A name that nobody takes would accuse nobody."""
    assert set(APPEARED) | set(VANISHED) <= _VLLM


def test_boundaries_are_in_order() -> None:
    """What came between two releases came between an older and a newer one, within what was read."""
    for before, after in (*APPEARED.values(), *VANISHED.values()):
        assert OLDEST <= before < after
        assert after[:2] <= NEWEST
    for name in APPEARED.keys() & VANISHED.keys():
        assert APPEARED[name][1] <= VANISHED[name][0]


def test_nothing_that_the_real_parser_has_is_refused() -> None:
    """Every option that vLLM 0.32.0 prints is there in 0.32.0."""
    names = {name for option in REAL for name in option["names"] if not name.startswith("--no-")}
    assert [name for name in names if absent_since(name, (0, 32, 0)) is not None] == []


def test_what_older_releases_had_alone_is_gone_from_0_32() -> None:
    """The former options have a boundary each."""
    former = vllm_names.FORMER_BOOLEANS | vllm_names.FORMER_SINGLES | vllm_names.FORMER_MANIES
    assert [name for name in former if absent_since(name, (0, 32, 0)) is None] == []


@pytest.mark.parametrize(
    "options, version, refused",
    [
        ("--kv-cache-memory-bytes 2G", (0, 10, 0), True),
        ("--kv-cache-memory-bytes 2G", (0, 10, 1), False),
        ("--kv-cache-memory-bytes 2G", (0, 10, 2), False),
        ("--swap-space 4", (0, 15, 0), False),
        ("--swap-space 4", (0, 17, 0), False),
        ("--swap-space 4", (0, 18, 1), True),
        ("--swap-space 4", None, False),
        ("--max_num_queued_reqs=8", (0, 28, 0), True),
        ("--enable-lora", (0, 8, 5), False),
        ("--compilation-config.mode 3", (0, 8, 5), False),
        ("--speculative-config '{}'", (0, 20, 0), False),
        ("--kv-cache-memory-bytes 2G", (0, 33, 0), False),
    ],
)
def test_a_release_is_asked_for_its_own_options(
    options: str,
    version: tuple[int, ...] | None,
    refused: bool,  # noqa: FBT001
) -> None:
    """Between two releases that were read nothing is claimed."""
    rules = found(server("a", f"vllm serve m {options}", version=version))
    assert ("flag-not-in-release" in rules) is refused
    assert "flag-unknown" not in rules


@pytest.mark.parametrize(
    "options",
    ["--max-model 4096", "--gpu-memory-util 0.5", "--no-enable-prefix-caching", "-O3", "-cc.mode 3"],
)
def test_what_the_parser_understands_is_known(options: str) -> None:
    """Beginnings of options, negations, levels and dotted keys."""
    assert "flag-unknown" not in found(server("a", f"vllm serve m {options}"))


@pytest.mark.parametrize(
    "command, version, severity, meant",
    [
        ("vllm serve m --tensor-paralel-size 2", (0, 32, 0), Severity.ERROR, "--tensor-parallel-size"),
        ("vllm serve m --tensor-paralel-size 2", (0, 40, 0), Severity.WARNING, "--tensor-parallel-size"),
        ("vllm serve m --tensor-paralel-size 2", None, Severity.WARNING, "--tensor-parallel-size"),
        ("llama-server -m x.gguf --ctx-siz 4", (11434,), Severity.ERROR, "--ctx-size"),
        ("llama-server -m x.gguf --ctx-siz 4", (9000,), Severity.WARNING, "--ctx-size"),
    ],
)
def test_a_slip_is_an_error_where_the_release_was_read(
    command: str, version: tuple[int, ...] | None, severity: Severity, meant: str
) -> None:
    """And a warning where it may be newer than what was read; what was meant is named."""
    finding = found(server("a", command, version=version))["flag-unknown"]
    assert finding.severity is severity
    assert f"Did you mean {meant}?" in finding.message


def test_a_cap_for_each_slot_needs_its_build() -> None:
    """`--kv-unified-per-slot` came after b10622."""
    command = "llama-server -m x.gguf -c 8192 -np 2 --kv-unified-per-slot 512"
    for build, refused in ((10622, True), (10650, False), (10666, False)):
        assert ("flag-not-in-release" in found(server("a", command, version=(build,)))) is refused
