"""What a `vllm serve` was told: its words over its configuration file over its release's defaults."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from kvwatch.flags.config_file import ConfigFileError, ConfigWords, config_words
from kvwatch.flags.options import Statements
from kvwatch.flags.programs import base_name, find
from kvwatch.flags.secrets import HIDDEN, without_secrets
from kvwatch.flags.vllm_argv import Given, split
from kvwatch.flags.vllm_names import BOOLEANS
from kvwatch.flags.vllm_options import BY_NAME, DOUBTFUL_BY_NAME, OPTIONS, defaults, known
from kvwatch.readings import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvwatch.flags.command import Command
    from kvwatch.flags.launch import Launch

ENGINE = "vllm"

_MODULE = "vllm.entrypoints.openai.api_server"
_SCRIPT = "vllm/entrypoints/openai/api_server.py"
_COMMAND_MODULES = frozenset({"vllm", "vllm.entrypoints.cli.main"})
_FALSE_IS_NO = (0, 28)
"""From this release on `key: false` in the file is `--no-key` for the module; for `serve` it is nothing.

The file is read by the parser of `vllm`, which does not know the options of `serve` (0.32.0).
"""
_FIELDS = frozenset(option.field for option in OPTIONS)


def recognises(command: Command) -> bool:
    """Say whether a command starts a vLLM server; the titles of its child processes do not."""
    return find(command.argv, _server_words) is not None


def parse(
    command: Command,
    *,
    version: tuple[int, ...] | None,
    config_text: Callable[[str], str] | None,
) -> Launch:
    """Return what the server was told; ValueError where the command starts none.

    `config_text` reads the file of `--config`, by an absolute path where the working directory is known; it
    raises `SourceError` or OSError. Where that file cannot be read, no default is taken for granted.
    `version` is the engine's own, None where unknown: then only defaults that never changed count.
    """
    words = find(command.argv, _server_words)
    if words is None:
        raise ValueError("not the command of a vLLM server")
    served, words = words[0] == "serve", tuple(words[1:])
    statements = Statements()
    if served:
        words = _model_first(words)
    words, path = _without_config(words)
    if path is not None:
        try:
            config = _read_config(path, command.cwd, config_text)
        except (ConfigFileError, SourceError, OSError, UnicodeError) as error:
            reason = str(error) if isinstance(error, ConfigFileError) else "cannot be read"
            statements.doubt(_FIELDS, f"--config: {reason}")
        else:
            model = 0 if not words or words[0].startswith("-") else 1
            words = (*words[:model], *config.words, *words[model:])
            _take_false(statements, () if served else config.false_keys, known(version))
    _take_words(statements, words, served=served)
    _take_environment(statements, command.environ)
    if statements.values.get("socket_path"):
        statements.doubt(("host", "port"), "--uds: host and port are not used")
    applied = defaults(version)
    if statements.values.get("model") is not None:
        applied["served_names"] = (statements.values["model"],)
    return statements.launch(ENGINE, applied)


def _server_words(words: Sequence[str]) -> Sequence[str] | None:
    """Return `serve` or `module` and the words behind it, where these words start a server."""
    program, *rest = words
    if program in ("-m", "--module"):
        module, *rest = rest or [""]
        if module == _MODULE:
            return ["module", *rest]
        return rest if module in _COMMAND_MODULES and rest[:1] == ["serve"] else None
    if base_name(program) == "vllm" and rest[:1] == ["serve"]:
        return rest
    if program == _SCRIPT or program.endswith(f"/{_SCRIPT}"):
        return ["module", *rest]
    return None


def _model_first(words: tuple[str, ...]) -> tuple[str, ...]:
    """Put the model of `--model` in front, as `vllm serve` does before all else."""
    for index, word in enumerate(words):
        if word == "--model" and index + 1 < len(words):
            return (words[index + 1], *words[:index], *words[index + 2 :])
        if word.startswith("--model="):
            return (word.removeprefix("--model="), *words[:index], *words[index + 1 :])
    return words


def _without_config(words: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """Take `--config FILE` out; spelled in any other way the engine does not read the file."""
    if "--config" not in words[:-1]:
        return words, None
    index = words.index("--config")
    return (*words[:index], *words[index + 2 :]), words[index + 1]


def _read_config(path: str, cwd: str | None, config_text: Callable[[str], str] | None) -> ConfigWords:
    """Return the words of the file."""
    if config_text is None or path == HIDDEN:
        raise ConfigFileError("not read")
    return config_words(config_text(str(PurePosixPath(cwd) / path) if cwd else path))


def _take_false(statements: Statements, keys: Sequence[str], version: tuple[int, ...] | None) -> None:
    """Take the module's way with what its file sets to false."""
    for key in keys:
        name = split([key]).given[0].name
        if name not in BOOLEANS:
            continue
        if version is not None and version >= _FALSE_IS_NO:
            _take(statements, split([f"--no-{name[2:]}"]).given[0])
        elif version is None and name in BY_NAME:
            statements.doubt((BY_NAME[name].field,), f"{name}: false means different things by release")


def _take_words(statements: Statements, words: tuple[str, ...], *, served: bool) -> None:
    """State what words say, the model last: by itself it goes before the file's."""
    parts = split(without_secrets(words))
    for given in parts.given:
        _take(statements, given)
    if served and len(parts.positionals) == 1 and parts.positionals[0] != HIDDEN:
        statements.put("model", parts.positionals[0])
    elif parts.positionals or (parts.doubtful and "model" not in statements.values):
        statements.doubt(("model",), "model: cannot be told from the values of options")


def _take(statements: Statements, given: Given) -> None:
    """State one option, or keep it."""
    option = BY_NAME.get(given.name)
    if given.candidates:
        fields = _fields_of(given.candidates)
        if fields:
            statements.doubt(fields, f"{given.name}: may stand for several options")
    elif option is not None:
        words = given.words
        if option.read is not None and words in (("None",), ("",)):
            statements.take_back(option)
        else:
            statements.state(option, words, negated=given.negated)
        return
    elif given.name in DOUBTFUL_BY_NAME:
        statements.doubt(DOUBTFUL_BY_NAME[given.name], f"{given.name}: decides another setting too")
    statements.keep(given.tokens)


def _fields_of(names: Sequence[str]) -> frozenset[str]:
    """Return the fields that any of the names may set."""
    fields = {BY_NAME[name].field for name in names if name in BY_NAME}
    for name in names:
        positive = f"--{name.removeprefix('--no-')}"
        if positive in BY_NAME:
            fields.add(BY_NAME[positive].field)
    return frozenset(fields)


def _take_environment(statements: Statements, environ: Mapping[str, str]) -> None:
    """State what the environment says; `VLLM_*` variables set nothing that a field stands for, bar one."""
    for name, value in sorted(environ.items()):
        if name == "CUDA_VISIBLE_DEVICES":
            statements.put("visible_devices", value)
        elif name.startswith("VLLM_"):
            if name == "VLLM_CPU_KVCACHE_SPACE":
                statements.doubt(("pin_bytes",), f"{name}: sets the pool on CPUs")
            statements.keep((f"{name}={value}",))
