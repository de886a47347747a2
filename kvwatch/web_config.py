"""The web configuration: who may connect and how, in the format that Prometheus' exporters share.

Imported only where a web configuration is given: the daemon without one pays nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvwatch.config_models import Strict, keys_of
from kvwatch.config_problems import ConfigError, in_file_order, unknown_key, unreadable, validated
from kvwatch.config_values import shown
from kvwatch.config_yaml import UnreadableError, parse_yaml, read_text
from kvwatch.web_config_models import SECTIONS, WebConfig
from kvwatch.web_config_tls import RefusedKeyError, TlsPolicy, build_policy, contradictions, files_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kvwatch.config_yaml import Key, Problem

_USERS_ALLOWED = "allowed: a line `NAME: BCRYPT-HASH` for each user"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """A web configuration that was accepted."""

    tls: TlsPolicy | None
    """None: connections are not encrypted."""
    users: Mapping[str, bytes]
    """User name to bcrypt hash; empty: nobody is asked."""
    headers: tuple[tuple[str, str], ...]
    interval_seconds: float
    """Between two requests in the long run; 0 is no limit."""
    burst: int


class WebConfigFile:
    """A web configuration on disk, with the PEM files that it names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._named: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The file itself, and what it named when it could last be parsed."""
        return (self.path, *self._named)

    def read(self) -> WebSettings:
        """Read and check everything; raise `ConfigError` with all problems."""
        file = str(self.path)
        try:
            document = parse_yaml(read_text(self.path))
        except UnreadableError as error:
            problems: tuple[Problem, ...] = (unreadable(file, error),)
        else:
            values = {} if document.value is None else document.value
            config, found = validated(WebConfig, values, {"folder": self.path.absolute().parent}, _message)
            policy: TlsPolicy | None = None
            if config is not None:
                found += _contradictions(config)
                if config.tls_server_config is not None:
                    self._named = files_of(config.tls_server_config)
                    if not found:
                        policy, refused = _policy(config)
                        found += refused
                if not found and not document.problems:
                    return _settings(config, policy)
            problems = in_file_order(file, document, found)
        # Outside of every except clause, so that no traceback carries the input along.
        raise ConfigError(problems)


def _settings(config: WebConfig, policy: TlsPolicy | None) -> WebSettings:
    return WebSettings(
        tls=policy,
        users=config.basic_auth_users,
        headers=config.http_server_config.headers,
        interval_seconds=config.rate_limit.interval_seconds,
        burst=config.rate_limit.burst or 1,
    )


def _policy(config: WebConfig) -> tuple[TlsPolicy | None, list[tuple[Key, str]]]:
    if config.tls_server_config is None:
        return None, []
    try:
        return build_policy(config.tls_server_config), []
    except RefusedKeyError as error:
        return None, [(error.key, error.message)]
    except OSError as error:
        return None, [(("tls_server_config",), f"its files cannot be read ({error.strerror})")]


def _message(key: Key, kind: str, value: object, context: dict[str, Any]) -> str:
    """Say what pydantic found in this file's words."""
    match kind:
        case "value_error":
            return str(context["error"])
        case "extra_forbidden":
            return unknown_key(key, keys_of(_section(key[:-1])))
        case "dict_type":
            return f"this is not a mapping; {_USERS_ALLOWED}"
    return f"{shown(value)} is not a mapping; allowed: the keys {', '.join(keys_of(_section(key)))}"


def _section(key: Key) -> type[Strict]:
    return SECTIONS.get(str(key[0]), WebConfig) if key else WebConfig


def _contradictions(config: WebConfig) -> Iterator[tuple[Key, str]]:
    """Yield what is wrong between keys that are right by themselves."""
    if config.tls_server_config is not None:
        yield from contradictions(config.tls_server_config)
    for name in config.basic_auth_users:
        if ":" in name or "$" in name:
            # Not spelled: it may be a hash with its name behind it, the wrong way round.
            yield ("basic_auth_users",), f"a name holds a colon or a dollar sign; {_USERS_ALLOWED}"
    if config.rate_limit.interval_seconds and config.rate_limit.burst is None:
        yield ("rate_limit", "interval"), "burst is missing: without one every request would be refused"
