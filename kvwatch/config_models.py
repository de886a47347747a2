"""The models of the configuration file: its keys, defaults and allowed values.

Field names carry their unit; the file's own keys are the aliases.
"""

from __future__ import annotations

import os
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from kvwatch.config_values import (
    Listen,
    RefusedValueError,
    duration_between,
    name_of_url,
    parse_auto_switch,
    parse_choice,
    parse_container,
    parse_dtype,
    parse_fraction,
    parse_listen,
    parse_name,
    parse_switch,
    parse_unit,
    parse_url,
    shown,
    size_between,
    whole_between,
)
from kvwatch.config_yaml import opening_failure

_LOG_FORMATS = ("logfmt", "json")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_RESERVED_NAME = "discovery"
_MAX_PID = 4_194_304
"""PID_MAX_LIMIT of 64-bit Linux (include/linux/threads.h)."""


def _absolute_path(value: object, info: ValidationInfo) -> Path:
    """Return an absolute path; a relative one starts at the folder of the configuration file."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise RefusedValueError("this is not a path; allowed: the path of a file")
    folder: Path = (info.context or {}).get("folder", Path())
    return folder / value


def _readable_file(value: object, info: ValidationInfo, holding: str) -> Path:
    path = _absolute_path(value, info)
    allowed = f"allowed: a file that holds {holding} (a relative path starts at the configuration's folder)"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise RefusedValueError(f"{opening_failure(error)}; {allowed}") from None
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    if not is_file:
        raise RefusedValueError(f"this is not a regular file; {allowed}")
    return path


def _token_file(value: object, info: ValidationInfo) -> Path:
    return _readable_file(value, info, "only the token")


def _certificate_file(value: object, info: ValidationInfo) -> Path:
    path = _readable_file(value, info, "PEM certificates")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError):
        raise RefusedValueError(
            "the file holds no certificate; allowed: a file of PEM certificates"
        ) from None
    return path


def _log_format(value: object) -> str:
    return parse_choice(value, _LOG_FORMATS)


def _log_level(value: object) -> str:
    return parse_choice(value, _LOG_LEVELS)


def _history(value: object) -> object:
    """Return None for `off`, a mapping as it is."""
    if value == "off" or value is False:
        return None
    if not isinstance(value, dict | BaseModel):
        keys = ", ".join(keys_of(History))
        raise RefusedValueError(f"{shown(value)} is not a mapping; allowed: off, or the keys {keys}")
    return value


def _server_name(value: object) -> str:
    name = parse_name(value)
    if name == _RESERVED_NAME:
        raise RefusedValueError(f"{name!r} is kvwatch's own search for servers; allowed: any other name")
    return name


def _engine(value: object, info: ValidationInfo) -> str:
    engines = (info.context or {}).get("engines")
    return parse_name(value) if engines is None else parse_choice(value, engines)


Deadline = Annotated[float, BeforeValidator(duration_between("50ms", "1m"))]
Count = Annotated[int, BeforeValidator(whole_between(1))]
Fraction = Annotated[float, BeforeValidator(parse_fraction)]
Switch = Annotated[bool, BeforeValidator(parse_switch)]


class Strict(BaseModel):
    """A mapping of known keys. Input never appears in pydantic's own errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        if value is None:
            raise RefusedValueError("the key has no value; give it one or leave the key out")
        return value


class Nvml(Strict):
    """How the driver is read; `enabled` auto means where there is one."""

    enabled: Annotated[Literal["auto"] | bool, BeforeValidator(parse_auto_switch)] = "auto"
    deadline_seconds: Deadline = Field(default=2.0, alias="deadline")
    let_go_seconds: Annotated[float, BeforeValidator(duration_between("1s", "1d"))] = Field(
        default=600.0, alias="let_go"
    )
    """How long SIGUSR1 lets the driver go, where no SIGUSR2 comes before."""


class Scrape(Strict):
    """How pages are fetched: the deadline of one server's whole fetch, and the most bytes of one page."""

    deadline_seconds: Deadline = Field(default=3.0, alias="deadline")
    max_bytes: Annotated[int, BeforeValidator(size_between("64KiB", "256MiB"))] = 8 << 20


class History(Strict):
    """What is kept, and where; `path` None is the usual place."""

    path: Annotated[Path, BeforeValidator(_absolute_path)] | None = None
    retention_seconds: Annotated[float, BeforeValidator(duration_between("1h", "3650d"))] = Field(
        default=30 * 86400.0, alias="retention"
    )
    max_bytes: Annotated[int, BeforeValidator(size_between("16MiB", "1TiB"))] = Field(
        default=512 << 20, alias="max_size"
    )


class Pods(Strict):
    """Where the names of pods come from: a kubelet, or a file that holds what one would answer."""

    kubelet: Annotated[str, BeforeValidator(parse_url)] | None = None
    file: Annotated[Path, BeforeValidator(_absolute_path)] | None = None
    bearer_token_file: Annotated[Path, BeforeValidator(_token_file)] | None = None
    ca_file: Annotated[Path, BeforeValidator(_certificate_file)] | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Pods:
        if (self.kubelet is None) == (self.file is None):
            raise RefusedValueError("give one of kubelet and file")
        return self


class Log(Strict):
    """How the daemon logs."""

    format: Annotated[Literal["logfmt", "json"], BeforeValidator(_log_format)] = "logfmt"
    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_log_level)] = "info"


class Server(Strict):
    """One inference server, and what its pages do not say; None where the file says nothing either."""

    name: Annotated[str, BeforeValidator(_server_name)] = ""
    """Unique; host:port of the URL where the file gives none."""
    url: Annotated[str, BeforeValidator(parse_url)]
    """Base URL without a trailing slash."""
    engine: Annotated[str, BeforeValidator(_engine)] = "auto"
    bearer_token_file: Annotated[Path, BeforeValidator(_token_file)] | None = None
    """Readable when the configuration was loaded; its content is read at use, since tokens rotate."""
    ca_file: Annotated[Path, BeforeValidator(_certificate_file)] | None = None
    pid: Annotated[int, BeforeValidator(whole_between(1, _MAX_PID))] | None = None
    container: Annotated[str, BeforeValidator(parse_container)] | None = None
    """An ID, or its first 12 digits at least."""
    unit: Annotated[str, BeforeValidator(parse_unit)] | None = None
    """Name of a systemd service."""
    model_config_path: Annotated[Path, BeforeValidator(_absolute_path)] | None = Field(
        default=None, alias="model_config"
    )
    """A config.json, a model folder or a GGUF file; need not exist until the model is read."""
    full_length_tokens: Count | None = None
    request_limit: Count | None = None
    max_num_batched_tokens: Count | None = None
    pool_tokens: Count | None = None
    kv_unified: Switch | None = None
    cache_dtype: Annotated[str, BeforeValidator(parse_dtype)] | None = None
    share_ratio: Fraction | None = Field(default=None, alias="share")
    kv_cache_memory_bytes: Annotated[int, BeforeValidator(size_between("1MiB", "16TiB"))] | None = None
    tensor_parallel: Count | None = None
    pipeline_parallel: Count | None = None
    hybrid_manager: Switch | None = None

    @model_validator(mode="after")
    def _one_process(self) -> Server:
        if sum(given is not None for given in (self.pid, self.container, self.unit)) > 1:
            raise RefusedValueError("give one of pid, container and unit")
        return self

    @model_validator(mode="before")
    @classmethod
    def _name_from_url(cls, data: Any) -> Any:
        if isinstance(data, dict) and "name" not in data:
            with suppress(ValueError):
                return {**data, "name": name_of_url(parse_url(data.get("url")))}
        return data


class Config(Strict):
    """Everything the daemon was told."""

    listen: Annotated[Listen, BeforeValidator(parse_listen)] = Listen(host="127.0.0.1", port=9836)
    web_config_file: Annotated[Path, BeforeValidator(_absolute_path)] | None = None
    """TLS, users and headers, in the format of Prometheus' exporters; None: plain HTTP for everybody."""
    interval_seconds: Annotated[float, BeforeValidator(duration_between("200ms", "1h"))] = Field(
        default=5.0, alias="interval"
    )
    typical_window_seconds: Annotated[float, BeforeValidator(duration_between("1s", "1d"))] = Field(
        default=900.0, alias="typical_window"
    )
    share_limit_ratio: Fraction = Field(default=0.95, alias="share_limit")
    discovery: Switch = True
    nvml: Nvml = Nvml()
    scrape: Scrape = Scrape()
    history: Annotated[History | None, BeforeValidator(_history)] = History()
    """None where it is switched off."""
    pods: Pods | None = None
    """None: pods are not named."""
    log: Log = Log()
    servers: tuple[Server, ...] = ()


SECTIONS: dict[str, type[Strict]] = {
    "": Config,
    "nvml": Nvml,
    "scrape": Scrape,
    "history": History,
    "pods": Pods,
    "log": Log,
    "servers": Server,
}
"""The model of each mapping in the file; the empty name is the top level."""


def keys_of(section: type[Strict]) -> tuple[str, ...]:
    """Return the keys that a mapping may have, as the file spells them."""
    return tuple(info.alias or name for name, info in section.model_fields.items())
