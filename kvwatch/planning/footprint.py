"""What a server held of a card when it was measured: by its process, or by its start-up log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.planning.errors import PlanError, SpecificationError
from kvwatch.startup_log.amounts import GIB
from kvwatch.startup_log.ledger import ledgers, pool_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.startup_log.facts import Device, Memory, Start

REST = "weights and working"
CONTEXT = "CUDA context"
GRAPHS = "CUDA graphs"
_HALF_DIGIT = GIB // 200
_GRAPHS_IN_SHARE = (0, 20)
"""The first vLLM that sets memory for CUDA graphs aside before it sizes the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Memory beside the pool; None where it is not known."""

    name: str
    size_bytes: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one rank held of its card.

    Attributes:
        total_bytes: all that its process held; None where only parts are known.
        kv_bytes: the KV cache in it, `kv_doubt_bytes` more or less, as it was printed.
        tokens: what the engine said that this cache holds.
        parts: what is beside the cache, where a log tells it apart.

    """

    total_bytes: int | None = None
    kv_bytes: int | None = None
    kv_doubt_bytes: int = 0
    tokens: int | None = None
    parts: tuple[Part, ...] = ()
    source: str = "measured"

    @property
    def token_bytes(self) -> float | None:
        """Return what one token of its cache took, as printed."""
        return self.kv_bytes / self.tokens if self.kv_bytes and self.tokens else None

    def beside_pool(self) -> tuple[Part, ...] | None:
        """Return what is not KV cache; None where nothing tells the two apart."""
        if self.total_bytes is not None and self.kv_bytes is not None:
            return (Part(name=REST, size_bytes=self.total_bytes - self.kv_bytes, source=self.source),)
        return self.parts or None


def check_footprint(name: str, footprint: Footprint) -> None:
    """Raise SpecificationError where a footprint contradicts itself."""
    total, pool = footprint.total_bytes, footprint.kv_bytes
    if total is not None and pool is not None and pool > total:
        raise SpecificationError(f"{name}: a KV cache of {pool:,} bytes in a process of {total:,}")


def merged(measured: Footprint, log: Footprint) -> Footprint:
    """Return a process's total with what its log says of the cache; the measurement wins."""
    if measured.kv_bytes is not None:
        return measured
    return Footprint(
        total_bytes=measured.total_bytes,
        kv_bytes=log.kv_bytes,
        kv_doubt_bytes=log.kv_doubt_bytes,
        tokens=log.tokens if measured.tokens is None else measured.tokens,
    )


def logged(start: Start, *, card_bytes: int, ranks: int | None = None) -> Footprint:
    """Return what a start-up log says that a server holds; raise PlanError for a start that failed.

    vLLM sums up what it holds from these parts, so a pool of another size finds the same beside it. Where
    the log leaves some out, the share tells what they are together: the pool is what it left.
    llama-server's lines leave out the CUDA context. `card_bytes` is of the card that it ran on, where the log
    does not say it; `ranks` are those asked for: what a rank holds is another with another number of them.
    """
    if start.failure is not None:
        raise PlanError(f"that start failed: {start.failure.text}")
    devices = [device for device in start.devices if not device.is_host and device.held_bytes]
    if start.engine == "llama.cpp":
        if len(devices) != 1:
            raise PlanError("that log does not show one GPU with all of the server (llama-server -lv 4)")
        return _of_device(devices[0], start)
    memory = start.memory
    if start.engine != "vllm" or memory.kv_bytes is None:
        raise PlanError("that log does not say what the KV cache took")
    logged_ranks = _ranks(start)
    if None not in (ranks, logged_ranks) and ranks != logged_ranks:
        raise PlanError(f"that log is of {logged_ranks} ranks, not of {ranks}: what each holds is another")
    return Footprint(
        kv_bytes=pool_bytes(start),
        kv_doubt_bytes=0 if memory.kv_bytes_exact else _HALF_DIGIT,
        tokens=start.kv_tokens,
        parts=_by_share(memory, start, card_bytes) or tuple(_vllm_parts(memory, start)),
        source="log",
    )


def _ranks(start: Start) -> int | None:
    """Return tensor times pipeline ranks by the printed configuration; None where it does not say."""
    texts = [start.configuration.get(f"{kind}_parallel_size", "") for kind in ("tensor", "pipeline")]
    return int(texts[0]) * int(texts[1]) if all(text.isdecimal() for text in texts) else None


def _by_share(memory: Memory, start: Start, card_bytes: int) -> tuple[Part, ...] | None:
    """Return what the share left beside the pool, where non-torch memory and activation are not printed.

    vLLM: pool = card x share - weights - non-torch - activation, from 0.20 on less the estimate for CUDA
    graphs too (0.32.0, v1/worker/gpu_worker.py `determine_available_memory`). None where the pool was fixed
    by a pin or a number of blocks, or the log does not state the share.
    """
    pool, weights, release = memory.kv_bytes, memory.weights_bytes, start.release
    printed = memory.non_torch_bytes is not None and memory.activation_bytes is not None
    fixed = start.pinned_bytes is not None or start.profiled_blocks is not None
    if printed or fixed or memory.share is None or pool is None or weights is None or release is None:
        return None
    requested = memory.requested_bytes or math.ceil((memory.total_bytes or card_bytes) * memory.share)
    rest = requested - pool - weights
    if rest < 0:
        raise PlanError(
            f"that log's weights and KV cache are more than {memory.share:g} of the card: it is of another"
        )
    parts = (
        Part(name="weights", size_bytes=weights, source="log"),
        Part(name="the rest of its share", size_bytes=rest, source="log"),
    )
    if release >= _GRAPHS_IN_SHARE:
        return parts
    return (*parts, *(part for part in _vllm_parts(memory, start) if part.name == GRAPHS))


def _vllm_parts(memory: Memory, start: Start) -> Iterator[Part]:
    """Yield weights, non-torch, activation and graphs; what the log leaves out is not known."""
    (ledger,) = ledgers(start) or (None,)
    said = {part.letter: part.size_bytes for part in ledger.parts} if ledger else {}
    eager = start.settings.get("enforce_eager") == "True"
    for letter, name, stated in (
        ("w", "weights", memory.weights_bytes),
        ("n", "non-torch", memory.non_torch_bytes),
        ("a", "peak activation", memory.activation_bytes),
    ):
        yield Part(name=name, size_bytes=None if stated is None else said.get(letter, 0), source="log")
    if not eager:
        yield Part(name=GRAPHS, size_bytes=said.get("g"), source="log")


def _of_device(device: Device, start: Start) -> Footprint:
    parts = (
        ("weights", device.weights_bytes),
        ("compute buffers", device.compute_bytes),
        ("output buffer", device.output_bytes),
    )
    return Footprint(
        kv_bytes=device.kv_bytes + device.recurrent_bytes,
        tokens=start.kv_tokens,
        parts=(
            *(Part(name=name, size_bytes=size, source="log") for name, size in parts if size),
            Part(name=CONTEXT, size_bytes=None, source="log"),
        ),
        source="log",
    )
