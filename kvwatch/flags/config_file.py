"""Turn the YAML that `vllm serve --config` reads into command-line words, as vLLM does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import yaml


class ConfigFileError(ValueError):
    """The file's text is not what vLLM accepts; the message never quotes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigWords:
    """The words, and the keys that were set to false."""

    words: tuple[str, ...]
    false_keys: tuple[str, ...]


def config_words(text: str) -> ConfigWords:
    """Return the words for a file's text (0.32.0, utils/argparse_utils.py, load_config_file)."""
    import yaml  # noqa: PLC0415 - few servers have such a file, and who reads processes needs no YAML

    if any(isinstance(token, yaml.AliasToken) for token in _tokens(text)):
        raise ConfigFileError("aliases are not read")
    try:
        settings = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigFileError("not YAML") from None
    if not isinstance(settings, dict):
        raise ConfigFileError("not a mapping")
    words: list[str] = []
    false_keys: list[str] = []
    for key, value in settings.items():
        option = f"--{key}"
        if value is False:
            false_keys.append(option)
        elif value is True:
            words.append(option)
        elif isinstance(value, list):
            words.extend([option, *map(str, value)] if value else [])
        elif isinstance(value, dict):
            words.extend([option, json.dumps(value, default=str)])
        else:
            words.extend([option, str(value)])
    return ConfigWords(words=tuple(words), false_keys=tuple(false_keys))


def _tokens(text: str) -> list[yaml.Token]:
    """Scan the text: aliases could make a small file stand for a huge one."""
    import yaml  # noqa: PLC0415

    try:
        return list(yaml.scan(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError:
        raise ConfigFileError("not YAML") from None
