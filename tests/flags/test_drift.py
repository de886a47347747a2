"""Our tables of names against the real parsers' own, in both directions."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from kvwatch.flags import llamacpp_names, llamacpp_options, secrets, vllm_names, vllm_options
from kvwatch.flags.launch import Launch

HERE = Path(__file__).parent
DOCS = (HERE.parents[1] / "docs" / "flags.md").read_text()
VLLM = json.loads((HERE / "vllm-0.32.0.json").read_text())["options"]
LLAMACPP = json.loads((HERE / "llamacpp-b11434.json").read_text())["options"]
SECRETS = {"--api-key", "--api-key-file", "--hf-token", "-hft", "--ssl-key-file", "--ssl-keyfile"}


def names(options: list[dict[str, object]], values: object) -> set[str]:
    """List the names of the options that take so many values."""
    return {name for option in options if option["values"] == values for name in option["names"]}  # type: ignore[attr-defined]


def test_every_vllm_name_is_known_with_its_number_of_values() -> None:
    """The tables hold exactly the names of the real parser, sorted by what they take."""
    flags = names(VLLM, "0")
    booleans = {
        name
        for option in VLLM
        if any(name.startswith("--no-") for name in option["names"])
        for name in option["names"]
        if option["values"] == "0" and not name.startswith("--no-")
    }
    assert booleans == vllm_names.BOOLEANS
    assert {name for name in flags - booleans if not name.startswith("--no-")} == vllm_names.FLAGS
    assert names(VLLM, "1") | {"-O"} == vllm_names.SINGLES
    assert names(VLLM, "+") == vllm_names.MANIES
    assert names(VLLM, "?") == vllm_names.OPTIONALS


def test_every_llamacpp_name_is_known_with_its_number_of_values() -> None:
    """The tables hold exactly the names that the real server prints."""
    assert names(LLAMACPP, 0) == llamacpp_names.FLAGS
    assert names(LLAMACPP, 1) == llamacpp_names.SINGLES
    assert names(LLAMACPP, 2) == llamacpp_names.PAIRS


@pytest.mark.parametrize("option", vllm_options.OPTIONS, ids=lambda option: option.names[0])
def test_a_vllm_option_has_all_the_real_spellings(option: vllm_options.Option) -> None:
    """The aliases of one field are those of one real option."""
    real = next(set(row["names"]) for row in VLLM if option.names[0] in row["names"])
    spellings = {name for name in real if not name.startswith("--no-")}
    assert {name for name in option.names if "." not in name} == spellings


@pytest.mark.parametrize("option", llamacpp_options.OPTIONS, ids=lambda option: option.names[0])
def test_a_llamacpp_option_has_all_the_real_spellings(option: llamacpp_options.Option) -> None:
    """Aliases, negatives and the variable of one field are those of one real option."""
    real = next(row for row in LLAMACPP if option.names[0] in row["names"])
    assert {*option.names, *option.negatives} == set(real["names"])
    assert option.variable == real["env"]
    assert (option.read is None) == (real["values"] == 0)


def test_presets_exist() -> None:
    """Options that set others are those that the server prints as such."""
    assert {name for name in llamacpp_names.FLAGS if re.search(r"-(default|spec)$", name)} == (
        llamacpp_options.PRESETS
    )


def test_every_name_that_sounds_like_a_secret_was_judged() -> None:
    """A real option that says key, token and so on is either dropped or known to be harmless."""
    sounding = {
        name
        for option in (*VLLM, *LLAMACPP)
        for name in option["names"]
        if re.search(r"key|token|secret|passw|credential|auth", name)
    }
    assert {name for name in sounding | {"-hft"} if secrets.says_secret(name)} == SECRETS
    every = {name for option in (*VLLM, *LLAMACPP) for name in option["names"]}
    assert {name for name in every if secrets.says_secret(name)} == SECRETS


def test_fields_exist_and_are_documented() -> None:
    """Every option's field is one of Launch, and the page about flags names each option."""
    fields = {field.name for field in dataclasses.fields(Launch)} | set(llamacpp_options.MODEL_FIELDS)
    for option in (*vllm_options.OPTIONS, *llamacpp_options.OPTIONS):
        assert option.field in fields
        for name in (*option.names, *option.negatives):
            assert f"`{name}`" in DOCS, name
    for version in (None, (0, 8, 5), (0, 32, 0)):
        assert vllm_options.defaults(version).keys() <= fields
    assert llamacpp_options.defaults((11434,)).keys() <= fields
