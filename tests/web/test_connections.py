"""Clients that are slow, many or too talkative, against the real daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.daemon import Running, config, running
from tests.web.certificates import Authority
from tests.web.serving import get, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.anyio

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Connection]]


def address(daemon: Running) -> tuple[str, int]:
    """Return where the daemon listens."""
    host, port = daemon.url.partition("://")[2].split(":")
    return host, int(port)


@pytest.fixture
async def connect(anyio_backend: str) -> AsyncIterator[Connect]:
    """Return what connects to a daemon from an address of the loopback network; all is closed at the end."""
    writers = []

    async def connect(daemon: Running, address_from: str = "127.0.0.1") -> Connection:
        connection = await asyncio.open_connection(*address(daemon), local_addr=(address_from, 0))
        writers.append(connection[1])
        return connection

    yield connect
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def answer(
    connection: Connection, request: bytes = b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n"
) -> bytes:
    """Send a request; return the first line of what comes back, empty when it is hung up."""
    reader, writer = connection
    with contextlib.suppress(ConnectionError):
        writer.write(request)
        async with asyncio.timeout(5):
            return (await reader.readline()).strip()
    return b""


async def again(connection: Connection) -> bytes:
    """Read the answer before to its end, then ask again on the same connection."""
    async with asyncio.timeout(5):
        await connection[0].readuntil(b"healthy.\n")
    return await answer(connection)


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take three connections of an address, five of all."""
    monkeypatch.setattr("kvwatch.connections.MOST_OF_ONE_ADDRESS", 3)
    monkeypatch.setattr("kvwatch.connections.MOST_CONNECTIONS", 5)


@pytest.mark.usefixtures("_few")
async def test_connections_are_counted(connect: Connect) -> None:
    """One address has so many, all together so many; one that ends makes room, and none is disturbed."""
    async with running(config("")) as daemon:
        mine = [await connect(daemon) for _ in range(3)]
        assert [await answer(one) for one in mine] == [b"HTTP/1.1 200 OK"] * 3
        assert await answer(await connect(daemon)) == b""
        others = [await connect(daemon, "127.0.0.2") for _ in range(2)]
        assert [await answer(one) for one in others] == [b"HTTP/1.1 200 OK"] * 2
        assert await answer(await connect(daemon, "127.0.0.3")) == b""
        assert [await again(one) for one in mine] == [b"HTTP/1.1 200 OK"] * 3
        others[0][1].close()
        await asyncio.sleep(0.05)
        assert await answer(await connect(daemon, "127.0.0.3")) == b"HTTP/1.1 200 OK"


@pytest.mark.usefixtures("_few")
async def test_handshakes_count_and_end(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that connects and says nothing has its place until the handshake's time is up."""
    monkeypatch.setattr("kvwatch.connections.HANDSHAKE_SECONDS", 0.5)
    authority = Authority(tmp_path)
    authority.issue("server")
    file = tmp_path / "web.yml"
    file.write_text("tls_server_config: {cert_file: server.pem, key_file: server.key}\n")
    async with serving(file) as daemon:
        silent = [await connect(daemon) for _ in range(3)]
        await asyncio.sleep(0.05)
        before = time.monotonic()
        assert await (await connect(daemon))[0].read() == b""
        assert time.monotonic() - before < 0.3
        async with asyncio.timeout(3):
            for reader, _ in silent:
                assert await reader.read() == b""
        url = f"{daemon.url}/-/healthy"
        assert (await get(url, context=authority.context())).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-A: "], ids=["silent", "half"])
async def test_who_sends_no_whole_request_is_hung_up_on(
    connect: Connect, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether nothing comes at all or a header without end, a byte at a time."""
    monkeypatch.setattr("kvwatch.server._IDLE_SECONDS", 0.3)
    async with running(config("")) as daemon:
        reader, writer = await connect(daemon)
        writer.write(sent)
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(3):
                while not reader.at_eof():
                    if sent:
                        writer.write(b"a")
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1), 0.02)
        assert 0.2 < time.monotonic() - started < 2


async def test_a_reader_that_stops_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not keep its pages in memory; others are answered meanwhile."""
    monkeypatch.setattr("kvwatch.connections.STALL_SECONDS", 0.5)
    async with running(config("")) as daemon:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)  # noqa: FBT003
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, address(daemon))
        page = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
        # Each page waits for the one before it: only what fits the kernel's buffers is taken.
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                await loop.sock_sendall(connection, page * 10)
                await asyncio.sleep(0)
        before = time.monotonic()
        assert (await daemon.client.get(f"{daemon.url}/-/healthy")).status_code == 200
        assert time.monotonic() - before < 0.3
        async with asyncio.timeout(5):
            while is_open(daemon, connection):  # noqa: ASYNC110 - it asks the kernel
                await asyncio.sleep(0.05)
        connection.close()


def is_open(daemon: Running, connection: socket.socket) -> bool:
    """Tell whether the daemon has a connection with this one's address still."""
    own, mine = f":{connection.getsockname()[1]:04X}", f":{address(daemon)[1]:04X}"
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()]
    established = "01"
    return any(row[1].endswith(mine) and row[2].endswith(own) and row[3] == established for row in rows[1:])


LIMITS = {
    "a long line": (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
    "a long header": (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 10_000 + b"\r\n\r\n", b"400"),
    "many headers": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-A: b\r\n" * 100 + b"\r\n", b"400"),
    "another method": (b"DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"405"),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_limits_of_a_request(connect: Connect, name: str) -> None:
    """Refused with the status of the mistake."""
    request, status = LIMITS[name]
    async with running(config("")) as daemon:
        assert (await answer(await connect(daemon), request)).split()[1] == status


async def test_a_body_is_never_kept(connect: Connect) -> None:
    """No page takes one: the answer comes before it, and the connection ends while it still comes."""
    async with running(config("")) as daemon:
        connection = await connect(daemon)
        head = b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n"
        assert await answer(connection, head) == b"HTTP/1.1 405 Method Not Allowed"
        sent = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(5):
                while not connection[1].is_closing():
                    connection[1].write(b"x" * 65536)
                    await connection[1].drain()
                    sent += 65536
                    await asyncio.sleep(0.02)
        assert 0 < sent < 20_000_000


@pytest.fixture
def _out_of_descriptors() -> Iterator[None]:
    """Leave this process a few descriptors only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_out_of_descriptors")
async def test_it_accepts_again_when_descriptors_are_free(caplog: pytest.LogCaptureFixture) -> None:
    """Without a descriptor for it, a connection waits; one line says so."""
    async with running(config("")) as daemon:
        client = socket.socket()
        client.setblocking(False)  # noqa: FBT003
        await asyncio.sleep(0.3)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        some_more = max(map(int, os.listdir("/proc/self/fd"))) + 4  # noqa: PTH208
        resource.setrlimit(resource.RLIMIT_NOFILE, (some_more, hard))
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, address(daemon))
        await loop.sock_sendall(client, b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await loop.sock_recv(client, 1)
        for descriptor in taken:
            os.close(descriptor)
        async with asyncio.timeout(3):
            assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 200")
        client.close()
    said = [record.getMessage() for record in caplog.records if "cannot accept" in record.getMessage()]
    assert said == ["cannot accept connections: Too many open files"]
