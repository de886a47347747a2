"""Paths of processes that are shut into a root of their own: their links lead nowhere outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason, SourceError
from kvwatch.sources.inside import followed, path_inside
from kvwatch.sources.launches import _config_text
from kvwatch.sources.model import ModelFiles
from kvwatch.sources.model_path import open_regular, served_folder
from tests.test_model_files import CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to shut a process in")
SLEEPER = (
    "import os, sys; os.chroot(sys.argv[1]); os.chdir('/work'); print('in', flush=True); sys.stdin.read()"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return what a process takes for its root, beside a secret that is outside of it."""
    (tmp_path / "secret").write_text("hunter2")
    root = tmp_path / "root"
    for folder in ("work", "models/chat", "data"):
        (root / folder).mkdir(parents=True)
    return root


@pytest.fixture
def pid(root: Path) -> Iterator[int]:
    """Return a process with that root, in its folder /work."""
    command = [sys.executable, "-c", SLEEPER, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        yield process.pid
        process.kill()


LINKS = {
    "an absolute link": ("models/link", "/data", "/models/link/x", "data/x"),
    "a relative one": ("models/link", "../data", "/models/link/x", "data/x"),
    "one that climbs out": ("models/link", "../../../../secret", "/models/link", "secret"),
    "one to a file of the host": ("models/link", "/etc/shadow", "/models/link", "etc/shadow"),
    "climbing by hand": ("models/link", "x", "/models/../../../../secret", "secret"),
    "a loop": ("models/link", "link", "/models/link/x", "models/link"),
}


@needs_root
@pytest.mark.parametrize("name", LINKS)
def test_where_links_lead(name: str, root: Path, pid: int) -> None:
    """Each stays below the process's own root, as it does for the process."""
    link, target, path, expected = LINKS[name]
    (root / link).symlink_to(target)
    assert path_inside(pid, path) == Path(f"/proc/{pid}/root/{expected}")
    assert followed(Path(f"/proc/{pid}/root{path}")) == Path(f"/proc/{pid}/root/{expected}")


@needs_root
def test_from_a_working_directory(root: Path, pid: int) -> None:
    """Relative names start there; an absolute link goes on at the process's root."""
    (root / "work" / "model").symlink_to("/models/chat")
    assert path_inside(pid, "model/x") == Path(f"/proc/{pid}/root/models/chat/x")
    assert path_inside(pid, "./a/../b") == Path(f"/proc/{pid}/cwd/b")
    (root / "data" / "x").write_text("data")
    with open_regular(Path(f"/proc/{pid}/cwd/../data/x")) as stream:
        assert stream.read() == b"data"


@needs_root
def test_a_link_to_a_file_of_the_host_is_not_read(root: Path, pid: int, tmp_path: Path) -> None:
    """Not as a model, not as a configuration, not as an index: for the process it is not there either."""
    secret = tmp_path / "config.json"
    secret.write_text(CONFIG)
    (root / "models" / "chat" / "config.json").symlink_to(secret)
    with pytest.raises(SourceError) as refused:
        ModelFiles().read(Path(f"/proc/{pid}/root/models/chat"))
    assert refused.value.reason is Reason.NOT_FOUND
    assert served_folder("/models/chat", [pid]) is None


@needs_root
def test_a_folder_behind_an_absolute_link_is_the_processes(root: Path, pid: int) -> None:
    """A container's /models that is a link is found where the container finds it."""
    (root / "data" / "config.json").write_text(CONFIG)
    (root / "models" / "link").symlink_to("/data")
    folder = served_folder("/models/link", [pid])
    assert folder == Path(f"/proc/{pid}/root/data")
    assert ModelFiles().read(folder).hash


@needs_root
@pytest.mark.parametrize("revision", ["../../../../../../secret", "..", "a/b", "", "x" * 10_000_000])
def test_a_revision_is_one_folder(root: Path, pid: int, revision: str) -> None:
    """What the cache's reference says is no path and no text without end."""
    cache = root / "root" / ".cache" / "huggingface" / "hub" / "models--org--name"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(revision)
    assert served_folder("org/name", [pid]) is None


@needs_root
def test_a_cache_of_the_container_is_read(root: Path, pid: int) -> None:
    """Its files are links to blobs, as huggingface_hub lays them out."""
    cache = root / "root" / ".cache" / "huggingface" / "hub" / "models--org--name"
    for folder in ("refs", "blobs", "snapshots/abc"):
        (cache / folder).mkdir(parents=True)
    (cache / "refs" / "main").write_text("abc")
    (cache / "blobs" / "1").write_text(CONFIG)
    (cache / "snapshots" / "abc" / "config.json").symlink_to("../../blobs/1")
    folder = served_folder("org/name", [pid])
    assert folder is not None
    assert ModelFiles().read(folder).hash


@needs_root
def test_a_servers_own_file_of_settings(root: Path, pid: int, tmp_path: Path) -> None:
    """`--config` is read where the server reads it, never through a link to the host's."""
    (root / "data" / "own.yaml").write_text("max-num-seqs: 7\n")
    (root / "work" / "own.yaml").symlink_to("/data/own.yaml")
    assert _config_text(Path("/proc"), pid, "/work/own.yaml") == "max-num-seqs: 7\n"
    (root / "work" / "hosts.yaml").symlink_to(tmp_path / "secret")
    with pytest.raises(SourceError) as refused:
        _config_text(Path("/proc"), pid, "/work/hosts.yaml")
    assert refused.value.reason is Reason.NOT_FOUND
