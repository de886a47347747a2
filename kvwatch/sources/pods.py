"""What Kubernetes calls the containers of this node: asked beside the polls, never in their way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.pod_list import read_pod_list
from kvwatch.readings import Outcome, Reason, Source, SourceError
from kvwatch.sources.model_path import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvwatch.snapshot import PodState, ProcessState
    from kvwatch.sources.contract import PageSource
    from kvwatch.sources.threads import BlockingCalls

PODS = "pods"
"""The target of the outcome."""

_PATH = "/pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """The kubelet of this node: https://NODE:10250 with a token, or its read-only port."""

    url: str
    bearer_token_file: Path | None = None
    ca_file: Path | None = None


class PodNames:
    """Names of this node's containers, read again every `refresh_seconds`.

    A container keeps its name as long as it lives, so names stay while the source is down; its outcome says
    that those of newer containers are missing.

    Args:
        origin: a kubelet, or a file that holds what one would answer.
        pages: how the kubelet is asked.
        blocking: how the file is read.
        deadline_seconds: for one attempt.
        refresh_seconds: from attempt to attempt.
        max_bytes: of the list.
        clock: monotonic seconds.

    """

    def __init__(
        self,
        origin: Kubelet | Path,
        *,
        pages: PageSource,
        blocking: BlockingCalls,
        deadline_seconds: float,
        refresh_seconds: float = 30.0,
        max_bytes: int = 64 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._origin = origin
        self._pages = pages
        self._blocking = blocking
        self._deadline_seconds = deadline_seconds
        self._refresh_seconds = refresh_seconds
        self._max_bytes = max_bytes
        self._clock = clock
        self._names: dict[str, PodState] = {}
        self._outcome: Outcome | None = None
        self._asked_at: float | None = None
        self._attempt: asyncio.Task[None] | None = None

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How the last attempt went; empty until one has ended."""
        return () if self._outcome is None else (self._outcome,)

    def named(self, processes: Sequence[ProcessState]) -> tuple[PodState, ...]:
        """Return what is known of the containers that these processes are in."""
        containers = sorted({process.container for process in processes if process.container})
        return tuple(self._names[container] for container in containers if container in self._names)

    def refresh(self) -> None:
        """Begin an attempt if one is due; never wait for it."""
        now = self._clock()
        rested = self._asked_at is None or now - self._asked_at >= self._refresh_seconds
        if rested and (self._attempt is None or self._attempt.done()):
            self._asked_at = now
            self._attempt = asyncio.create_task(self._try())

    async def settled(self) -> None:
        """Wait for the attempt that is under way."""
        if self._attempt is not None:
            await self._attempt

    async def close(self) -> None:
        """Give up the attempt that is under way."""
        if self._attempt is not None:
            self._attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._attempt

    async def _try(self) -> None:
        started = self._clock()
        reason: Reason | None = None
        detail = ""
        try:
            self._names = await self._read()
        except SourceError as error:
            reason, detail = error.reason, error.detail
        except TimeoutError as error:
            reason, detail = Reason.TIMEOUT, str(error) or "reading the file takes too long"
        self._outcome = Outcome(
            source=Source.PROCFS,
            target=PODS,
            reason=reason,
            detail=detail,
            duration_seconds=self._clock() - started,
        )

    async def _read(self) -> dict[str, PodState]:
        """Read the names; raise SourceError or TimeoutError."""
        origin = self._origin
        if not isinstance(origin, Kubelet):
            return await self._blocking.run(
                lambda: read_pod_list(self._file(origin)), deadline_seconds=self._deadline_seconds
            )
        page = await self._pages.fetch(
            origin.url,
            _PATH,
            deadline_seconds=self._deadline_seconds,
            bearer_token_file=origin.bearer_token_file,
            ca_file=origin.ca_file,
        )
        if page.body is None:
            raise SourceError(page.reason or Reason.PARSE_ERROR, page.detail)
        return read_pod_list(page.body)

    def _file(self, path: Path) -> str:
        try:
            with open_regular(path) as stream:
                if os.fstat(stream.fileno()).st_size > self._max_bytes:
                    raise SourceError(Reason.TOO_LARGE, f"{path} has more than {self._max_bytes} bytes")
                return stream.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(Reason.PARSE_ERROR, f"{path} is not UTF-8: {error.reason}") from None
