"""What this machine knows of the watched servers: processes, command lines, model files. Blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.readings import ProcessTable, SourceError
from kvwatch.sources.launches import read_launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.flags.launch import Launch
    from kvwatch.plan import GgufModel, Model
    from kvwatch.readings import EngineReading
    from kvwatch.sources.contract import ModelSource, ProcessSource
    from kvwatch.sources.procfs import ServerAddress
    from kvwatch.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReading:
    """What was found, by server name; a server on another machine has none of it."""

    processes: ProcessTable = field(default_factory=ProcessTable)
    launches: Mapping[str, Launch] = field(default_factory=dict)
    models: Mapping[str, Model | GgufModel | SourceError] = field(default_factory=dict)


class LocalSource:
    """Read processes, then the command lines of the servers' listeners, then model files.

    Args:
        processes: None where /proc is not to be read.
        models: reads model files.

    """

    def __init__(self, processes: ProcessSource | None, models: ModelSource) -> None:
        self._processes = processes
        self._models = models
        self._launches: dict[tuple[int, int, str, tuple[int, ...] | None], Launch | None] = {}

    @property
    def private_pid_namespace(self) -> bool | None:
        """Whether kvwatch's PIDs are not the host's; None where unknown."""
        return None if self._processes is None else self._processes.private_pid_namespace

    def read(
        self,
        gpu_pids: Sequence[int],
        addresses: Sequence[ServerAddress],
        targets: Sequence[Target],
        readings: Mapping[str, EngineReading],
    ) -> LocalReading:
        """Return what is known now; expected failures are values."""
        table = ProcessTable() if self._processes is None else self._processes.read(gpu_pids, addresses)
        self._launches = {key: launch for key, launch in self._launches.items() if key[0] in table.processes}
        launches = {
            name: launch
            for name, reading in readings.items()
            if (launch := self._launch(table, table.listeners.get(name, ()), reading)) is not None
        }
        models = {
            target.name: model
            for target in targets
            if (model := self._model(target, readings.get(target.name), table)) is not None
        }
        return LocalReading(processes=table, launches=launches, models=models)

    def _launch(self, table: ProcessTable, listeners: Sequence[int], reading: EngineReading) -> Launch | None:
        """Return the command line of a listener or of what launched it, read once for each process."""
        parents = [table.processes[pid].parent_pid for pid in listeners if pid in table.processes]
        for pid in (*listeners, *parents):
            identity = table.processes.get(pid)
            if identity is None:
                continue
            key = (pid, identity.start_ticks, reading.engine, reading.release)
            if key not in self._launches:
                self._launches[key] = _read_launch(pid, reading)
            if self._launches[key] is not None:
                return self._launches[key]
        return None

    def _model(
        self, target: Target, reading: EngineReading | None, table: ProcessTable
    ) -> Model | GgufModel | SourceError | None:
        """Return the configured model, else the one that the server names, where its files are seen."""
        served = reading.model_path if reading else None
        try:
            if target.model_config is not None:
                return self._models.read(target.model_config)
            return None if served is None else self._models.find(served, table.listeners.get(target.name, ()))
        except SourceError as error:
            return error


def _read_launch(pid: int, reading: EngineReading) -> Launch | None:
    try:
        return read_launch(pid, reading.engine, reading.release)
    except SourceError:
        return None  # the configuration can say what the command line would have
    except ValueError:
        return None  # it is no server's command
