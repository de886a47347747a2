"""What discovery found, between two polls: servers to watch beside the configured ones, ports to ask once."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kvwatch.readings import Outcome, Reason, Source
from kvwatch.sources.discovery.found import DISCOVERY, Found
from kvwatch.sources.threads import BlockingCalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kvwatch.readings import ProcessTable
    from kvwatch.sources.contract import DiscoverySource
    from kvwatch.target import Target
    from kvwatch.visit import Visit

log = logging.getLogger(__name__)


class Finder:
    """The servers that were found by themselves; those of one look are watched from the next poll on.

    Args:
        source: looks; None finds nothing.
        deadline_seconds: of one look. One that takes longer goes on, and until it ends nothing new is found.

    """

    def __init__(self, source: DiscoverySource | None, *, deadline_seconds: float) -> None:
        self._source = source
        self._deadline_seconds = deadline_seconds
        self._calls = BlockingCalls("kvwatch-discovery")
        self._found = Found()
        self._answers: dict[str, Reason | None] = {}
        self._looked = False

    @property
    def targets(self) -> tuple[Target, ...]:
        """The servers that the last look found."""
        return self._found.targets

    async def ask(self, visit: Callable[[Target], Awaitable[Visit]]) -> tuple[tuple[Target, Visit], ...]:
        """Ask the suspects; return those where an engine answered."""
        suspects = self._found.suspects
        made = await asyncio.gather(*(visit(suspect) for suspect in suspects))
        self._answers = {
            suspect.url: None if one.adapter else one.outcome.reason or Reason.NO_ENGINE_SERIES
            for suspect, one in zip(suspects, made, strict=True)
        }
        return tuple(pair for pair in zip(suspects, made, strict=True) if pair[1].adapter is not None)

    async def look(
        self,
        gpu_pids: Sequence[int],
        table: ProcessTable,
        configured: Sequence[Target],
        *,
        private: bool | None,
    ) -> tuple[Outcome, ...]:
        """Look once; what fails costs no server that is known."""
        source, answers = self._source, self._answers
        if source is None:
            return ()
        try:
            found = await self._calls.run(
                lambda: source.read(gpu_pids, table, configured, answers, private=private),
                deadline_seconds=self._deadline_seconds,
            )
        except TimeoutError as error:
            reading = source.reading
            where = "" if reading is None else f": process {reading} does not let go of whoever reads it"
            return self._keep(Reason.TIMEOUT, f"{error or 'a look at all processes takes too long'}{where}")
        except Exception as error:
            log.exception("discovery")
            return self._keep(Reason.INTERNAL_ERROR, repr(error))
        self._tell(found, configured)
        self._found = found
        return () if found.outcome is None else (found.outcome,)

    def forget(self) -> None:
        """Let go of everything: discovery was switched off."""
        self._found, self._answers, self._looked = Found(), {}, False

    def _keep(self, reason: Reason, detail: str) -> tuple[Outcome, ...]:
        """Keep the servers that are known; their pages say by themselves how they are."""
        self._found = Found(targets=self._found.targets)
        return (Outcome(source=Source.PROCFS, target=DISCOVERY, reason=reason, detail=detail),)

    def _tell(self, found: Found, configured: Sequence[Target]) -> None:
        """Write down what came and what went."""
        before = {target.name: target for target in self.targets}
        after = {target.name: target for target in found.targets}
        for name in sorted(after.keys() - before.keys()):
            target = after[name]
            log.info("found server %s: %s, process %s", name, target.engine or "by its page", target.pid)
        for name in sorted(before.keys() - after.keys()):
            log.info("server %s is no longer found", name)
        if not self._looked and not after and not configured:
            detail = found.outcome.detail if found.outcome else ""
            log.info(
                "no server is found so far (%s); it will be when it starts, or name one: --server URL", detail
            )
        self._looked = True
