"""One start of vLLM as its lines come in: several processes, engines and ranks."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from kvwatch.byte_sizes import size
from kvwatch.startup_log.facts import Engine, Failure, Memory, Start
from kvwatch.startup_log.settings import read_settings
from kvwatch.startup_log.vllm_failures import read_failure
from kvwatch.startup_log.vllm_lines import LINES, concurrency

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvwatch.startup_log.unwrap import Entry

_MOST_PROCESSES = 1024
_MEMORY_FIELDS = frozenset(field.name for field in fields(Memory)) - {"name", "graphs_in_activation"}
_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit))\b: *(.*)", re.DOTALL)
_FAILED = re.compile(r"(?:EngineCore|WorkerProc|Engine process|Engine core)\b.*failed|initialization failed")
# What says only that something else failed.
_HOLLOW = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Engine process failed|EngineDead"
    r"|EngineCore encountered an issue|Worker proc .* died"
)
_LONGEST = 400
_DIGITS = 19
_ROUNDING_BYTES = 6 * (1 << 30) // 1000


class Process:
    """What one process of a start has said so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        self.pool: dict[str, Any] = {}
        self.failed = False

    def least(self, name: str, value: float) -> None:
        """Keep the smallest: a planner that prints one line a worker gives all of them the least of it."""
        self.pool[name] = min(value, self.pool.get(name, value))


class VllmStart:
    """Collects one start."""

    def __init__(self, entry: Entry) -> None:
        self.source, self.line, self.moment = entry.source, entry.number, entry.moment
        self.version: str | None = None
        self.front: str | None = None
        self.fronts: set[str] = set()
        self.engine_names: list[tuple[str, str]] = []
        self.settings: dict[str, str] = {}
        self.configuration: dict[str, str] = {}
        self.processes: dict[str, Process] = {}
        self.length: int | None = None
        self.fitted_from: int | None = None
        self.batched_tokens: int | None = None
        self.pinned: int | None = None
        self.profiled_blocks: int | None = None
        self.told_blocks: dict[int, int] = {}
        self.graphs_counted = False
        self.ready = False
        self.failure: Failure | None = None
        self.later: Failure | None = None
        self.vague: Failure | None = None

    def process(self, entry: Entry) -> Process:
        """Return the process that wrote a line."""
        key = entry.process
        if key not in self.processes and len(self.processes) >= _MOST_PROCESSES:
            return Process(entry.name)
        found = self.processes.setdefault(key, Process(entry.name))
        # A worker renames itself once it knows its rank.
        found.name = entry.name or found.name
        return found

    def read(self, entry: Entry) -> bool:
        """Take a line in; say whether it meant anything."""
        process = self.process(entry) if entry.process in self.processes else Process(entry.name)
        known = concurrency(self, process, entry.text, anywhere=entry.level is None)
        for pattern, handler in LINES:
            found = pattern.search(entry.text) if entry.level is None else pattern.match(entry.text)
            if found is not None:
                handler(self, process, found)
                known = True
                break
        if known and not any(one.failed for one in self.processes.values()):
            self.vague = None  # the start went on: that exception did not end it
        known = self._read_failure(entry, process) or known
        if known and len(self.processes) < _MOST_PROCESSES:
            self.processes.setdefault(entry.process, process).name = entry.name or process.name
        return known

    def configure(self, text: str) -> None:
        """Take in the configuration that an engine prints."""
        self.configuration = self.configuration or read_settings(text)

    def _read_failure(self, entry: Entry, process: Process) -> bool:
        if entry.level not in (None, "ERROR", "CRITICAL"):
            return False
        failure = read_failure(entry.text, entry.number)
        if failure is not None:
            if self.ready:
                self.later = self.later or failure
            else:
                self.failure = self.failure or failure
            return True
        if self.ready:
            return False
        if _FAILED.search(entry.text):
            process.failed = True
        found = _EXCEPTION.match(entry.text)
        if found is None:
            return process.failed
        words = f"{found.group(1).rpartition('.')[2]}: {found.group(2)}".rstrip(": .")[:_LONGEST]
        if self.vague is None or _HOLLOW.search(self.vague.text):
            self.vague = Failure(kind="failed", text=words, line=entry.number, numbers={})
        return True

    def finish(self) -> Start:
        """Return what the start said."""
        engines = tuple(
            Engine(name=process.name, **process.pool) for process in self.processes.values() if process.pool
        )
        ranks = _named(
            (process, memory)
            for process, of in self.processes.items()
            if (memory := self._memory(of)) is not None
        )
        memory = self._completed(_deciding(ranks))
        config = self.configuration
        # An engine prints its own data-parallel size as 1; the arguments tell how many engines there are.
        counted = {**config, "data_parallel_size": self.settings.get("data_parallel_size", "1")}
        count = _product(counted, ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"))
        blocks = _least(engine.num_blocks for engine in engines)
        if blocks is None and len(self.told_blocks) == 1 and config.get("data_parallel_size", "1") == "1":
            blocks = next(iter(self.told_blocks.values()))
        length = self.length
        if self.failure is not None and "max_model_len" in self.failure.numbers:
            length = length or int(self.failure.numbers["max_model_len"])
        return Start(
            engine="vllm",
            source=self.source,
            line=self.line,
            moment=self.moment,
            version=self.version,
            model=config.get("model") or self.settings.get("model"),
            ready=self.ready,
            memory=memory,
            ranks=ranks,
            engines=engines,
            expected_ranks=count,
            kv_tokens=_least(engine.kv_tokens for engine in engines),
            num_blocks=blocks,
            profiled_blocks=self.profiled_blocks,
            max_model_len=length,
            max_concurrency=_least(engine.max_concurrency for engine in engines),
            fitted_from=self.fitted_from,
            pinned_bytes=self.pinned if (pin := self._told_pin()) is None else pin,
            settings=self._settings(),
            configuration=config,
            failure=self._failure(memory),
            later_failure=self.later,
        )

    def _failure(self, memory: Memory) -> Failure | None:
        if self.failure is not None and self.failure.kind == "no_kv_memory" and (memory.kv_bytes or 0) < 0:
            missing = -(memory.kv_bytes or 0)
            text = f"the share is {size(missing)} too small before the first block of KV cache"
            return replace(self.failure, text=text, numbers={"missing_bytes": missing})
        if self.failure is not None or self.ready:
            return self.failure
        failed = any(process.failed for process in self.processes.values())
        return self.vague if failed or self.vague is not None else None

    def _told_pin(self) -> int | None:
        text = self.settings.get("kv_cache_memory_bytes", "")
        return int(text) if text.isdecimal() and text.isascii() and len(text) < _DIGITS else None

    def _settings(self) -> dict[str, str]:
        if self.batched_tokens is not None:
            self.settings.setdefault("max_num_batched_tokens", str(self.batched_tokens))
        return self.settings

    def _memory(self, process: Process) -> Memory | None:
        """Return what a process said of its card, completed by what the start's settings say."""
        facts = dict(process.facts)
        if not facts:
            return None
        weights, consumed, peak = (
            facts.get(name) for name in ("weights_bytes", "consumed_bytes", "peak_torch_bytes")
        )
        if consumed is not None and weights is not None:
            facts.setdefault("non_torch_bytes", consumed - weights)
        if peak is not None and weights is not None:
            facts.setdefault("activation_bytes", peak - weights)
        share = _number(self.settings.get("gpu_memory_utilization"))
        if share is not None:
            facts.setdefault("share", share)
        pin = self._told_pin()
        # The CPU backend's variable wins over the option: the printed figure says what was taken.
        if pin is not None and abs(facts.get("kv_bytes", 0) - pin) < _ROUNDING_BYTES:
            facts.update(kv_bytes=pin, kv_bytes_exact=True)
        if not self.graphs_counted:
            facts.pop("graphs_estimated_bytes", None)
        return Memory(
            name=process.name,
            graphs_in_activation=consumed is not None and self.graphs_counted,
            **{name: value for name, value in facts.items() if name in _MEMORY_FIELDS},
        )

    def _completed(self, memory: Memory) -> Memory:
        """Return the memory with what only the reason of the failure, or the arguments, said."""
        numbers = {} if self.failure is None else self.failure.numbers
        known = {name: numbers[name] for name in ("total_bytes", "free_bytes", "share") if name in numbers}
        if self.failure is not None and self.failure.kind == "out_of_memory":
            known.pop("free_bytes", None)  # free when it broke, not when it started
        if "available_bytes" in numbers:
            known["kv_bytes"] = numbers["available_bytes"]
        share = _number(self.settings.get("gpu_memory_utilization"))
        if share is not None:
            known["share"] = share
        missing: dict[str, Any] = {
            name: value for name, value in known.items() if getattr(memory, name) is None
        }
        return replace(memory, **missing)


def _deciding(ranks: Sequence[Memory]) -> Memory:
    """Return the rank with the least memory for the pool, its gaps filled from the others.

    Every rank gets the pool of the smallest one; what only the first rank prints (`info_once`) is like that
    of the others.
    """
    if not ranks:
        return Memory()
    least = min(
        ranks, key=lambda rank: (rank.kv_bytes is None, rank.kv_bytes if rank.kv_bytes is not None else 0)
    )
    filled: dict[str, Any] = {"name": least.name, "graphs_in_activation": least.graphs_in_activation}
    for name in _MEMORY_FIELDS:
        values = [value for rank in (least, *ranks) if (value := getattr(rank, name)) is not None]
        filled[name] = values[0] if values else None
    for name in ("suggested_pin_bytes", "suggested_pin_full_bytes"):
        filled[name] = _least(getattr(rank, name) for rank in ranks)
    filled["kv_bytes_exact"] = least.kv_bytes_exact
    return Memory(**filled)


def _named(ranks: Iterable[tuple[str, Memory]]) -> tuple[Memory, ...]:
    """Return the ranks, those of one name told apart by their pids."""
    found = list(ranks)
    names = Counter(memory.name for _, memory in found)
    return tuple(
        replace(memory, name=f"{memory.name} pid {process}".strip()) if names[memory.name] > 1 else memory
        for process, memory in found
    )


def _least(values: Any) -> Any:
    return min((value for value in values if value is not None), default=None)


def _number(text: str | None) -> float | None:
    try:
        number = math.nan if text is None else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _product(config: dict[str, str], names: Sequence[str]) -> int | None:
    """Return the product of printed counts; None where the first of them is not there."""
    if not config.get(names[0], "").isdecimal():
        return None
    product = 1
    for name in names:
        text = config.get(name, "1")
        product *= int(text) if text.isdecimal() and len(text) < 7 else 1  # noqa: PLR2004 - no count of cards
    return product
