"""What the poller asks of the outside worlds, so that a test can give it others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvwatch.plan import GgufModel, Model
    from kvwatch.readings import NvmlReading, Page, ProcessTable
    from kvwatch.sources.local import LocalSource
    from kvwatch.sources.procfs import ServerAddress
    from kvwatch.sources.threads import BlockingCalls


class DeviceSource(Protocol):
    """Where devices come from: NvmlSource, or what stands in for it."""

    async def poll(self) -> NvmlReading:
        """Return the devices; never raise for a fault of the driver."""


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
