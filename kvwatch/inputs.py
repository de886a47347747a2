"""All that one poll read, as the join takes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.custody import Custody
from kvwatch.readings import ProcessTable, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.flags.launch import Launch
    from kvwatch.plan import GgufModel, Model
    from kvwatch.readings import DeviceReading, EngineReading
    from kvwatch.target import Target
    from kvwatch.typical import TypicalLength


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that one poll read. Dictionaries are keyed by server name; a missing engine did not answer."""

    targets: Sequence[Target]
    engines: Mapping[str, EngineReading]
    models: Mapping[str, Model | GgufModel | SourceError]
    """Of servers whose model file is configured or was found."""
    devices: Sequence[DeviceReading] = ()
    processes: ProcessTable = field(default_factory=ProcessTable)
    custody: Custody = field(default_factory=Custody)
    """Whose the processes were, as of the last poll."""
    at: float = 0.0
    """Monotonic seconds of this poll."""
    typical: Mapping[tuple[str, str], TypicalLength] = field(default_factory=dict)
    """(server, rank) -> the typical request."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    launches: Mapping[str, Launch] = field(default_factory=dict)
    awake_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Server -> device -> what it held there when it was last seen awake, in its present life."""
