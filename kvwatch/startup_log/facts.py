"""What one start of an engine said; None where its log does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of one GPU process of vLLM, or of a llama-server over all its devices; bytes."""

    name: str = ""
    """What the engine calls the process."""
    total_bytes: int | None = None
    """Of the card."""
    free_bytes: int | None = None
    """Of the card when the engine first looked."""
    share: float | None = None
    """`--gpu-memory-utilization`."""
    requested_bytes: int | None = None
    """The share in bytes."""
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    """The peak that profiling saw above the weights; llama.cpp: its compute buffers."""
    non_torch_bytes: int | None = None
    """CUDA context, NCCL, and whatever other processes took of the card while profiling ran."""
    graphs_bytes: int | None = None
    graphs_estimated_bytes: int | None = None
    """What was set aside for CUDA graphs before they were captured."""
    graphs_in_activation: bool = False
    """The printed activation holds the estimate for CUDA graphs too (vLLM 0.27 and newer)."""
    kv_bytes: int | None = None
    kv_bytes_exact: bool = False
    """False: as printed, within 0.005 GiB."""
    suggested_pin_bytes: int | None = None
    """The `--kv-cache-memory` that fits into the memory asked for."""
    suggested_pin_full_bytes: int | None = None
    """The one that takes all that was free at this start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a llama-server, the host's memory being one too."""

    name: str
    description: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    """When the server looked, before it loaded anything."""
    weights_bytes: int = 0
    kv_bytes: int = 0
    recurrent_bytes: int = 0
    compute_bytes: int = 0
    output_bytes: int = 0

    @property
    def is_host(self) -> bool:
        """Say whether this is host memory."""
        return self.name.startswith("CPU") or self.name == "Host" or self.name.endswith("_Host")

    @property
    def held_bytes(self) -> int:
        """Return what the server holds there."""
        return (
            self.weights_bytes + self.kv_bytes + self.recurrent_bytes + self.compute_bytes + self.output_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a start failed, or what broke later."""

    kind: str
    text: str
    """A sentence with the numbers of the log."""
    line: int
    numbers: Mapping[str, int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One vLLM engine process: the pool of one data-parallel rank."""

    name: str
    kv_tokens: int | None = None
    num_blocks: int | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """How a llama-server shares its context."""

    count: int | None = None
    unified: bool | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    ubatch_size: int | None = None
    fit_seen: bool = False
    """The server has `--fit`, which may lower the context to suit the free memory of the day."""
    reduced_from: int | None = None
    """The context that `--fit` lowered."""
    contexts: int = 1
    """Contexts in the process: more than one with a draft model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of one server."""

    engine: str
    source: str
    line: int
    """Where it begins in the file."""
    moment: str | None = None
    version: str | None = None
    model: str | None = None
    ready: bool = False
    """The log says that the server serves."""
    memory: Memory
    """Of the process that decides the pool: with the least memory for it."""
    ranks: tuple[Memory, ...] = ()
    engines: tuple[Engine, ...] = ()
    expected_ranks: int | None = None
    """GPU processes by the configuration that was printed."""
    kv_tokens: int | None = None
    num_blocks: int | None = None
    profiled_blocks: int | None = None
    """What the memory would have made, where --num-gpu-blocks-override says otherwise."""
    max_model_len: int | None = None
    max_concurrency: float | None = None
    fitted_from: int | None = None
    """The model's length, where vLLM lowered it to fit."""
    pinned_bytes: int | None = None
    """`--kv-cache-memory-bytes` of this start."""
    recurrent_bytes: int | None = None
    host_bytes: int | None = None
    """What a llama-server with a GPU holds in host memory."""
    slots: Slots | None = None
    devices: tuple[Device, ...] = ()
    settings: Mapping[str, str]
    """Arguments that are not the defaults, as they were printed; of vLLM."""
    configuration: Mapping[str, str]
    """The engine's printed configuration; of vLLM."""
    failure: Failure | None = None
    later_failure: Failure | None = None
    """What went out of memory after the server was ready."""

    @property
    def release(self) -> tuple[int, ...] | None:
        """Return a vLLM version as numbers; None where it is not known."""
        if self.engine != "vllm" or self.version is None:
            return None
        numbers = []
        for part in self.version.split("+")[0].split(".")[:3]:
            digits = part[: next((at for at, sign in enumerate(part) if not sign.isdigit()), len(part))]
            if not digits:
                break
            numbers.append(int(digits))
        return tuple(numbers) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a whole file said."""

    lines: int
    starts: tuple[Start, ...]
    left_out: int = 0
    """Starts that came before the ones kept."""
    blobs: int = 0
    """Lines that journalctl hid because of their colours."""
