"""The command lines of processes, read by the engines' rules: who is a server, and what it was told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.flags import llamacpp, vllm
from kvwatch.flags.command import Command
from kvwatch.sources.commands import read_command
from kvwatch.sources.model_path import MAX_CONFIG_BYTES, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvwatch.flags.launch import Launch

_PROC = Path("/proc")
_RECOGNISERS: Mapping[str, Callable[[Command], bool]] = {
    vllm.ENGINE: vllm.recognises,
    llamacpp.ENGINE: llamacpp.recognises,
}
_PARSERS: Mapping[str, Callable[..., Launch]] = {vllm.ENGINE: vllm.parse, llamacpp.ENGINE: llamacpp.parse}

HINTS = (b"vllm", b"llama")
"""Every command that an engine recognises holds one of these, so that the others need not be split."""


def engine_of(argv: Sequence[str]) -> str | None:
    """Name the engine whose server a command starts; None where it starts none."""
    command = Command(argv=tuple(argv))
    return next((engine for engine, recognises in _RECOGNISERS.items() if recognises(command)), None)


def read_launch(
    pid: int, engine: str, release: tuple[int, ...] | None, *, root: Path = _PROC
) -> Launch | None:
    """Read what a process was told; None for an engine without a parser.

    Raises SourceError where the process may not be read, ValueError where it is no server of that engine.
    """
    parse = _PARSERS.get(engine)
    if parse is None:
        return None
    return parse(
        read_command(pid, root), version=release, config_text=lambda path: _config_text(root, pid, path)
    )


def stated_launch(argv: Sequence[str], engine: str) -> Launch:
    """Return what the words of a command alone say, where environment and files may not be read."""
    return _PARSERS[engine](Command(argv=tuple(argv)), version=None, config_text=None)


def _config_text(root: Path, pid: int, path: str) -> str:
    """Return a `--config` file as the server's process sees it."""
    with open_regular(root / str(pid) / "root" / path.lstrip("/")) as stream:
        return stream.read(MAX_CONFIG_BYTES).decode("utf-8")
