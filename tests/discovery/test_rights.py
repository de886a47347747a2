"""What is seen without rights: servers by their command lines alone, and a reason where more is hidden."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.discovery.stand_ins import LLAMA_PAGES, REPOSITORY, free_port, llama_server, program, vllm

if TYPE_CHECKING:
    from pathlib import Path

# Prints what nobody (the user) finds, with /proc or with another root.
STRANGER = """
import json, os, sys
from pathlib import Path
from kvwatch.sources.procfs import ProcfsSource
from kvwatch.sources.discovery.discovery import Discovery
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
table = ProcfsSource().read([], [])
discovery = Discovery(root=Path(sys.argv[1]))
found = discovery.read([], table, [], {}, private=json.loads(sys.argv[2]))
print(json.dumps([found.outcome.reason, found.outcome.detail]))
print(json.dumps({target.pid: [target.url, target.hindrance and target.hindrance.reason]
    for target in found.targets}))
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to drop its rights")


def seen_by_nobody(
    root: str = "/proc", *, private: bool = False, before: tuple[str, ...] = ()
) -> tuple[list[str | None], dict[int, list[str | None]]]:
    """Return reason and detail of the outcome, and what is found by process."""
    result = subprocess.run(
        [*before, sys.executable, "-c", STRANGER, root, json.dumps(private)],
        env={**os.environ, "PYTHONPATH": REPOSITORY, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    outcome, targets = (json.loads(line) for line in result.stdout.splitlines())
    return outcome, {int(pid): values for pid, values in targets.items()}


@needs_root
def test_other_users_servers_are_found_by_what_their_command_lines_state(tmp_path: Path) -> None:
    """A command line is everybody's to read; who holds the port is not, so the stated one is believed."""
    with vllm(tmp_path / "v", free_port()) as one, llama_server(tmp_path / "l", free_port() + 500) as other:
        _, targets = seen_by_nobody()
        assert targets[one.pid] == [f"http://127.0.0.1:{one.port}", None]
        assert targets[other.pid] == [f"http://127.0.0.1:{other.port}", None]


@needs_root
def test_words_alone_do_not_make_another_users_port_a_servers(tmp_path: Path) -> None:
    """Anybody can start a process with a server's words; a stranger's page behind its port is not asked."""
    os.seteuid(1)
    try:
        stranger = socket.create_server(("127.0.0.1", free_port()))
    finally:
        os.seteuid(0)
    with stranger:
        port = stranger.getsockname()[1]
        words = ("llama-server", "-c", "import time; time.sleep(60)", "--port", str(port), "-m", "tiny.gguf")
        fake = subprocess.Popen(words, executable=sys.executable)
        try:
            _, targets = seen_by_nobody()
        finally:
            fake.kill()
            fake.wait()
    assert targets[fake.pid] == [f"http://127.0.0.1:{port}", "loading"]


@needs_root
def test_a_port_that_only_the_environment_may_state_is_not_guessed(tmp_path: Path) -> None:
    """A llama-server without --port may listen where LLAMA_ARG_PORT says: the reason names the fix."""
    port = free_port()
    words = ("-m", "tiny.gguf")
    with program(tmp_path, "llama-server", LLAMA_PAGES, *words, LLAMA_ARG_PORT=str(port)) as engine:
        outcome, targets = seen_by_nobody()
    assert targets[engine.pid] == ["", "permission"]
    assert outcome[0] == "permission"
    assert "CAP_SYS_PTRACE" in str(outcome[1])


@needs_root
@pytest.mark.parametrize("option", ["hidepid=1", "hidepid=2"])
def test_a_proc_that_hides_other_users_is_not_an_empty_machine(option: str) -> None:
    """With hidepid nothing is seen, and that is no proof that there is nothing."""
    # Over /proc, in a mount namespace of its own: the folders above a test's own are closed to nobody.
    before = ("unshare", "--mount", "sh", "-c", f'mount -t proc -o {option} proc /proc && exec "$@"', "sh")
    if subprocess.run([*before, "true"], check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a /proc")
    outcome, targets = seen_by_nobody(before=before)
    assert outcome[0] == "permission", outcome
    assert "hidepid" in str(outcome[1])
    assert targets == {}


@needs_root
def test_a_private_pid_namespace_is_not_the_whole_machine() -> None:
    """What is found there is there; that there is no more cannot be said."""
    outcome, _ = seen_by_nobody(private=True)
    assert outcome[0] == "namespace"
    assert "hostPID" in str(outcome[1])
