"""Read `docker run`, `podman run` and `nerdctl run`: where the image stands, and what the options give it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.check.reading.starts import Devices, Mount, Sight
from kvwatch.flags.programs import base_name, starts_another
from kvwatch.flags.word_list import word_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.reading.words import Word

_PROGRAMS = frozenset({"docker", "podman", "nerdctl", "docker.io"})
_VERBS = frozenset({"run", "create"})

# Every other option of `docker run` takes a value (docker 28, podman 5).
_FLAGS = word_set(
    """
    --detach --disable-content-trust --env-host --help --http-proxy --init --interactive --no-healthcheck
    --no-hosts --no-hostname --oom-kill-disable --privileged --publish-all --quiet --read-only
    --read-only-tmpfs --replace --rm --rmi --rootfs --sig-proxy --tls-verify --tty --use-api-socket
    """
)
_SHORT_FLAGS = frozenset("ditPq")
_WHOLE_FLAGS = re.compile(rf"-[{''.join(sorted(_SHORT_FLAGS))}]+")
_CDI = re.compile(r"nvidia\.com/gpu=(.+)")
_GPU_IDS = re.compile(r'"?device=([^"]+)"?')
_LONG = {"-e": "--env", "-v": "--volume", "-w": "--workdir", "-u": "--user"}


@dataclass(slots=True, kw_only=True)
class ContainerRun:
    """What the options of one `run` say; `rest` are the words behind the image."""

    image: Word
    rest: tuple[Word, ...]
    name: Word | None = None
    entrypoint: Word | None = None
    environ: list[Word] = field(default_factory=list)
    """As given: `NAME=value`, or `NAME` alone for the caller's value."""
    env_files: list[Word] = field(default_factory=list)
    devices: Devices = field(default_factory=Devices)
    mounts: list[Mount] = field(default_factory=list)


def is_container_program(word: Word) -> bool:
    """Say whether a word is a program that runs containers."""
    return base_name(word.text) in _PROGRAMS


def find_run(words: Sequence[Word]) -> int | None:
    """Return the position behind `docker run`; None where the command is another one."""
    for at, word in enumerate(words):
        if not is_container_program(word):
            if at == 0 and not starts_another([word.text for word in words]):
                return None
            continue
        for position in range(at + 1, min(at + 8, len(words))):
            if words[position].text in _VERBS:
                return position + 1
        return None
    return None


def read_run(words: Sequence[Word]) -> ContainerRun | None:
    """Read the words behind `run`; None where no image is among them."""
    given: list[tuple[str, Word]] = []
    position = 0
    while position < len(words):
        word = words[position]
        if not word.text.startswith("-"):
            if word.open:
                # Options that are not known: what stands behind them still is.
                position += 1
                continue
            break
        position += 1
        if word.text == "--":
            break
        option, value = _option(word)
        if value is None and option not in _FLAGS and not _WHOLE_FLAGS.fullmatch(option):
            if position == len(words):
                return None
            value = words[position]
            position += 1
        if value is not None:
            given.append((option, value))
    if position >= len(words):
        return None
    run = ContainerRun(image=words[position], rest=tuple(words[position + 1 :]))
    for option, value in given:
        _take(run, option, value)
    return run


def _option(word: Word) -> tuple[str, Word | None]:
    """Return the long name of an option, and its value where it stands in the same word."""
    text = word.text
    if text.startswith("--"):
        name, equals, value = text.partition("=")
        return name, replace(word, text=value) if equals else None
    if _WHOLE_FLAGS.fullmatch(text):
        return text, None
    flags = 1
    while flags < len(text) and text[flags] in _SHORT_FLAGS:
        flags += 1
    name = f"-{text[flags : flags + 1]}"
    value = text[flags + 1 :].removeprefix("=")
    return _LONG.get(name, name), replace(word, text=value) if value else None


def _take(run: ContainerRun, option: str, value: Word) -> None:
    match option:
        case "--name":
            run.name = value
        case "--entrypoint":
            run.entrypoint = value
        case "--env":
            run.environ.append(value)
        case "--env-file":
            run.env_files.append(value)
        case "--gpus":
            run.devices = gpus(value)
        case "--device":
            match = _CDI.fullmatch(value.text)
            if match:
                run.devices = _also(run.devices, match[1], value)
        case "--volume":
            host, colon, rest = value.text.partition(":")
            if colon:
                run.mounts.append(Mount(inside=rest.partition(":")[0], host=host))
        case "--mount":
            fields = dict(part.partition("=")[::2] for part in value.text.split(","))
            inside = fields.get("target") or fields.get("destination") or fields.get("dst")
            source = fields.get("source") or fields.get("src")
            if inside and fields.get("type") == "bind":
                run.mounts.append(Mount(inside=inside, host=source))


def gpus(value: Word) -> Devices:
    """Read `--gpus`: all, a number, or `device=0,1` (docker; moby hands out the first N of a number)."""
    text = value.text.strip("'")
    match = _GPU_IDS.search(text)
    if value.unresolved:
        return Devices(sight=Sight.UNKNOWN)
    if match:
        return listed(match[1].strip('"').split(","))
    count = text.removeprefix("count=")
    if count in ("all", "-1"):
        return Devices(sight=Sight.ALL)
    return first(int(count)) if count.isdecimal() else Devices(sight=Sight.UNKNOWN)


def first(count: int) -> Devices:
    """Return the devices that docker gives for a number: the first ones (moby, daemon/nvidia_linux.go)."""
    return Devices(sight=Sight.LISTED, names=tuple(str(index) for index in range(min(count, 64))))


def listed(names: Sequence[str]) -> Devices:
    """Return devices by index or UUID; `all` is every one, `none` and `void` are no device."""
    cleaned = tuple(name.strip() for name in names if name.strip())
    if "all" in cleaned:
        return Devices(sight=Sight.ALL)
    return Devices(sight=Sight.LISTED, names=() if cleaned in (("none",), ("void",)) else cleaned)


def _also(devices: Devices, name: str, value: Word) -> Devices:
    if value.unresolved:
        return Devices(sight=Sight.UNKNOWN)
    if name == "all":
        return Devices(sight=Sight.ALL)
    return Devices(sight=Sight.LISTED, names=(*devices.names, name))
