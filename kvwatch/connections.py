"""Connections of the HTTP server: how many, whose, and how long a slow one is waited for.

aiohttp's own sites take any number of connections, and a reader that stops in the middle of a page for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 512
MOST_OF_ONE_ADDRESS = 128
HANDSHAKE_SECONDS = 10.0
STALL_SECONDS = 30.0
"""How long a peer may take nothing of what waits for it."""
_WRITE_BUFFER_BYTES = 64 << 10
_BACKLOG = 128
_OUT_OF_DESCRIPTORS_SECONDS = 0.2
_OLD_POLICY_SECONDS = 1.0


class Policy(Protocol):
    """What a connection must bring: an encryption, and a certificate if one is asked for."""

    @property
    def context(self) -> ssl.SSLContext: ...  # noqa: D102 - see the class

    def admits(self, certificate: dict[str, Any] | None) -> bool: ...  # noqa: D102


class Connections:
    """Accept connections and hand them to a protocol, each under the policy of the moment it was made.

    Args:
        protocol: makes the protocol of one connection.
        policy: what a connection that is made now must bring; None: plain HTTP.

    """

    def __init__(self, protocol: Callable[[], asyncio.Protocol], policy: Callable[[], Policy | None]) -> None:
        self._protocol = protocol
        self._policy = policy
        self._open: dict[_Guard, Policy | None] = {}
        self._of_address: Counter[str] = Counter()
        self._handshakes: set[asyncio.Task[None]] = set()

    async def accept(self, listener: socket.socket) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        is_out = False
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except ConnectionError:
                continue
            except OSError as error:
                # Out of descriptors or of memory: connections that end will make room.
                if not is_out:
                    log.warning("cannot accept connections: %s", error.strerror)
                is_out = True
                await asyncio.sleep(_OUT_OF_DESCRIPTORS_SECONDS)
                continue
            is_out = False
            peer = str(address[0])
            if self._of_address.total() >= MOST_CONNECTIONS or self._of_address[peer] >= MOST_OF_ONE_ADDRESS:
                log.debug("too many connections; one from %s is closed", peer)
                connection.close()
                continue
            self._of_address[peer] += 1
            task = asyncio.create_task(self._take(connection, peer))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def close_outdated(self) -> None:
        """Close what was made under a policy that is no longer in force, after a second for its requests."""
        current = self._policy()
        loop = asyncio.get_running_loop()
        for guard, policy in self._open.items():
            if policy is not current:
                loop.call_later(_OLD_POLICY_SECONDS, guard.close)

    def close(self) -> None:
        """Give up the connections whose handshake has not ended."""
        for task in self._handshakes:
            task.cancel()

    async def _take(self, connection: socket.socket, peer: str) -> None:
        policy = self._policy()
        guard = _Guard(self._protocol(), policy, lambda: self._gone(guard, peer))
        self._open[guard] = policy
        # What the peer's kernel does not take for so long is lost, and the connection with it.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALL_SECONDS * 1000))
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: guard,
                connection,
                ssl=None if policy is None else policy.context,
                ssl_handshake_timeout=None if policy is None else HANDSHAKE_SECONDS,
            )
        except OSError as error:  # ssl.SSLError is one
            log.debug("no connection with %s: %s", peer, error)
        finally:
            if not guard.began:
                self._gone(guard, peer)

    def _gone(self, guard: _Guard, peer: str) -> None:
        if self._open.pop(guard, _MISSING) is _MISSING:
            return
        self._of_address[peer] -= 1
        if not self._of_address[peer]:
            del self._of_address[peer]


_MISSING: Policy = cast("Policy", object())


class _Guard(asyncio.Protocol):
    """A protocol before the protocol: refuses certificates with other names, ends a reader that stopped."""

    def __init__(self, inner: asyncio.Protocol, policy: Policy | None, on_lost: Callable[[], None]) -> None:
        self._inner = inner
        self._policy = policy
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._is_admitted = self._is_outdated = False
        self._stalled: asyncio.TimerHandle | None = None
        self.began = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.began = True
        self._transport = cast("asyncio.Transport", transport)
        if self._is_outdated:
            self._transport.abort()
            return
        if self._policy is not None and not self._policy.admits(transport.get_extra_info("peercert")):
            log.debug("a client's certificate carries none of the allowed names")
            self._transport.abort()
            return
        self._is_admitted = True
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._inner.connection_made(transport)

    def close(self) -> None:
        """Close the connection after what was written to it, or as soon as its handshake has ended."""
        self._is_outdated = True
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._is_admitted:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._is_admitted else None

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._stalled = asyncio.get_running_loop().call_later(STALL_SECONDS, self._transport.abort)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._let_go()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()
        with contextlib.ExitStack() as stack:
            stack.callback(self._on_lost)
            if self._is_admitted:
                self._inner.connection_lost(exc)

    def _let_go(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


async def bind(host: str | None, port: int) -> list[socket.socket]:
    """Return listening sockets, of all addresses where `host` is None. Raises OSError."""
    # asyncio resolves and binds; it does not serve them, for its own accepting has no limits.
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    listeners = [listener.dup() for listener in server.sockets]
    server.close()
    for listener in listeners:
        listener.setblocking(False)  # noqa: FBT003 - it takes no name
        listener.listen(_BACKLOG)
    return listeners
