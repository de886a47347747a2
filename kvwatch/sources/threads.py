"""Blocking work beside the event loop, in a thread that can never keep the daemon from ending."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class BlockingCalls:
    """Run one blocking call at a time in a daemon thread, with a deadline.

    `asyncio.to_thread` will not do: asyncio.run waits for its threads, so a call that is stuck in the
    kernel would keep the process from ending. A call that passes its deadline goes on in its thread;
    until it returns, further calls fail at once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[[], T], *, deadline_seconds: float) -> T:
        """Return what `call` returns; raise TimeoutError past the deadline."""
        if self._thread is not None and self._thread.is_alive():
            msg = "an earlier call has not returned"
            raise TimeoutError(msg)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            settle: Callable[[], None]
            try:
                settle = functools.partial(done.set_result, call())
            except BaseException as error:  # noqa: BLE001 - it is raised again in the event loop
                settle = functools.partial(done.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(lambda: None if done.done() else settle())

        self._thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._thread.start()
        async with asyncio.timeout(deadline_seconds):
            result = await done
        # The call is over: only its thread's last instructions may still run.
        self._thread = None
        return result
