"""No room, no permission, no folder: history stops and says so, loses nothing, and goes on when it can."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvwatch.history.keeper import Keeper
from kvwatch.history.reader import HistoryReader
from kvwatch.history.recorder import Recorder
from kvwatch.history.store import Store
from kvwatch.readings import Reason, SourceError
from tests.history.made import AT, minute, rank, server, snapshot, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kvwatch.observation import Observation

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


def store(path: Path) -> Store:
    """Return a store."""
    return Store(path, retention_seconds=1e9, max_bytes=512 << 20)


def read(path: Path) -> tuple[Observation, ...]:
    """Return all observations."""
    with HistoryReader(path) as reader:
        return reader.observations("chat", 0, 1e12)


@contextlib.asynccontextmanager
async def keeping(path: Path, *, asked: bool = True) -> AsyncIterator[Keeper]:
    """Run a keeper that tries again soon."""
    keeper = Keeper(store(path), Recorder(), asked=asked, retry_seconds=0.05)
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await keeper.close()


def reason(keeper: Keeper) -> Reason | None:
    """Return why the last attempt failed."""
    (outcome,) = keeper.outcomes
    assert (outcome.source, outcome.target) == ("history", "store")
    return outcome.reason


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_stops_writing_and_loses_nothing(small_disk: Path) -> None:
    """Rows wait in memory, what was written can be read, and all of it is there when there is room again."""
    path = small_disk / "history.db"
    ballast = small_disk / "ballast"
    async with keeping(path) as keeper:
        await until(lambda: bool(keeper.outcomes))
        assert reason(keeper) is None
        ballast.write_bytes(bytes(500 << 10))
        number = 0

        def record() -> None:
            nonlocal number
            number += 1
            at = AT + 60 * number
            keeper.record(
                snapshot(at, *(server(rank(finished=number), name=f"s{index}") for index in range(8)))
            )

        for _ in range(400):
            record()
            await asyncio.sleep(0)
            if keeper.outcomes and reason(keeper) is Reason.DISK:
                break
            await asyncio.sleep(0.005)
        assert reason(keeper) is Reason.DISK
        assert "full" in keeper.outcomes[0].detail
        assert keeper.state is None
        with HistoryReader(path) as reader:
            written = reader.observations("s0", 0, 1e12)
        for _ in range(20):
            record()
        await asyncio.sleep(0.2)
        assert reason(keeper) is Reason.DISK
        ballast.unlink()
        await until(lambda: reason(keeper) is None)
    with HistoryReader(path) as reader:
        rows = [reader.observations(f"s{index}", 0, 1e12) for index in range(8)]
    for own in rows:
        assert [one.at for one in own] == [AT + 60 * (index + 1) for index in range(number)]
    assert rows[0][: len(written)] == written


async def test_a_disk_that_is_full_from_the_start_is_told_and_tried_again(small_disk: Path) -> None:
    """Not even the file can be made."""
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        file.write(bytes(2 << 20))
    async with keeping(small_disk / "history.db") as keeper:
        keeper.record(snapshot(AT, server(rank())))
        keeper.record(snapshot(AT + 60, server(rank())))
        await until(lambda: bool(keeper.outcomes))
        assert reason(keeper) is Reason.DISK
        ballast.unlink()
        await until(lambda: reason(keeper) is None)
    assert [own.at for own in read(small_disk / "history.db")] == [AT, AT + 60]


def test_a_file_that_may_not_grow_stops_writing(tmp_path: Path) -> None:
    """A limit of the process or a quota is no room either: the same reason, nothing lost."""
    program = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from kvwatch.history.store import Store
        from kvwatch.readings import SourceError
        from tests.history.made import AT, minute

        store = Store(Path(sys.argv[1]), retention_seconds=1e9, max_bytes=512 << 20)
        store.write([])
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        number = 0
        try:
            while True:
                store.write([minute(AT + 60 * number)])
                number += 1
        except SourceError as error:
            print(error.reason)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.write([minute(AT + 60 * number)])
        print(number + 1)
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "history.db")],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said, rows = done.stdout.split()
    assert said == "disk"
    assert len(read(tmp_path / "history.db")) == int(rows) > 10


def as_nobody(program: str, path: Path) -> str:
    """Run a program that has only the rights of an unprivileged user; return what it prints.

    The interpreter may lie in a folder of root's, so the user changes when all is imported.
    """
    head = """
import os, sys
from pathlib import Path
from kvwatch.history.reader import HistoryReader
from kvwatch.history.store import Store
from kvwatch.readings import SourceError
path = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
"""
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(program), str(path)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that everybody may enter, as pytest's own may not be."""
    with tempfile.TemporaryDirectory(prefix="kvwatch-test-") as name:
        Path(name).chmod(0o755)
        made = Path(name) / "folder"
        made.mkdir()
        made.chmod(0o755)
        yield made
        made.chmod(0o755)


WRITE = """
    try:
        Store(path, retention_seconds=1e9, max_bytes=512 << 20).write([])
        print("written")
    except SourceError as error:
        print(error)
"""
READ = """
    try:
        with HistoryReader(path) as reader:
            print(len(reader.observations("chat", 0, 1e12)))
    except SourceError as error:
        print(error)
"""


def test_a_folder_that_may_not_be_written_is_told(folder: Path) -> None:
    """Where it cannot be made, and where the file is somebody else's."""
    folder.chmod(0o555)
    message = as_nobody(WRITE, folder / "state" / "history.db")
    assert message == f"permission: cannot make {folder}/state/history.db: Permission denied"
    folder.chmod(0o755)
    store(folder / "history.db").write([minute()])
    (folder / "history.db").chmod(0o600)
    if os.geteuid() == 0:
        assert as_nobody(WRITE, folder / "history.db").startswith("permission: ")
        assert as_nobody(READ, folder / "history.db").startswith("permission: ")


def test_who_may_only_read_reads(folder: Path) -> None:
    """The daemon up, the daemon down, the daemon killed: with no right to write anything beside the file."""
    path = folder / "history.db"
    before = os.umask(0o022)
    try:
        writer = store(path)
        writer.write([minute(AT + 60 * number) for number in range(3)])
    finally:
        os.umask(before)
    for own in folder.iterdir():
        own.chmod(0o644)
    assert as_nobody(READ, path) == "3", "while it is written"
    writer.close()
    folder.chmod(0o555)
    assert as_nobody(READ, path) == "3", "with the writer gone"
    folder.chmod(0o755)
    kill = """
        import os, sys
        from pathlib import Path
        from kvwatch.history.store import Store
        from tests.history.made import AT, minute
        Store(Path(sys.argv[1]), retention_seconds=1e9, max_bytes=512 << 20).write([minute(AT + 600)])
        os._exit(9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(kill), str(path)], cwd=ROOT, check=False)
    assert path.with_name("history.db-wal").stat().st_size > 0
    for own in folder.iterdir():
        own.chmod(0o644)
    folder.chmod(0o555)
    assert as_nobody(READ, path) == "4", "with the writer killed"
    folder.chmod(0o755)
    assert {own.name for own in folder.iterdir()} <= {
        "history.db", "history.db-wal", "history.db-shm", "history.db.lock",
    }  # fmt: skip


@pytest.mark.parametrize("asked, expected", [(True, Reason.PERMISSION), (False, Reason.NOT_ENABLED)])
async def test_having_no_place_is_a_fault_only_where_somebody_chose_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: bool,  # noqa: FBT001 - a situation
    expected: Reason,
) -> None:
    """In a container with a read-only root nobody asked for history: it is off, and says why."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    async with keeping(tmp_path / "state" / "history.db", asked=asked) as keeper:
        await until(lambda: bool(keeper.outcomes))
        assert reason(keeper) is expected
        assert "Read-only file system" in keeper.outcomes[0].detail


def test_reading_what_is_not_there_says_so(tmp_path: Path) -> None:
    """No file, or another program's."""
    with pytest.raises(SourceError, match="there is no history file") as caught:
        HistoryReader(tmp_path / "history.db")
    assert caught.value.reason is Reason.NOT_FOUND
    (tmp_path / "history.db").write_text("hello " * 1000)
    with pytest.raises(SourceError) as caught:
        HistoryReader(tmp_path / "history.db")
    assert caught.value.reason is Reason.PARSE_ERROR
    assert list(tmp_path.iterdir()) == [tmp_path / "history.db"], "reading leaves nothing behind"
