"""Secrets of command lines and environments never come into a value, a repr or a message."""

from __future__ import annotations

import contextlib

import pytest

from kvwatch.flags import llamacpp, vllm
from kvwatch.flags.command import Command
from kvwatch.flags.secrets import HIDDEN, says_secret, without_secrets

SECRET = "s3cr3t-X7"  # noqa: S105 -- what is looked for


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--api-key", SECRET], id="the-key"),
        pytest.param(["--api_key", SECRET], id="underscore"),
        pytest.param([f"--api-key={SECRET}"], id="equals"),
        pytest.param(["--api-key", "one", SECRET, "--port", "1"], id="several-keys"),
        pytest.param(["--api-k", SECRET], id="abbreviated"),
        pytest.param([f"--hf-tok={SECRET}"], id="abbreviated-token"),
        pytest.param(["--hf-token", SECRET], id="hub-token"),
        pytest.param(["-hft", SECRET], id="short-hub-token"),
        pytest.param(["--ssl-keyf", SECRET], id="abbreviated-key-file"),
        pytest.param(["--api-key", f"-{SECRET}"], id="begins-with-a-dash"),
        pytest.param(["--proxy-password", SECRET], id="an-option-nobody-knows"),
        pytest.param(["--proxy-password", f"-{SECRET}"], id="unknown-and-a-dash"),
        pytest.param(["--auth-tokens", SECRET], id="plural"),
        pytest.param([f"--kv-transfer-config.extra.api_key={SECRET}"], id="dotted"),
        pytest.param(["--kv-transfer-config.extra.secret", SECRET], id="dotted-apart"),
        pytest.param(["--kv-transfer-config", f'{{"a": {{"api_key": "{SECRET}"}}}}'], id="inside-json"),
        pytest.param(["--additional-config", f'{{"password":"{SECRET}"}}'], id="password-inside-json"),
        pytest.param(["--otlp-traces-endpoint", f"http://me:{SECRET}@host:4317"], id="in-an-address"),
        pytest.param([f"HF_TOKEN={SECRET}"], id="assignment"),
        pytest.param(["--override-kv", f"Authorization: Bearer {SECRET}"], id="a-header"),
    ],
)
def test_no_secret_survives(words: list[str]) -> None:
    """Whatever way it was passed, a secret is in no Command and in no Launch of either engine."""
    for engine, program in ((vllm, ("vllm", "serve", "model")), (llamacpp, ("llama-server", "-m", "model"))):
        command = Command(argv=(*program, *words))
        assert SECRET not in repr(command)
        launch = engine.parse(command, version=None, config_text=None)
        assert SECRET not in repr(launch)
        assert HIDDEN not in repr(launch).replace(f"://{HIDDEN}@", "")


def test_a_shells_script_with_a_secret_is_hidden() -> None:
    """A whole command inside one word is hidden as a whole."""
    command = Command(argv=("sh", "-c", f"vllm serve model --api-key {SECRET}"))
    assert command.argv == ("sh", "-c", HIDDEN)


def test_no_secret_variable_survives() -> None:
    """Variables whose names speak of secrets are left out, as are all that nobody asked for."""
    command = Command(
        argv=("vllm", "serve", "model"),
        environ={
            "VLLM_API_KEY": SECRET,
            "LLAMA_ARG_API_KEY_FILE": SECRET,
            "VLLM_TOKEN": SECRET,
            "LLAMA_API_KEY": SECRET,
            "HF_TOKEN": SECRET,
            "HOME": SECRET,
            "VLLM_MAX_TOKENS_PER_EXPERT": "1024",
            "CUDA_VISIBLE_DEVICES": "0",
        },
    )
    assert dict(command.environ) == {"VLLM_MAX_TOKENS_PER_EXPERT": "1024", "CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"api-key: {SECRET}\nport: 9000\n", id="a-key"),
        pytest.param(f"hf_token: {SECRET}\n", id="a-token"),
        pytest.param(f"kv-transfer-config:\n  extra:\n    password: {SECRET}\n", id="nested"),
        pytest.param(f"api-key: [{SECRET}, {SECRET}]\n", id="several"),
        pytest.param(f"api-key: '{SECRET}\n", id="not-yaml"),
        pytest.param(f"- {SECRET}\n", id="not-a-mapping"),
        pytest.param(f"api-key: &a {SECRET}\nhost: *a\n", id="alias"),
        pytest.param(f"max-num-seqs: {SECRET}\n", id="in-the-wrong-place"),
    ],
)
def test_no_secret_of_a_configuration_file_survives(text: str) -> None:
    """Neither what the file sets nor what is wrong with it shows a secret."""
    command = Command(argv=("vllm", "serve", "model", "--config", "f.yaml"))
    launch = vllm.parse(command, version=(0, 32, 0), config_text=lambda _: text)
    assert SECRET not in repr(launch)


def test_a_refused_command_is_not_quoted() -> None:
    """The error for a command that starts no server does not show the command."""
    with contextlib.suppress(ValueError):
        vllm.parse(Command(argv=(SECRET,)), version=None, config_text=None)
    with pytest.raises(ValueError, match="not the command") as caught:
        llamacpp.parse(Command(argv=(SECRET,)), version=None)
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize(
    "words, kept",
    [
        pytest.param(
            ["--max-num-batched-tokens", "8192"], ("--max-num-batched-tokens", "8192"), id="a-count-of-tokens"
        ),
        pytest.param(["--tokenizer", "org/model"], ("--tokenizer", "org/model"), id="a-tokenizer"),
        pytest.param(
            ["--hf-token", "--port", "9000"],
            ("--hf-token", "--port", "9000"),
            id="a-token-left-to-the-machine",
        ),
        pytest.param(["--new-auth", "--port", "9000"], ("--new-auth", "--port", "9000"), id="unknown-flag"),
        pytest.param(["--new-auth", "-tp", "2"], ("--new-auth", "-tp", "2"), id="unknown-flag-before-short"),
        pytest.param(["--new-tokens", "5"], ("--new-tokens", "5"), id="an-unknown-count"),
        pytest.param(
            ["-sc", '{"num_speculative_tokens": 3}'],
            ("-sc", '{"num_speculative_tokens": 3}'),
            id="a-count-inside-json",
        ),
        pytest.param(
            ["--speculative-config.num_speculative_tokens=3"],
            ("--speculative-config.num_speculative_tokens=3",),
            id="a-dotted-count",
        ),
        pytest.param(["--chat-template", "keyboard"], ("--chat-template", "keyboard"), id="an-innocent-word"),
    ],
)
def test_what_is_no_secret_stays(words: list[str], kept: tuple[str, ...]) -> None:
    """Counting tokens is no secret, and an option behind a secret's name is not its value."""
    assert without_secrets(words) == kept


def test_names_that_may_hold_a_secret() -> None:
    """Names are judged with both spellings and as abbreviations."""
    assert all(map(says_secret, ("--api-key", "--api_key", "--api-k", "--hf-token", "-hft", "LLAMA_API_KEY")))
    assert not any(map(says_secret, ("--max-num-batched-tokens", "--api-server-count", "-hf", "--host")))
