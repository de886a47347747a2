"""Find the servers that a command starts: behind launchers, shells and wrappers, and inside containers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Problem
from kvwatch.check.reading.container_run import (
    ContainerRun,
    find_run,
    is_container_program,
    listed,
    read_run,
)
from kvwatch.check.reading.env_files import Style, read_variables
from kvwatch.check.reading.expansion import with_environment
from kvwatch.check.reading.images import Image, pinned_release, read_image
from kvwatch.check.reading.notebook import MAX_SERVERS, Notebook
from kvwatch.check.reading.shell_script import Script, run_script
from kvwatch.check.reading.starts import Devices, Mount, Sight, Start
from kvwatch.check.reading.words import Word, lines_of, unknown
from kvwatch.flags.programs import base_name
from kvwatch.flags.secrets import HIDDEN
from kvwatch.flags.word_list import word_set
from kvwatch.sources.launches import HINTS, engine_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.check.reading.words import Lines

MAX_DEPTH = 4
"""Of shells inside shells."""
MAX_SCRIPT_CHARACTERS = 1 << 18
_MAX_WRAPPED = 64

_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh"})
_SHELL_COMMAND = re.compile(r"-[a-z]*c")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)
_PROGRAMS = frozenset({"vllm", "llama-server", "llama-server.exe", "llama", "-m"})
_ENGINE_OPTIONS = frozenset({"--model", "--max-model-len", "--gpu-memory-utilization", "--ctx-size", "-ngl"})
_HINTS = tuple(hint.decode() for hint in HINTS)

# Programs whose words end in a command that they run, and that are no launchers to the flag readers.
_WRAPPERS = word_set(
    """
    accelerate apptainer chroot chrt daemonize docker flock ionice kubectl mpirun nerdctl nsenter parallel
    podman prlimit proxychains runuser screen script singularity srun ssh start-stop-daemon stdbuf su
    systemd-cat tmux torchrun unbuffer unshare watch xargs
    """
)
_VALUED_SSH = word_set("-b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w")


def find_starts(start: Start, notebook: Notebook, depth: int = 0) -> list[Start]:
    """Return the servers that a start's command starts, none where it starts another program."""
    words = start.words
    if not words or depth > MAX_DEPTH:
        return []
    run = None if start.contained else find_run(words)
    if run is not None and _engine(words[:run]) is None:
        return _of_container(start, words, run, notebook, depth)
    if _engine(words) is not None:
        return [_with_assignments(start, words)] if notebook.count(start) else []
    shell = next((at for at, word in enumerate(words[:12]) if base_name(word.text) in _SHELLS), None)
    if shell is not None:
        found = _of_shell(_with_assignments(start, words[:shell]), words[shell + 1 :], notebook, depth)
        if found:
            return found
    if base_name(words[0].text) in _WRAPPERS:
        return _of_wrapper(start, words, notebook, depth)
    if len(words[0].text) > 1 and words[0].text.endswith(".sh"):
        return _of_script(start, words, notebook, depth)
    return []


def follow(start: Start, text: str, lines: Lines, notebook: Notebook, depth: int = 0) -> list[Start]:
    """Return the servers that a shell script starts, in the surroundings of `start`."""
    if len(text) > MAX_SCRIPT_CHARACTERS:
        message = f"longer than {MAX_SCRIPT_CHARACTERS >> 10} KiB: is it a shell script?"
        notebook.note(Problem(place=start.place, message=message))
        return []
    file = start.place.file

    def read(path: str, by: str) -> tuple[str, str] | None:
        found = notebook.shelf.find(path, by)
        return None if found is None else (found.name, found.text)

    script = Script(
        file=file,
        lines=lines,
        variables=with_environment(start.environ),
        exported=set(start.environ),
        read=read,
    )
    for index, word in enumerate(start.words, 1):
        script.variables.put(str(index), word)
    if start.words:
        script.variables.lists["@"] = start.words
    found: list[Start] = []
    version = start.version or pinned_release(text)
    for ran in run_script(script, text):
        if notebook.servers > MAX_SERVERS:
            break
        own = replace(start, words=ran.words, environ=ran.environ, place=ran.words[0].place, version=version)
        servers = find_starts(own, notebook, depth + 1)
        if servers and ran.conditional:
            message = "starts only under a condition that no file settles; it is counted as if it always does"
            notebook.note(Problem(place=ran.words[0].place, message=message))
        found += servers
    if script.exhausted:
        message = "it does more than is followed here: what it starts at its end is left out"
        notebook.note(Problem(place=start.place, message=message))
    return found


def of_image(
    image: Word | None, entrypoint: Sequence[Word] | None, command: Sequence[Word], notebook: Notebook
) -> tuple[tuple[Word, ...], tuple[int, ...] | None]:
    """Return the whole command of a container and its image's release.

    `entrypoint` is what replaces the image's own; None leaves it.
    """
    words = tuple(command)
    # A tag that is not known leaves the image's name, and with it the entrypoint.
    read = read_image(image.text, tuple(word.text for word in words)) if image else Image()
    if entrypoint is not None:
        return (*entrypoint, *words), read.version
    if read.entrypoint is None or image is None:
        if image is not None and image.unresolved and _ENGINE_OPTIONS & {word.text for word in words}:
            message = (
                f"{', '.join(image.unresolved)} is set in no file given: which image gets these options?"
            )
            notebook.note(Problem(place=image.place, message=message))
        return words, read.version
    if _engine(words) is not None:
        message = f"the image's entrypoint is `{' '.join(read.entrypoint)}` already; give it only the options"
        notebook.note(Problem(place=words[0].place, message=message))
        return words, read.version
    if read.doubt is not None:
        notebook.note(Problem(place=image.place, message=read.doubt))
    place = words[0].place if words else image.place
    return (*(Word(text=text, place=place) for text in read.entrypoint), *words), read.version


def visible(devices: Devices, environ: Mapping[str, Word]) -> Devices:
    """Return the devices of a container: as it asks for them, else by NVIDIA_VISIBLE_DEVICES."""
    value = environ.get("NVIDIA_VISIBLE_DEVICES")
    if devices.sight is not Sight.UNSAID or value is None:
        return devices
    if value.unresolved:
        return Devices(sight=Sight.UNKNOWN, node=devices.node)
    return replace(listed(value.text.split(",")), node=devices.node)


def _engine(words: Sequence[Word]) -> str | None:
    if not any(hint in word.text for word in words for hint in _HINTS):
        return None
    return engine_of([word.text for word in words])


def _with_assignments(start: Start, words: Sequence[Word]) -> Start:
    """Take the variables that stand before the program, as in `env A=b vllm serve`."""
    environ = dict(start.environ)
    for word in words:
        if base_name(word.text) in _PROGRAMS:
            break
        match = _ASSIGNMENT.match(word.text)
        if match:
            environ[match[1]] = replace(word, text=word.text[match.end() :], marks=None)
    return replace(start, environ=environ, words=tuple(words))


def _of_shell(start: Start, words: Sequence[Word], notebook: Notebook, depth: int) -> list[Start]:
    """Follow `sh -c TEXT` and `sh FILE`."""
    for at, word in enumerate(words):
        if _SHELL_COMMAND.fullmatch(word.text) and at + 1 < len(words):
            text = words[at + 1]
            # What stands behind the text is $0, $1 and so on.
            inner = replace(start, words=tuple(words[at + 3 :]), place=text.place)
            found = follow(inner, text.text, text.lines, notebook, depth)
            return [_still_unknown(one, text) for one in found] if text.unresolved else found
        if not word.text.startswith("-"):
            return _of_script(start, words[at:], notebook, depth)
    return []


def _still_unknown(start: Start, text: Word) -> Start:
    """Remember what was unknown in a text that has been split into words since."""

    def mark(word: Word) -> Word:
        if HIDDEN not in word.text or word.unresolved:
            return word
        return replace(word, unresolved=text.unresolved, open=word.text == HIDDEN)

    environ = {name: mark(word) for name, word in start.environ.items()}
    return replace(start, words=tuple(map(mark, start.words)), environ=environ)


def _of_script(start: Start, words: Sequence[Word], notebook: Notebook, depth: int) -> list[Start]:
    """Follow a script that is among the files."""
    if words[0].unresolved:
        return []
    found = notebook.shelf.find(host_path(words[0].text, start.mounts), start.place.file)
    if found is None:
        return []
    place = replace(start.place, file=found.name, line=1)
    inner = replace(start, place=place, words=tuple(words[1:]))
    return follow(inner, found.text, lines_of(found.text), notebook, depth)


def host_path(path: str, mounts: Sequence[Mount]) -> str:
    """Return where a container's path is outside of it, where a mount says so; else the path itself."""
    for mount in sorted(mounts, key=lambda one: -len(one.inside)):
        inside = mount.inside.rstrip("/")
        if mount.host is not None and (path == inside or path.startswith(f"{inside}/")):
            return mount.host.rstrip("/") + path[len(inside) :]
    return path


def _of_wrapper(start: Start, words: tuple[Word, ...], notebook: Notebook, depth: int) -> list[Start]:
    if base_name(words[0].text) == "ssh":
        start = replace(start, devices=replace(start.devices, node=_remote(words)))
    for at in range(1, min(len(words), _MAX_WRAPPED)):
        word = words[at]
        if any(hint in word.text for hint in _HINTS) and any(space in word.text for space in " \n"):
            return follow(replace(start, words=(), place=word.place), word.text, word.lines, notebook, depth)
        runs = base_name(word.text) in _SHELLS or is_container_program(word)
        if runs or _engine(words[at:]) is not None:
            return find_starts(replace(start, words=words[at:]), notebook, depth + 1)
    return []


def _remote(words: Sequence[Word]) -> str | None:
    """Return the host that ssh goes to."""
    position = 1
    while position < len(words) and words[position].text.startswith("-"):
        position += 2 if words[position].text in _VALUED_SSH else 1
    return words[position].text.rpartition("@")[2] if position < len(words) else None


def _of_container(
    start: Start, words: tuple[Word, ...], position: int, notebook: Notebook, depth: int
) -> list[Start]:
    run = read_run(words[position:])
    if run is None:
        return []
    environ, missing = _container_environ(run, start, notebook)
    entrypoint = None if run.entrypoint is None or not run.entrypoint.text else [run.entrypoint]
    command, version = of_image(run.image, entrypoint, run.rest, notebook)
    inner = replace(
        start,
        name=run.name.text if run.name and not run.name.unresolved else start.name,
        words=command,
        environ=environ,
        missing_environment=missing,
        version=version,
        devices=visible(replace(run.devices, node=start.devices.node), environ),
        mounts=tuple(run.mounts),
        contained=True,
    )
    return find_starts(inner, notebook, depth + 1)


def _container_environ(
    run: ContainerRun, start: Start, notebook: Notebook
) -> tuple[dict[str, Word], tuple[str, ...]]:
    environ: dict[str, Word] = {}
    missing: list[str] = []
    for word in run.env_files:
        found = None if word.unresolved else notebook.shelf.find(word.text, word.place.file)
        if found is None:
            missing.append(word.text)
        else:
            environ |= read_variables(found, Style.DOCKER)
    for word in run.environ:
        name, equals, value = word.text.partition("=")
        if equals:
            environ[name] = replace(word, text=value, marks=None)
        elif not word.unresolved:
            environ[name] = start.environ.get(name) or unknown(f"${name}", word.place)
    return environ, tuple(missing)
