"""What the poller asks of the outside worlds, so that a test can give it others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kvwatch.capacity_change import CapacityChange
    from kvwatch.plan import GgufModel, Model
    from kvwatch.readings import NvmlReading, Outcome, Page, ProcessTable, Reason
    from kvwatch.snapshot import HistoryState, PodState, ProcessState
    from kvwatch.sources.discovery.found import Found
    from kvwatch.sources.local import LocalSource
    from kvwatch.sources.procfs import ServerAddress
    from kvwatch.sources.threads import BlockingCalls
    from kvwatch.target import Target


class DeviceSource(Protocol):
    """Where devices come from: NvmlSource, or what stands in for it."""

    async def poll(self) -> NvmlReading:
        """Return the devices; never raise for a fault of the driver."""

    def let_go(self, seconds: float) -> None:
        """Leave the driver alone from the next poll on, for so long or until `take_up`."""

    def take_up(self) -> None:
        """Ask the driver again from the next poll on."""


class ProcessSource(Protocol):
    """Where process identities come from: ProcfsSource."""

    @property
    def private_pid_namespace(self) -> bool | None:
        """Whether kvwatch's PIDs are not the host's; None where unknown."""

    def read(self, gpu_pids: Sequence[int], servers: Sequence[ServerAddress]) -> ProcessTable:
        """Return the processes of interest, their ancestors, and the servers' listeners. Blocks."""


class ModelSource(Protocol):
    """Where model files are read: ModelFiles."""

    def read(self, path: Path) -> Model | GgufModel:
        """Return the model; raise SourceError. Blocks."""

    def find(self, name: str, pids: Sequence[int]) -> Model | GgufModel | None:
        """Return the model that a server's processes call `name`, or None; raise SourceError. Blocks."""


class DiscoverySource(Protocol):
    """Where servers are found that nobody configured: Discovery."""

    @property
    def reading(self) -> int | None:
        """The process that is being read now; it may be what a look that does not end waits for."""

    def read(
        self,
        gpu_pids: Sequence[int],
        table: ProcessTable,
        configured: Sequence[Target],
        answers: Mapping[str, Reason | None],
        *,
        private: bool | None,
    ) -> Found:
        """Return what is found now. Blocks."""


class PodSource(Protocol):
    """Where the names of pods come from: PodNames."""

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How the last attempt went; empty until one has ended."""

    def refresh(self) -> None:
        """Begin an attempt if one is due; never wait for it."""

    async def settled(self) -> None:
        """Wait for the attempt that is under way."""

    def named(self, processes: Sequence[ProcessState]) -> tuple[PodState, ...]:
        """Return what is known of the containers that these processes are in."""


class PageSource(Protocol):
    """Where engine pages come from: Scraper."""

    async def fetch(
        self,
        url: str,
        path: str,
        *,
        deadline_seconds: float,
        bearer_token_file: Path | None,
        ca_file: Path | None,
    ) -> Page:
        """Return the page, or a page that says why there is none."""


class HistoryKeeper(Protocol):
    """What says how the history is: Keeper."""

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How the last attempt to write went; nothing before the first one ended."""

    @property
    def state(self) -> HistoryState | None:
        """What the file came to; None while it cannot be written."""


class ChangeSource(Protocol):
    """What says how capacities changed since the baselines: CapacityWatch."""

    @property
    def changes(self) -> tuple[CapacityChange, ...]:
        """The answers of the last look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The outside worlds; None where one is switched off."""

    devices: DeviceSource | None
    local: LocalSource
    pages: PageSource
    blocking: BlockingCalls
    host_pids: bool = True
    """Whether the devices' PIDs are the host's, so that they mean nothing in a private namespace."""
    page_deadline_seconds: float
    """For all pages of one server together."""
    blocking_deadline_seconds: float
    history: HistoryKeeper | None = None
    changes: ChangeSource | None = None
    discovery: DiscoverySource | None = None
    pods: PodSource | None = None
