"""NVML behind a deadline: one child process asks the driver, and is replaced when it does not answer.

What is decided here, and why:

- A poll returns at its deadline with what was read until then. A GPU that was read stays read; the one
  that was being asked, and those behind it, are `timeout`.
- A child that has said nothing for half a deadline when the deadline comes is hung: it is left behind,
  killed a little later, and never waited for. One that still speaks is only slow: it may finish, and the
  next poll waits.
- Until the driver answers for the first time (imports, nvmlInit, first contact with each GPU, which takes
  seconds without persistence mode) a child may be silent for `start_seconds`: killed at every deadline it
  would never come up. Polls in the meantime return `timeout` at their deadlines.
- A GPU that hung, or crashed the library, is left alone for a while and then asked last, so that the
  others are read in every poll. It is not asked at all while a child that it caught still exists.
- A child in an uninterruptible call survives SIGKILL. At most `max_abandoned` such children may exist;
  then none is started until one ends.
- The library is never unloaded from a process: where it is missing or does not match the driver, a new
  child is tried at growing intervals, so that an installed or upgraded driver is found.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.readings import Reason, SourceError
from kvwatch.sources.nvml_fleet import KnownDevice, PollAnswer, assemble
from kvwatch.sources.nvml_process import Child, child_command, wait_for_end
from kvwatch.sources.nvml_wire import DriverAnswer, Failure, GpuAnswer, Line, read_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvwatch.readings import NvmlReading

NEW_LIBRARY_CODES = (12, 18)
"""Library not found, library and driver differ: only another process can find that it was put right."""
CLOSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Growing delays: none after the first failure, then doubling up to a limit."""

    first_seconds: float = 5.0
    limit_seconds: float = 60.0

    def delay_seconds(self, failures: int) -> float:
        """Return how long to wait after that many failures in a row."""
        if failures <= 1:
            return 0.0
        return min(self.limit_seconds, self.first_seconds * 2.0 ** min(failures - 2, 30))


@dataclass(slots=True, kw_only=True)
class _Quarantine:
    """A GPU that hung."""

    failures: int
    until: float
    child: Child
    failure: Failure


@dataclass(slots=True, kw_only=True)
class _Poll:
    """What one poll has brought so far."""

    number: int
    driver: DriverAnswer | None = None
    gpus: list[GpuAnswer] = field(default_factory=list)
    unread: Failure | None = None
    unread_by_index: dict[int, Failure] = field(default_factory=dict)
    ended: bool = False

    def add(self, line: Line) -> None:
        self.driver = line.driver or self.driver
        self.ended |= line.end
        if line.gpu:
            self.gpus.append(line.gpu)


class NvmlSource:
    """All GPUs of this machine, polled by one task of one event loop.

    `command` starts another child than the real one, `clock` times back-off and durations, `send_signal`
    delivers signals to children.
    """

    def __init__(
        self,
        *,
        deadline_seconds: float,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_abandoned: int = 2,
        start_seconds: float = 15.0,
        backoff: Backoff | None = None,
        send_signal: Callable[[int, int], None] = os.kill,
    ) -> None:
        self._deadline_seconds = deadline_seconds
        self._command = tuple(command or child_command())
        self._env = env
        self._clock = clock
        self._max_abandoned = max_abandoned
        self._start_seconds = start_seconds
        self._backoff = backoff or Backoff()
        self._send_signal = send_signal
        self._child: Child | None = None
        self._left: list[Child] = []
        self._quarantine: dict[int, _Quarantine] = {}
        self._known: tuple[KnownDevice, ...] = ()
        self._number = 0
        self._restarts = 0
        self._restart_at = 0.0
        self._restart_failure: Failure | None = None
        self._replacements = 0
        self._replace_at = 0.0
        self._closed = False

    @property
    def child_pids(self) -> tuple[int, ...]:
        """Return the process IDs of the living child and of those left behind."""
        return tuple(child.pid for child in (self._child, *self._left) if child)

    async def poll(self) -> NvmlReading:
        """Ask the driver once; returns by the deadline, with a reason for all that is missing."""
        started = self._clock()
        self._left = [child for child in self._left if not child.ended()]
        self._number += 1
        poll = _Poll(number=self._number)
        await self._ask(poll)
        if poll.driver is None:
            failure = poll.unread or Failure(reason=Reason.INTERNAL_ERROR, detail="no answer")
            poll.driver = DriverAnswer(failure=failure)
        reading, self._known = assemble(
            PollAnswer(
                driver=poll.driver,
                gpus=tuple(poll.gpus),
                unread=poll.unread,
                unread_by_index=poll.unread_by_index,
                duration_seconds=self._clock() - started,
            ),
            self._known,
        )
        return reading

    async def close(self) -> None:
        """End the child: in order where it listens, else by SIGKILL; where that fails too, leave it."""
        self._closed = True
        child, self._child = self._child, None
        children = [*self._left, *([child] if child else [])]
        if child and child.pending is None:
            child.close_input()
            await wait_for_end([child], CLOSE_SECONDS)
        for one in children:
            one.kill()
        await wait_for_end(children, CLOSE_SECONDS)
        self._left = [one for one in children if not one.ended()]
        await asyncio.sleep(0)  # transports close in the next round of the loop

    async def _ask(self, poll: _Poll) -> None:
        if self._closed:
            poll.unread = Failure(reason=Reason.NOT_ENABLED, detail="closed")
            return
        child = self._child
        if child and child.ended():
            self._give_up(child, Failure(reason=Reason.UNREACHABLE, detail="the NVML child was ended"), poll)
        elif child and child.pending is not None and self._is_hung(child):
            self._give_up(child, self._silence(child), poll)
        try:
            async with asyncio.timeout(self._deadline_seconds):
                self._child = child = self._child or await self._start()
                while child.pending is not None:
                    self._take(child, await child.line(), None)
                last, skip = self._order(poll)
                child.ask(poll.number, last, skip)
                while not poll.ended:
                    self._take(child, await child.line(), poll)
        except TimeoutError:
            self._on_deadline(poll)
        except SourceError as error:
            poll.unread = Failure(reason=error.reason, detail=error.detail)
            if self._child:
                self._give_up(self._child, poll.unread, poll)
        else:
            self._on_end(poll)

    async def _start(self) -> Child:
        if len(self._left) >= self._max_abandoned:
            pids = ", ".join(str(child.pid) for child in self._left)
            raise SourceError(Reason.TIMEOUT, f"children that cannot be killed hang in the driver: {pids}")
        wait = self._restart_at - self._clock()
        if self._restart_failure and wait > 0:
            detail = f"{self._restart_failure.detail} (next start in {wait:.0f} s)"
            raise SourceError(self._restart_failure.reason, detail)
        try:
            child = await Child.start(self._command, self._env, self._send_signal)
        except SourceError as error:
            self._count_restart(Failure(reason=error.reason, detail=error.detail))
            raise
        if self._closed:
            child.kill()
            raise SourceError(Reason.NOT_ENABLED, "closed while it started")
        return child

    def _take(self, child: Child, text: bytes, poll: _Poll | None) -> None:
        """Follow what the child is at, and keep its answer if it belongs to this poll."""
        line = read_line(text)
        child.touching = line.touching
        if line.driver:
            child.starting = False
        if line.gpu:
            self._quarantine.pop(line.gpu.index, None)
        if line.end and line.poll == child.pending:
            child.pending = None
        if poll and line.poll == poll.number:
            poll.add(line)

    def _order(self, poll: _Poll) -> tuple[list[int], list[int]]:
        """Return which GPUs to ask last, and which not at all; the latter are noted in the poll."""
        last, skip = [], []
        for index, entry in self._quarantine.items():
            wait = entry.until - self._clock()
            if wait > 0 or entry.child in self._left:
                skip.append(index)
                detail = f"{entry.failure.detail} (left alone for {max(0.0, wait):.0f} s more)"
                poll.unread_by_index[index] = Failure(reason=entry.failure.reason, detail=detail)
            else:
                last.append(index)
        return last, skip

    def _on_end(self, poll: _Poll) -> None:
        self._restarts = 0
        self._restart_failure = None
        if self._child and poll.driver and poll.driver.code in NEW_LIBRARY_CODES:
            if self._clock() >= self._replace_at:
                self._replacements += 1
                self._replace_at = self._clock() + self._backoff.delay_seconds(self._replacements + 1)
                self._leave(self._child)
        else:
            self._replacements = 0

    def _on_deadline(self, poll: _Poll) -> None:
        child = self._child
        if child is None:
            poll.unread = Failure(reason=Reason.TIMEOUT, detail="the NVML child did not start")
            return
        poll.unread = self._silence(child)
        if self._is_hung(child):
            self._give_up(child, poll.unread, poll)

    def _is_hung(self, child: Child) -> bool:
        return child.silent_seconds >= (self._start_seconds if child.starting else self._deadline_seconds / 2)

    def _silence(self, child: Child) -> Failure:
        what = "the driver" if child.touching is None else f"GPU {child.touching}"
        when = " at the start" if child.starting else ""
        detail = f"{what} has not answered{when} for {child.silent_seconds:.1f} s"
        return Failure(reason=Reason.TIMEOUT, detail=f"{detail}; {child.stderr_tail}".rstrip("; "))

    def _give_up(self, child: Child, failure: Failure, poll: _Poll) -> None:
        """Leave a child that hung, crashed or talks nonsense, and the GPU alone that it was asking."""
        index = child.touching
        if index is None:
            driver = poll.driver or DriverAnswer()
            poll.driver = replace(driver, failure=driver.failure or failure)
        else:
            before = self._quarantine.get(index)
            failures = before.failures + 1 if before else 1
            self._quarantine[index] = _Quarantine(
                failures=failures,
                until=self._clock() + self._backoff.delay_seconds(failures + 1),
                child=child,
                failure=failure,
            )
            poll.unread_by_index[index] = failure
            if poll.unread:
                detail = f"not read, because of GPU {index}: {failure.detail}"
                poll.unread = Failure(reason=failure.reason, detail=detail)
        self._count_restart(failure)
        self._leave(child)

    def _count_restart(self, failure: Failure) -> None:
        self._restarts += 1
        self._restart_at = self._clock() + self._backoff.delay_seconds(self._restarts)
        self._restart_failure = failure

    def _leave(self, child: Child) -> None:
        child.leave()
        self._child = None
        if not child.ended():
            self._left.append(child)
