"""What a look costs while nothing changes, and that it notices what changes under the same number."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from kvwatch.readings import ProcessTable
from kvwatch.sources.discovery.discovery import Discovery
from tests.discovery.stand_ins import REPOSITORY, Clock

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.target import Target

# Counts what a look opens and lists, by Python's own audit events; prints a line for each of some looks.
COUNTER = """
import json, sys
from pathlib import Path
from kvwatch.readings import ProcessTable
from kvwatch.sources.discovery.discovery import Discovery
now, seen = 0.0, []
def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "socket.connect"):
        seen.append(f"{event} {arguments[0]}")
discovery = Discovery(root=Path(sys.argv[1]), clock=lambda: now)
table = ProcessTable()
sys.addaudithook(hook)
for at in json.loads(sys.argv[2]):
    now = at
    seen.clear()
    found = discovery.read([], table, [], {}, private=False)
    print(json.dumps([[target.url for target in found.targets if not target.hindrance], list(seen)]))
"""


class Tree:
    """A /proc of plain files, whose processes may be replaced by others."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self" / "net").mkdir(parents=True)
        (root / "self" / "ns").mkdir()
        (root / "self" / "ns" / "net").symlink_to("net:[1]")
        self.header = "  sl  local_address rem_address   st tx rx tr tm retr  uid  timeout inode\n"
        (root / "self" / "net" / "tcp").write_text(
            f"{self.header}   0: 0100007F:1F40 00000000:0000 0A 0:0 0:0 0 0 0 77 1 0 100 0 0 10 0\n"
            "   1: 0100007F:1F41 00000000:0000 0A 0:0 0:0 0 0 0 78 1 0 100 0 0 10 0\n"
        )
        self.process(1, "init")

    def process(self, pid: int, *words: str, ticks: int = 100, socket: int | None = None) -> None:
        """Put a process there, in place of the one that had its number."""
        home = self.root / str(pid)
        shutil.rmtree(home, ignore_errors=True)
        for folder in ("fd", "ns"):
            (home / folder).mkdir(parents=True)
        (home / "ns" / "net").symlink_to("net:[1]")
        (home / "cwd").symlink_to("/")
        (home / "environ").write_text("")
        (home / "cmdline").write_text("\0".join(words) + "\0")
        (home / "stat").write_text(
            f"{pid} (x) S 1 {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {ticks}{' 0' * 30}\n"
        )
        if socket is not None:
            (home / "fd" / "3").symlink_to(f"socket:[{socket}]")


def test_while_nothing_changes_a_look_reads_next_to_nothing(tmp_path: Path) -> None:
    """One listing of /proc and two stat files for each server; all command lines once a minute."""
    tree = Tree(tmp_path)
    tree.process(7, "vllm", "serve", "m", socket=77)
    tree.process(8, "llama-server", "-m", "m.gguf", "--port", "8001", socket=78)
    for pid in range(100, 300):
        tree.process(pid, "sleep", "60")
    said = subprocess.run(
        [sys.executable, "-c", COUNTER, str(tmp_path), json.dumps([0, 5, 20, 25, 59, 60])],
        env={**os.environ, "PYTHONPATH": REPOSITORY},
        capture_output=True,
        text=True,
        check=True,
    )
    first, young, *quiet, minute = (json.loads(line) for line in said.stdout.splitlines())
    both = ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
    assert [found for found, _ in (first, young, *quiet, minute)] == [both] * 6
    for _, reads in quiet:
        assert sorted(line.removeprefix("open ") for line in reads if line.startswith("open ")) == [
            *[f"{tmp_path}/7/stat"] * 2,
            *[f"{tmp_path}/8/stat"] * 2,
        ]
        assert [line for line in reads if not line.startswith("open ")] == [f"os.listdir {tmp_path}"]
    for _, reads in (first, young, minute):
        assert len([line for line in reads if line.endswith("/cmdline")]) >= 203


def test_a_number_that_another_server_got_between_two_looks(tmp_path: Path) -> None:
    """The start time tells them apart: it is read anew at once, though its number was known."""
    tree, clock = Tree(tmp_path), Clock()
    discovery = Discovery(root=tmp_path, clock=clock)

    def look() -> list[Target]:
        return list(discovery.read([], ProcessTable(), [], {}, private=False).targets)

    tree.process(7, "vllm", "serve", "m", socket=77)
    (first,) = look()
    assert (first.url, first.start_ticks) == ("http://127.0.0.1:8000", 100)
    clock.now += 20
    tree.process(7, "llama-server", "-m", "m.gguf", "--port", "8000", ticks=900, socket=77)
    (second,) = look()
    assert (second.engine, second.start_ticks, second.hindrance) == ("llamacpp", 900, None)
    tree.process(7, "vim", "vllm.py", ticks=950)
    assert look() == []


def test_a_machine_whose_processes_cannot_be_listed(tmp_path: Path) -> None:
    """Without /proc nothing is found, and that is said."""
    found = Discovery(root=tmp_path / "nowhere").read([], ProcessTable(), [], {}, private=False)
    assert found.outcome is not None
    assert (found.targets, found.outcome.reason) == ((), "not_found")
