"""Files that are no good, or somebody else's: set aside or left alone, never lost, never waited for."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvwatch.history.reader import HistoryReader
from kvwatch.history.store import Store
from kvwatch.readings import Reason, SourceError
from tests.history.made import AT, minute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]


def store(path: Path) -> Store:
    """Return a store."""
    return Store(path, retention_seconds=1e9, max_bytes=512 << 20)


def rows(path: Path) -> int:
    """Return how many minutes of the server a file has."""
    with HistoryReader(path) as reader:
        return len(reader.observations("chat", 0, 1e12))


def filled(path: Path, minutes: int = 600) -> Path:
    """Write a history and close it."""
    writer = store(path)
    writer.write([minute(AT + 60 * number) for number in range(minutes)])
    writer.close()
    return path


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def make_foreign(path: Path) -> None:
    """Make another program's database, in use: part of it is in its log only."""
    program = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("CREATE TABLE users (name)")
connection.execute("INSERT INTO users VALUES (1)")
connection.commit()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)


NOISE = random.Random(1).randbytes(4096)  # noqa: S311 - no secret
DAMAGE: dict[str, Callable[[Path], object]] = {
    "a text file": lambda path: path.write_text("listen: 127.0.0.1:9836\n" * 300),
    "a short text": lambda path: path.write_text("hello\n"),
    "another program's database": make_foreign,
    "cut off": lambda path: os.truncate(filled(path), 50_000),
    "cut off within a page": lambda path: os.truncate(filled(path), 50_001),
    "the header is zeros": lambda path: overwrite(filled(path), 0, bytes(100)),
    "a page is zeros": lambda path: overwrite(filled(path), 5 * 4096, bytes(4096)),
    "a page is random": lambda path: overwrite(filled(path), 5 * 4096, NOISE),
    "the schema is random": lambda path: overwrite(filled(path), 100, NOISE[:3000]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_no_good_is_set_aside_and_a_fresh_one_begun(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One message names both; what was there is still there, with its log of writes; history goes on."""
    path = tmp_path / "history.db"
    DAMAGE[damage](path)
    before = path.read_bytes()
    writer = store(path)
    writer.write([minute()])
    writer.close()
    assert rows(path) == 1
    (aside,) = (
        one for one in tmp_path.glob("history.db.corrupt-*") if not one.name.endswith(("-wal", "-shm"))
    )
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"history: {path} is ")
    assert message.endswith(f"; it is kept as {aside.name}, and a new one is begun")
    if damage == "another program's database":
        with sqlite3.connect(aside) as connection:
            assert connection.execute("SELECT name FROM users").fetchall() == [(1,)]
    else:
        assert aside.read_bytes() == before


def test_random_damage_never_ends_the_daemon(tmp_path: Path) -> None:
    """Bits flipped anywhere: writing goes on, here or in a fresh file, and reading gives an answer."""
    whole = filled(tmp_path / "whole.db", 200).read_bytes()
    refusals: list[Reason] = []
    for seed in range(100):
        chance = random.Random(seed)  # noqa: S311 - no secret
        data = bytearray(whole)
        for _ in range(chance.choice((1, 5, 50, 500))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path = tmp_path / str(seed) / "history.db"
        path.parent.mkdir()
        path.write_bytes(data)
        try:
            with HistoryReader(path) as reader:
                reader.observations("chat", 0, 1e12)
        except SourceError as error:
            refusals.append(error.reason)
        writer = store(path)
        for number in range(3):
            try:
                writer.write([minute(AT + 60 * (200 + number))])
            except SourceError as error:
                refusals.append(error.reason)
        writer.close()
    assert set(refusals) <= {Reason.PARSE_ERROR, Reason.VERSION_MISMATCH}


def test_damage_that_shows_while_writing_is_set_aside_too(tmp_path: Path) -> None:
    """The file breaks under a running daemon: one failed write, then a fresh file with the same rows."""
    path = tmp_path / "history.db"
    writer = store(path)
    writer.write([minute(AT + 60 * number) for number in range(600)])
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    size = path.stat().st_size
    for page in range(1, size // 4096):
        overwrite(path, page * 4096, random.Random(page).randbytes(4096))  # noqa: S311 - no secret
    batch = [minute(AT + 60 * number) for number in range(300, 700)]
    with pytest.raises(SourceError) as caught:
        writer.write(batch)
    assert caught.value.reason is Reason.PARSE_ERROR
    writer.write(batch)
    writer.close()
    assert rows(path) == 400
    assert list(tmp_path.glob("history.db.corrupt-*"))


def test_two_bad_files_in_one_second_are_both_kept(tmp_path: Path) -> None:
    """A name is never used twice."""
    path = tmp_path / "history.db"
    for number in range(3):
        path.write_text(f"bad {number}")
        writer = store(path)
        writer.write([])
        writer.close()
        path.unlink()
    kept = sorted(one.read_text() for one in tmp_path.glob("history.db.corrupt-*"))
    assert kept == ["bad 0", "bad 1", "bad 2"]


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    """Neither written nor renamed: who goes back a version loses nothing. The reader says the same."""
    path = filled(tmp_path / "history.db", 1)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    before = path.read_bytes()
    for use in (lambda: store(path).write([minute()]), lambda: HistoryReader(path)):
        with pytest.raises(SourceError, match="newer kvwatch") as caught:
            use()
        assert caught.value.reason is Reason.VERSION_MISMATCH
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*corrupt*"))


def make_empty_database(path: Path) -> None:
    """Make a database without tables, as a kill in the first moment leaves one."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


@pytest.mark.parametrize("make", [Path.touch, make_empty_database])
def test_an_empty_file_is_filled(make: Callable[[Path], None], tmp_path: Path) -> None:
    """Nothing in it could be lost; it gives pages back as any other does."""
    path = tmp_path / "history.db"
    make(path)
    filled(path, 3)
    assert rows(path) == 3
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert not list(tmp_path.glob("*corrupt*"))


def test_a_second_writer_is_refused_and_takes_over_when_the_first_ends(tmp_path: Path) -> None:
    """It says so each time it tries; the first is not disturbed."""
    path = tmp_path / "history.db"
    first, second = store(path), store(path)
    first.write([minute()])
    with pytest.raises(SourceError, match="another kvwatch writes") as caught:
        second.write([minute(AT + 60)])
    assert caught.value.reason is Reason.AMBIGUOUS
    first.write([minute(AT + 120)])
    first.close()
    second.write([minute(AT + 60)])
    second.close()
    assert rows(path) == 3


def test_a_file_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    """What an operator moved or deleted is not written to any more."""
    path = tmp_path / "history.db"
    writer = store(path)
    writer.write([minute()])
    path.rename(tmp_path / "kept.db")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).rename(tmp_path / f"kept.db{suffix}")
    writer.write([minute(AT + 60), minute(AT + 120)])
    writer.close()
    assert (rows(path), rows(tmp_path / "kept.db")) == (2, 1)


def test_nobody_else_may_read_or_write_it(tmp_path: Path) -> None:
    """The group may read; others nothing; a strict umask is kept."""
    path = tmp_path / "folder" / "history.db"
    writer = store(path)
    before = os.umask(0o022)
    try:
        writer.write([minute()])
    finally:
        os.umask(before)
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}
    assert set(modes) == {"history.db", "history.db-wal", "history.db-shm", "history.db.lock"}
    assert set(modes.values()) == {0o640}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    writer.close()


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to a text"])
def test_what_is_no_file_is_neither_moved_nor_waited_for(kind: str, tmp_path: Path) -> None:
    """A link may lead anywhere, so what it leads to is left alone."""
    path = tmp_path / "history.db"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        (tmp_path / "text").write_text("hello\n" * 1000)
        path.symlink_to(tmp_path / "text")
    started = time.monotonic()
    with pytest.raises(SourceError) as caught:
        store(path).write([minute()])
    assert caught.value.reason is Reason.NOT_SUPPORTED
    assert time.monotonic() - started < 2
    assert not list(tmp_path.glob("*corrupt*"))


def test_a_link_to_a_history_is_followed(tmp_path: Path) -> None:
    """As an operator who moved it to another disk wants it."""
    real = filled(tmp_path / "disk.db", 2)
    path = tmp_path / "history.db"
    path.symlink_to(real)
    writer = store(path)
    writer.write([minute(AT + 60 * 5)])
    writer.close()
    assert (rows(path), rows(real)) == (3, 3)


WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from kvwatch.history.store import Store
    from tests.history.made import AT, minute

    store = Store(Path(sys.argv[1]), retention_seconds=1e9, max_bytes=512 << 20)
    number = int(sys.argv[2])
    while True:
        store.write([minute(AT + 60 * number, rank=str(rank), finished=float(number)) for rank in range(3)])
        print(number, flush=True)
        number += 1
""")


@pytest.fixture
def writing() -> Iterator[Callable[[Path, int], subprocess.Popen[str]]]:
    """Return what starts a process that writes minute after minute and says which are written."""
    processes = []

    def start(path: Path, number: int) -> subprocess.Popen[str]:
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path), str(number)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_kill_at_any_moment_loses_nothing_that_was_written(
    tmp_path: Path, writing: Callable[[Path, int], subprocess.Popen[str]]
) -> None:
    """Twenty kills, one after the other, of a writer at work: each opens with every minute told of."""
    path = tmp_path / "history.db"
    chance = random.Random(7)  # noqa: S311 - no secret
    last = -1
    for _ in range(20):
        process = writing(path, last + 1)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 40)):
            last = int(process.stdout.readline())
        time.sleep(chance.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        rest = process.stdout.read().split()
        last = max([last, *(int(word) for word in rest)])
        with HistoryReader(path) as reader:
            observations = reader.observations("chat", 0, 1e12)
        by_rank = {rank: [own for own in observations if own.rank == rank] for rank in "012"}
        for own in by_rank.values():
            # One more may be there: written, and killed before it could tell.
            assert len(own) in (last + 1, last + 2)
            assert [one.finished for one in own] == [float(number) for number in range(len(own))]
        last = len(by_rank["0"]) - 1
    assert not list(tmp_path.glob("*corrupt*"))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_it_is_read_while_it_is_written(
    tmp_path: Path, writing: Callable[[Path, int], subprocess.Popen[str]]
) -> None:
    """Each look sees whole minutes, never fewer than before; the writer goes on meanwhile."""
    path = tmp_path / "history.db"
    process = writing(path, 0)
    assert process.stdout is not None
    process.stdout.readline()
    seen = 0
    for _ in range(25):
        with HistoryReader(path) as reader:
            observations = reader.observations("chat", 0, 1e12)
            again = reader.observations("chat", 0, 1e12)
        assert again == observations, "one look is of one moment"
        assert len(observations) % 3 == 0
        assert len(observations) >= seen
        seen = len(observations)
    assert process.poll() is None
    assert int(process.stdout.readline()) >= 1
    assert seen > 3
