"""Model files: found as the server's process sees them, read once for each version, never hanging."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason, SourceError
from kvwatch.sources.model import ModelFiles
from kvwatch.sources.model_path import find_model, served_file, served_folder
from tests.replay import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = (CAPTURES / "vllm" / "tiny-llama-config.json").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that holds the model folder `model`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def process(folder: Path) -> Iterator[int]:
    """Return the PID of a process whose working directory is `folder`."""
    server = subprocess.Popen(["sleep", "60"], cwd=folder)
    yield server.pid
    server.kill()
    server.wait()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty Hugging Face cache."""
    cache = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    return cache


def test_a_relative_path_is_the_processes(folder: Path, process: int, hub: Path) -> None:
    """What the server calls ./model is below its own working directory, whatever kvwatch's is."""
    found = served_folder("./model", [process])
    assert found is not None
    assert (found / "config.json").read_text() == CONFIG
    assert served_folder("./model", [os.getpid()]) is None
    assert served_folder("./model", []) is None


def test_an_absolute_path_is_below_the_processes_root(folder: Path, process: int, hub: Path) -> None:
    """So that a container's /models is not mistaken for the host's."""
    found = served_folder(str(folder / "model"), [process])
    assert found is not None
    assert str(found).startswith(f"/proc/{process}/root/")


def test_an_id_is_looked_up_in_the_cache(folder: Path, process: int, hub: Path) -> None:
    """The current revision, or the only one; two without a reference are none."""
    snapshots = hub / "models--org--name" / "snapshots"
    (snapshots / "a").mkdir(parents=True)
    assert served_folder("org/name", [process]) is None
    (snapshots / "a" / "config.json").write_text(CONFIG)
    assert served_folder("org/name", [process]) == snapshots / "a"
    (snapshots / "b").mkdir()
    assert served_folder("org/name", [process]) is None
    (hub / "models--org--name" / "refs").mkdir()
    (hub / "models--org--name" / "refs" / "main").write_text("a\n")
    assert served_folder("org/name", [process]) == snapshots / "a"
    assert served_folder("../../org/name", [process]) is None


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    """Drop root's rights for a while; any other user has too few as it is."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_another_users_process_hides_its_folders(hub: Path) -> None:
    """The reason is told, and nothing breaks."""
    for search, name in (
        (served_file, "model.gguf"),
        (served_folder, "./model"),
        (served_folder, "org/name"),
    ):
        with as_another_user(), pytest.raises(SourceError) as caught:
            search(name, [1])
        assert caught.value.reason is Reason.PERMISSION


def test_a_model_is_read_again_only_when_its_file_changes(folder: Path) -> None:
    """The same object while the file stays; another hash when it does not."""
    files = ModelFiles()
    first = files.read(folder / "model")
    assert files.read(folder / "model" / "config.json") is first
    (folder / "model" / "config.json").write_text(
        CONFIG.replace('"num_hidden_layers": 4', '"num_hidden_layers": 8')
    )
    second = files.read(folder / "model")
    assert (len(first.spec.layers), len(second.spec.layers)) == (4, 8)
    assert first.hash != second.hash


def test_a_failure_is_kept_until_the_file_changes(folder: Path) -> None:
    """A file that is no model has its reason each time, and heals when it is replaced."""
    files = ModelFiles()
    file = folder / "model" / "config.json"
    file.write_text("[]")
    for _ in range(2):
        with pytest.raises(SourceError) as refused:
            files.read(file)
        assert refused.value.reason is Reason.PARSE_ERROR
    file.write_text(CONFIG)
    assert files.read(file).spec.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize("kind", ["fifo", "directory in its place", "device"])
def test_what_is_no_regular_file_hangs_nobody(tmp_path: Path, kind: str) -> None:
    """A FIFO without a writer, a directory, a device: refused at once."""
    file = tmp_path / "config.json"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    with pytest.raises(SourceError) as refused:
        ModelFiles().read(tmp_path)
    assert refused.value.reason is Reason.NOT_FOUND


def test_a_huge_file_is_too_large(tmp_path: Path) -> None:
    """No more than the limit is ever read."""
    file = tmp_path / "config.json"
    file.write_text("{" + " " * 5_000_000 + "}")
    with pytest.raises(SourceError) as refused:
        ModelFiles().read(file)
    assert refused.value.reason is Reason.TOO_LARGE


def test_a_folder_of_ggufs_must_be_one_model(tmp_path: Path) -> None:
    """One file or a first shard is the model; several are a question."""
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(SourceError, match="2 GGUF files: name one"):
        find_model(str(tmp_path))
    (tmp_path / "b.gguf").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["X"]}))
    assert find_model(str(tmp_path)).config == {"architectures": ["X"]}


def safetensors(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """Return a safetensors file of (dtype, shape, bytes) without its tensors' bytes being read by anyone."""
    table: dict[str, object] = {}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(table).encode()
    return len(header).to_bytes(8, "little") + header + bytes(offset)


def test_a_checkpoints_weights_come_from_its_headers(folder: Path) -> None:
    """Two files of a checkpoint add up; a file that is cut makes the whole unknown."""
    model = folder / "model"
    (model / "a.safetensors").write_bytes(safetensors({"x": ("BF16", [2, 8], 32)}))
    (model / "b.safetensors").write_bytes(safetensors({"y": ("BF16", [4], 8)}))
    weights = ModelFiles().read(model).weights
    assert weights is not None
    assert (weights.total_bytes, dict(weights.by_dtype)) == (40, {"BF16": 40})
    (model / "b.safetensors").write_bytes(b"\xff" * 8)
    assert ModelFiles().read(model).weights is None
