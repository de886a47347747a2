"""The loop of `kvwatch top`: what comes in, keys, signals and the clock each draw the screen anew. I/O."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from kvwatch.top.feed import Feed, Moment
from kvwatch.top.fields import text
from kvwatch.top.keys import State, press
from kvwatch.top.screen import Screen, screen_of
from kvwatch.top.snapshot_view import view_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kvwatch.top.origins import Answer
    from kvwatch.top.terminal import Terminal

_TICK_SECONDS = 1.0
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_EMPTY_READS = 20
"""So often in a row a terminal is said to have a key and has none: it is gone."""


class Live:
    """The view while it runs.

    Args:
        terminal: to draw on, already open.
        answers: what comes in.
        feed: where it comes from, and how often.

    """

    def __init__(self, terminal: Terminal, answers: AsyncGenerator[Answer, None], feed: Feed) -> None:
        self._terminal = terminal
        self._answers = answers
        self._feed = feed
        self._state = State()
        self._screen = Screen(lines=())
        self._end = asyncio.Event()
        self._signal: int | None = None
        self._empty_reads = 0

    async def run(self) -> int:
        """Run until the reader ends it or a signal does; return the exit status."""
        loop = asyncio.get_running_loop()
        # After curses has been started: its own handlers would draw in the middle of anything.
        for number in _ENDS:
            loop.add_signal_handler(number, self._end_by, number)
        loop.add_signal_handler(signal.SIGWINCH, self._resized)
        loop.add_signal_handler(signal.SIGTSTP, self._suspended)
        loop.add_signal_handler(signal.SIGCONT, self._continued)
        loop.add_reader(sys.stdin.fileno(), self._read_keys)
        tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._tick())]
        end = asyncio.create_task(self._end.wait())
        try:
            self._draw()
            done, _ = await asyncio.wait([*tasks, end], return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(sys.stdin.fileno())
            for task in (*tasks, end):
                task.cancel()
            await asyncio.gather(*tasks, end, return_exceptions=True)
        for task in done:
            task.result()  # raises what ended it, if anything did
        return 0 if self._signal is None else 128 + self._signal

    async def _listen(self) -> None:
        """Take in what comes; an origin that fails is a view that says so, not the end."""
        async with contextlib.aclosing(self._answers) as answers:
            try:
                async for answer in answers:
                    self._take(answer)
                    self._draw()
            except Exception as error:  # noqa: BLE001 - a bug in a source: say so, and show what it was
                self._feed = self._feed.with_failure(_words(error, "polling has ended"), _now())
                self._draw()
        await asyncio.Event().wait()

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, str):
            self._feed = self._feed.with_failure(text(answer), _now())
            return
        try:
            view = view_of(answer)
        except Exception as error:  # noqa: BLE001 - a document of another version
            self._feed = self._feed.with_failure(
                _words(error, "this kvwatch cannot show what answers"), _now()
            )
            return
        self._feed = self._feed.with_view(view, _now())

    async def _tick(self) -> None:
        """Draw at least once a second: ages grow, and what is late becomes stale."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._draw()

    def _draw(self) -> None:
        cells, rows = self._terminal.size()
        self._screen = screen_of(
            self._feed, self._state, _now(), self._terminal.glyphs, cells=cells, rows=rows
        )
        self._terminal.draw(self._screen.lines)

    def _read_keys(self) -> None:
        keys = self._terminal.keys()
        self._empty_reads = 0 if keys else self._empty_reads + 1
        if self._empty_reads > _EMPTY_READS:
            self._end_by(signal.SIGHUP)
            return
        for key in keys:
            if key == "redraw":
                self._terminal.redraw()
                continue
            self._state = press(self._state, key, self._screen)
        if self._state.ended:
            self._end.set()
        elif keys:
            self._draw()

    def _end_by(self, number: int) -> None:
        self._signal = number
        self._end.set()

    def _resized(self) -> None:
        self._terminal.resized()
        self._draw()

    def _suspended(self) -> None:
        """Hand the terminal back and stop; what comes after has been continued."""
        self._terminal.pause()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _continued(self) -> None:
        self._terminal.resume()
        self._draw()


def _words(error: Exception, what: str) -> str:
    return text(f"{what} ({type(error).__name__}: {error})")


def _now() -> Moment:
    return Moment(monotonic=time.monotonic(), unix=time.time())
