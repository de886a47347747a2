"""A real terminal for the tests: a shell in a tmux of its own, looked at as text."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ROOT = Path(__file__).parents[2]
KVWATCH = f"{shlex.quote(sys.executable)} -m kvwatch"


class Pane:
    """One pane; `folder` holds its server's socket."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"

    def tmux(self, *arguments: str) -> str:
        """Run a command of tmux; return what it prints."""
        command = ["tmux", "-u", "-S", str(self._socket), "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout

    def type(self, text: str) -> None:
        """Type a line, and Enter."""
        self.tmux("send-keys", "-l", text)
        self.tmux("send-keys", "Enter")

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names of them."""
        self.tmux("send-keys", *keys)

    def text(self, *, colours: bool = False) -> str:
        """Return what the pane shows, with its escape sequences if they are asked for."""
        return self.tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def format(self, name: str) -> str:
        """Return one of tmux's own facts about the pane."""
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip()

    def until(self, condition: Callable[[str], object] | str, *, seconds: float = 20.0) -> str:
        """Wait until the pane shows a text, or a condition on it holds; return what it shows then."""
        holds = (lambda shown: condition in shown) if isinstance(condition, str) else condition
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            shown = self.text()
            if holds(shown):
                return shown
            time.sleep(0.05)
        raise AssertionError(f"not seen within {seconds} s: {condition}\n{self.text()}")

    def pid_of_top(self) -> int:
        """Return the process of `kvwatch top` in the pane."""
        shell = self.format("pane_pid")
        found = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", shell], capture_output=True, text=True, check=True
        ).stdout
        return next(int(line.split()[0]) for line in found.splitlines() if " top" in line)


@contextlib.contextmanager
def pane(
    folder: Path, *, columns: int = 80, rows: int = 24, environment: Mapping[str, str] | None = None
) -> Iterator[Pane]:
    """Open a shell in a pane of a size; its variables are `environment` and what it needs to start."""
    shown = Pane(folder)
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(_ROOT),
        "PS1": "$ ",
        "LANG": "C.UTF-8",
        **(environment or {}),
    }
    shell = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
    # The pane's own type of terminal, as a login over ssh would have it.
    shell += ["TERM=tmux-256color"] if "TERM" not in variables else []
    shown.tmux(
        "new-session", "-d", "-x", str(columns), "-y", str(rows), shlex.join([*shell, "bash", "--norc", "-i"])
    )
    try:
        shown.until("$")
        yield shown
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            shown.tmux("kill-server")


@contextlib.contextmanager
def demo(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `kvwatch demo` on a port of its own; yield its address and its process."""
    command = [sys.executable, "-m", "kvwatch", "demo", "--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=_ROOT)
    try:
        assert process.stderr is not None
        for told in process.stderr:
            found = re.search(r"http://127\.0\.0\.1:\d+", told)
            if found:
                yield found[0], process
                break
        else:
            raise AssertionError("the demo did not start")
    finally:
        process.terminate()
        process.communicate(timeout=10)
