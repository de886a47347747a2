"""Whatever stands on a command line, parsing answers: properties over made-up words."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.flags import llamacpp, llamacpp_options, vllm, vllm_options
from kvwatch.flags.command import Command
from kvwatch.flags.secrets import without_secrets

OPTIONS = (*vllm_options.OPTIONS, *llamacpp_options.OPTIONS)
NAMES = [name for option in OPTIONS for name in (*option.names, *option.negatives)]
VALUES = ["1", "-1", "0", "8k", "9" * 400 + "g", "1e400", "nan", "inf", "None", "", "auto", "on", "{", "[1]"]
WORDS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from([*VALUES, "null", "-", "--"]),
    st.text(max_size=6),
    st.text("-=._aO1 ", max_size=8),
)
ARGV = st.lists(WORDS, max_size=8)
VERSIONS = st.sampled_from([None, (0, 8, 5), (0, 32, 0), (11434,), (1,), ()])


@settings(max_examples=300, deadline=None)
@given(ARGV, VERSIONS, st.dictionaries(st.sampled_from(["LLAMA_ARG_PORT", "LLAMA_ARG_NO_KV_UNIFIED"]), WORDS))
def test_parsing_always_answers(
    argv: list[str], version: tuple[int, ...] | None, environ: dict[str, str]
) -> None:
    """No words make a parser fail, and no field is both stated and a default, or set and of no origin."""
    for engine, program in ((vllm, ("vllm", "serve")), (llamacpp, ("llama-server",))):
        command = Command(argv=(*program, *argv), environ=environ)
        launch = engine.parse(command, version=version, config_text=lambda _: "port: 1")
        assert not launch.stated & launch.defaulted
        own = {"engine", "stated", "defaulted", "unknown", "notes"}
        for field in dataclasses.fields(launch):
            if field.name not in own and getattr(launch, field.name) is not None:
                assert field.name in launch.stated | launch.defaulted


@settings(max_examples=300, deadline=None)
@given(ARGV, st.integers(0, 8))
def test_hiding_moves_nothing_and_is_settled(argv: list[str], place: int) -> None:
    """As many words come out as went in, and hiding again changes nothing."""
    argv.insert(place, "--api-key")
    hidden = without_secrets(argv)
    assert len(hidden) == len(argv)
    assert without_secrets(hidden) == hidden


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_may_be_a_configuration_file(text: str) -> None:
    """A file of any text is read or counts as unread."""
    command = Command(argv=("vllm", "serve", "--config", "f.yaml"))
    assert vllm.parse(command, version=None, config_text=lambda _: text).engine == "vllm"


@given(st.lists(st.text(max_size=8), max_size=5))
def test_any_words_may_be_a_command(argv: list[str]) -> None:
    """Recognising never fails."""
    command = Command(argv=tuple(argv))
    assert vllm.recognises(command) in (True, False)
    assert llamacpp.recognises(command) in (True, False)
