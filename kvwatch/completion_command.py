"""`kvwatch completion SHELL`: what a shell needs to complete kvwatch's commands, options and file names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")

NOTES = """\
Try it in this shell:
  bash    source <(kvwatch completion bash)
  zsh     kvwatch completion zsh > ~/.zfunc/_kvwatch      (a folder of $fpath, then compinit)
  fish    kvwatch completion fish | source

For good:
  bash    kvwatch completion bash > ~/.local/share/bash-completion/completions/kvwatch
  fish    kvwatch completion fish > ~/.config/fish/completions/kvwatch.fish
"""

_FILES = {"FILE", "NEW", "MODEL", "PATH"}
_FOLDERS = {"DIR", "FOLDER"}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `kvwatch completion`, and where its output goes."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = NOTES
    command.add_argument("shell", choices=SHELLS, help="the shell that completes")


def run_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print the completion script of a command line; return 0."""
    import shtab  # noqa: PLC0415

    for action in _actions(parser):
        if action.metavar in _FILES:
            _complete_with(action, shtab.FILE)
        elif action.metavar in _FOLDERS:
            _complete_with(action, shtab.DIRECTORY)
    print(shtab.complete(parser, shell))
    return 0


def _complete_with(action: argparse.Action, names: Any) -> None:
    """Tell shtab by the attribute that it looks for what completes an argument."""
    action.complete = names  # type: ignore[attr-defined]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a command line, those of its commands included."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to look at a parser
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _actions(command)
