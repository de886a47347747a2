"""The NVML child as a process: started, asked, listened to, and left behind when it does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from kvwatch.readings import Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

OUTPUT_LIMIT_BYTES = 1 << 20
"""Of one poll: sixteen GPUs with a thousand processes each need less."""
STDERR_TAIL_BYTES = 2000
GRACE_SECONDS = 0.5
"""Between closing the input and SIGKILL: a child that was only slow can still let the driver go in order."""
EXIT_STATUS_SECONDS = 0.1
START_REAP_SECONDS = 0.05


def child_command(module: str = "pynvml") -> tuple[str, ...]:
    """Return the command of a child that asks `module`, by path: it needs no installed package."""
    program = str(Path(__file__).with_name("nvml_child.py"))
    return (sys.executable, "-P", program, "--module", module)


class Child:
    """One child process. Never waits for its end: in a wedged driver even SIGKILL may have no effect.

    Pipes and `waitpid` are used directly, since asyncio's own subprocesses need a watcher that waits.
    """

    def __init__(self, process: subprocess.Popen[bytes], send_signal: Callable[[int, int], None]) -> None:
        self._process = process
        self._send_signal = send_signal
        self._lines = _Lines()
        self._stderr = _Tail()
        self._transports: list[asyncio.ReadTransport] = []
        self._kill_timer: asyncio.TimerHandle | None = None
        self.pending: int | None = None
        """The poll that was asked and has not ended."""
        self.starting = True
        """Until the driver answers for the first time: imports, initialisation."""
        self.touching: int | None = None
        """The GPU that is being asked."""

    @classmethod
    async def start(
        cls, command: Sequence[str], env: Mapping[str, str] | None, send_signal: Callable[[int, int], None]
    ) -> Child:
        """Start a child in a session of its own, with its three pipes and no other descriptor.

        Raises SourceError where the system does not give one.
        """
        try:
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - returns once it runs; our own command
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(Reason.INTERNAL_ERROR, f"cannot start the NVML child: {error}") from error
        child = cls(process, send_signal)
        stdin, stdout, stderr = (
            cast("BinaryIO", pipe) for pipe in (process.stdin, process.stdout, process.stderr)
        )
        os.set_blocking(stdin.fileno(), False)
        loop = asyncio.get_running_loop()
        try:
            for protocol, pipe in ((child._lines, stdout), (child._stderr, stderr)):
                transport, _ = await loop.connect_read_pipe(lambda protocol=protocol: protocol, pipe)  # type: ignore[misc]
                child._transports.append(transport)
        except BaseException:  # cancelled by the deadline
            child.kill()
            stdout.close()  # perhaps no transport's yet
            stderr.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(START_REAP_SECONDS)  # it cannot be in the driver yet
            raise
        return child

    @property
    def pid(self) -> int:
        """Return the process ID."""
        return self._process.pid

    @property
    def silent_seconds(self) -> float:
        """Return for how long it has said nothing."""
        return asyncio.get_running_loop().time() - self._lines.heard_at

    @property
    def stderr_tail(self) -> str:
        """Return the last it wrote to its standard error."""
        return self._stderr.text

    def ask(self, poll: int, last: Collection[int], skip: Collection[int]) -> None:
        """Send one request; raises SourceError where nobody takes it."""
        request = json.dumps({"poll": poll, "last": sorted(last), "skip": sorted(skip)}).encode() + b"\n"
        try:
            os.write(cast("BinaryIO", self._process.stdin).fileno(), request)
        except OSError as error:
            raise SourceError(Reason.UNREACHABLE, self._with_stderr(f"NVML child: {error}")) from None
        self.pending = poll
        self._lines.start()

    async def line(self) -> bytes:
        """Wait for its next line; raises SourceError when it ended or says too much."""
        line = await self._lines.next()
        if line is not None:
            return line
        if self._lines.flooded:
            detail = f"the NVML child wrote more than {OUTPUT_LIMIT_BYTES} bytes for one poll"
            raise SourceError(Reason.TOO_LARGE, detail)
        await wait_for_end([self], EXIT_STATUS_SECONDS)
        status = self._process.poll()
        if status is None:
            raise SourceError(Reason.INTERNAL_ERROR, "the NVML child closed its output")
        # Killed by a signal: a crash in the driver's library, or the out-of-memory killer.
        reason = Reason.UNREACHABLE if status < 0 else Reason.INTERNAL_ERROR
        how = f"signal {-status}" if status < 0 else f"status {status}"
        raise SourceError(reason, self._with_stderr(f"the NVML child ended with {how}"))

    def _with_stderr(self, text: str) -> str:
        return f"{text}: {self.stderr_tail}" if self.stderr_tail else text

    def ended(self) -> bool:
        """Say whether it is gone, and reap it if so."""
        return self._process.poll() is not None

    def close_input(self) -> None:
        """Ask it to end; one that is not stuck lets the driver go first."""
        cast("BinaryIO", self._process.stdin).close()

    def leave(self) -> None:
        """Let it go without waiting: no input, no output, SIGKILL a little later."""
        self.close_input()
        self._close_output()
        if self._kill_timer is None:
            self._kill_timer = asyncio.get_running_loop().call_later(GRACE_SECONDS, self.kill)

    def kill(self) -> None:
        """End it now, as far as that is possible."""
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self.close_input()
        self._close_output()
        if not self.ended():
            self._send_signal(self.pid, signal.SIGKILL)

    def _close_output(self) -> None:
        for transport in self._transports:
            transport.close()


async def wait_for_end(children: Collection[Child], seconds: float) -> bool:
    """Wait until all are gone, but no longer than that; say whether they are."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not all(child.ended() for child in children):
        if loop.time() >= until:
            return False
        await asyncio.sleep(0.005)
    return True


class _Lines(asyncio.Protocol):
    """Splits output into lines, remembers when it came, and stops reading at the limit."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: deque[bytes] = deque()
        self._part = bytearray()
        self._received = 0
        self._closed = False
        self._transport: asyncio.ReadTransport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.flooded = False
        self.heard_at = self._loop.time()

    def start(self) -> None:
        """Begin a new poll: its allowance and its silence count from now."""
        self._received = 0
        self.heard_at = self._loop.time()

    async def next(self) -> bytes | None:
        """Wait for a line; None at the end."""
        while not self._ready:
            if self._closed or self.flooded:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._ready.popleft()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self._received += len(data)
        if self._received > OUTPUT_LIMIT_BYTES and self._transport is not None:
            self.flooded = True
            self._transport.pause_reading()
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._part) + lines[0]
            self._part.clear()
            self._ready.extend(lines)
        self._part += rest
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Tail(asyncio.Protocol):
    """Keeps the end of what was written."""

    def __init__(self) -> None:
        self._kept = b""

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", "replace").strip()

    def data_received(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-STDERR_TAIL_BYTES:]
