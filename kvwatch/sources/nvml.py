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
- The library is never unloaded from a process: where it is missing, does not match the driver or fails
  without saying why, a new child is tried at growing intervals, so that an upgraded driver is found.
- An open library keeps the driver's files open, so that no GPU can be reset and no driver unloaded.
  `let_go` ends the child, and none is started until `take_up` or until the time is over.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.readings import Reason, SourceError
from kvwatch.sources.nvml_backoff import Backoff, Quarantine, Restarts
from kvwatch.sources.nvml_fleet import KnownDevice, PollAnswer, assemble
from kvwatch.sources.nvml_process import Child, child_command, wait_for_end
from kvwatch.sources.nvml_reasons import Failure
from kvwatch.sources.nvml_wire import DriverAnswer, GpuAnswer, Line, read_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvwatch.readings import NvmlReading

NEW_LIBRARY_CODES = (12, 18, 999)
"""Library not found, library and driver differ, unknown: another process may find that it was put right."""
CLOSE_SECONDS = 0.5


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
        self._quarantine = Quarantine(self._backoff, clock)
        self._restarts = Restarts(self._backoff, clock)
        self._known: tuple[KnownDevice, ...] = ()
        self._number = 0
        self._let_go_until: float | None = None
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

    def let_go(self, seconds: float) -> None:
        """Leave the driver alone from the next poll on, for so long or until `take_up`."""
        self._let_go_until = self._clock() + seconds

    def take_up(self) -> None:
        """Ask the driver again from the next poll on, every GPU of it: what was wrong may be put right."""
        self._let_go_until = None
        self._restarts.clear()
        self._quarantine.clear()

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
        if self._let_go_until is not None:
            if self._clock() < self._let_go_until:
                poll.unread = await self._release(self._let_go_until - self._clock())
                return
            self.take_up()
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
                last, skip = self._quarantine.order(self._left)
                poll.unread_by_index.update(skip)
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

    async def _release(self, seconds: float) -> Failure:
        """End the child, in order where it listens; say whether the driver is free for the next `seconds`."""
        child = self._child
        if child:
            if child.pending is None:
                child.close_input()
                await wait_for_end([child], self._deadline_seconds)
            self._leave(child)
        if self._left:
            detail = f"let go, but still held by children that have not ended: {self._pids_left()}"
            return Failure(reason=Reason.TIMEOUT, detail=detail)
        detail = f"let go; SIGUSR2 takes it up again, else it is in {seconds:.0f} s"
        return Failure(reason=Reason.NOT_ENABLED, detail=detail)

    async def _start(self) -> Child:
        if len(self._left) >= self._max_abandoned:
            detail = f"children that cannot be killed hang in the driver: {self._pids_left()}"
            raise SourceError(Reason.TIMEOUT, detail)
        refusal = self._restarts.refusal()
        if refusal:
            raise SourceError(refusal.reason, refusal.detail)
        try:
            child = await Child.start(self._command, self._env, self._send_signal)
        except SourceError as error:
            self._restarts.add(Failure(reason=error.reason, detail=error.detail))
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
            self._quarantine.heal(line.gpu.index)
        if line.end and line.poll == child.pending:
            child.pending = None
        if poll and line.poll == poll.number:
            poll.add(line)

    def _on_end(self, poll: _Poll) -> None:
        self._restarts.clear()
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
            self._quarantine.add(index, child, failure)
            poll.unread_by_index[index] = failure
            if poll.unread:
                detail = f"not read, because of GPU {index}: {failure.detail}"
                poll.unread = Failure(reason=failure.reason, detail=detail)
        self._restarts.add(failure)
        self._leave(child)

    def _pids_left(self) -> str:
        return ", ".join(str(child.pid) for child in self._left)

    def _leave(self, child: Child) -> None:
        child.leave()
        self._child = None
        if not child.ended():
            self._left.append(child)
