"""Commands read from /proc: words, the variables that matter, and why there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason, SourceError
from kvwatch.sources import commands
from kvwatch.sources.commands import read_command

if TYPE_CHECKING:
    from pathlib import Path


def process(root: Path, *, cmdline: bytes, environ: bytes = b"", cwd: str | None = "/srv") -> Path:
    """Make process 7 of a made-up /proc."""
    folder = root / "7"
    folder.mkdir()
    (folder / "cmdline").write_bytes(cmdline)
    (folder / "environ").write_bytes(environ)
    if cwd is not None:
        (folder / "cwd").symlink_to(cwd)
    return folder


def test_reads_words_variables_and_folder(tmp_path: Path) -> None:
    """Words keep their spaces and their emptiness; of the environment only what engines are set by stays."""
    process(
        tmp_path,
        cmdline=b"vllm\0serve\0a model\0--chat-template\0\0--api-key\0hunter2\0",
        environ=b"PATH=/bin\0VLLM_USE_V1=1\0VLLM_API_KEY=hunter2\0LLAMA_ARG_PORT=1=2\0HF_TOKEN=hunter2\0"
        b"CUDA_VISIBLE_DEVICES=0,1\0CUDA_VISIBLE_DEVICES_OLD=9\0VLLM_BROKEN\0",
    )
    command = read_command(7, tmp_path)
    assert command.argv == ("vllm", "serve", "a model", "--chat-template", "", "--api-key", "***")
    assert dict(command.environ) == {
        "VLLM_USE_V1": "1",
        "LLAMA_ARG_PORT": "1=2",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert command.cwd == "/srv"
    assert "hunter2" not in repr(command)


def test_reads_a_title(tmp_path: Path) -> None:
    """A title stands alone, without the NULs of the words it replaced."""
    process(tmp_path, cmdline=b"VLLM::EngineCore\0\0\0\0\0\0")
    assert read_command(7, tmp_path).argv == ("VLLM::EngineCore",)


def test_reads_words_that_are_no_text(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 come through: a path may hold any."""
    process(tmp_path, cmdline=b"llama-server\0-m\0/\xff.gguf\0")
    assert os.fsencode(read_command(7, tmp_path).argv[2]) == b"/\xff.gguf"


def test_a_deleted_folder_is_unknown(tmp_path: Path) -> None:
    """Relative paths of a process whose folder is gone lead nowhere."""
    process(tmp_path, cmdline=b"vllm\0serve\0", cwd="/srv/old (deleted)")
    assert read_command(7, tmp_path).cwd is None


def test_a_process_that_does_not_exist(tmp_path: Path) -> None:
    """No folder, no words and no folder link are all not_found."""
    with pytest.raises(SourceError) as caught:
        read_command(7, tmp_path)
    assert caught.value.reason is Reason.NOT_FOUND
    process(tmp_path, cmdline=b"")
    with pytest.raises(SourceError) as caught:
        read_command(7, tmp_path)
    assert caught.value.reason is Reason.NOT_FOUND


def test_a_process_that_ends_meanwhile(tmp_path: Path) -> None:
    """Words without the rest are not taken for a whole command."""
    process(tmp_path, cmdline=b"vllm\0serve\0", cwd=None)
    with pytest.raises(SourceError) as caught:
        read_command(7, tmp_path)
    assert caught.value.reason is Reason.NOT_FOUND


def test_more_than_the_kernel_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beyond the cap is refused as a whole, and the message does not quote it."""
    monkeypatch.setattr(commands, "_MAX_BYTES", 10)
    process(tmp_path, cmdline=b"vllm\0serve\0secret")
    with pytest.raises(SourceError) as caught:
        read_command(7, tmp_path)
    assert caught.value.reason is Reason.TOO_LARGE
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_users_process() -> None:
    """What may not be read is permission, not a command without an environment."""
    script = (
        "import os, sys\n"
        "from kvwatch.readings import SourceError\n"
        "from kvwatch.sources.commands import read_command\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: read_command(int(sys.argv[1]))\n"
        "except SourceError as error: print(error.reason)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, str(os.getpid())], check=True, capture_output=True, text=True
    )
    assert answer.stdout == "permission\n"


def test_a_real_process() -> None:
    """The kernel's own files are read as they are."""
    environ = {"PATH": os.environ["PATH"], "LLAMA_ARG_PORT": "8081", "LLAMA_API_KEY": "hunter2"}
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", "--api-key", "hunter2"],
        env=environ,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        command = read_command(child.pid)
        child.kill()
    assert command.argv[-2:] == ("--api-key", "***")
    assert dict(command.environ) == {"LLAMA_ARG_PORT": "8081"}
    assert command.cwd == "/"
