"""One server joined: what its pages, its processes and its model file say, as one state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.capacity import Facts, engine_start_blocks, rank_state
from kvwatch.cost.llamacpp import LlamaPool
from kvwatch.cost.vllm import BlockPlan
from kvwatch.cost.weights import rank_weight_bytes
from kvwatch.plan import GgufModel, Model, groups_of, plan_server, plan_slots
from kvwatch.readings import Outcome, Reason, Source, SourceError
from kvwatch.snapshot import ServerState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.inputs import Inputs
    from kvwatch.owners import Owner
    from kvwatch.readings import DeviceReading, EngineReading, ProcessTable
    from kvwatch.target import Target


def join_server(target: Target, inputs: Inputs, owners: Mapping[int, Owner]) -> tuple[ServerState, Outcome]:
    """Join one server; the outcome says why its static facts are not all known."""
    device_bytes = _device_bytes(target.name, inputs.devices, owners)
    started_at = _started_at(target.name, inputs.processes)
    model = inputs.models.get(target.name)
    model_hash = model.hash if isinstance(model, Model | GgufModel) else None
    reading = inputs.engines.get(target.name)
    if reading is None:
        state = ServerState(
            target=target,
            reading=None,
            device_bytes=device_bytes,
            started_at=started_at,
            model_hash=model_hash,
            share_ratio=None if target.pin_bytes else target.share_ratio,
            pin_bytes=target.pin_bytes,
        )
        return state, _model_outcome(target, None, model, pool_known=None)
    full_length = reading.full_length_tokens or target.full_length_tokens
    cache_dtype = _stated(reading.cache_dtype) or target.cache_dtype
    start = engine_start_blocks(reading.ranks[0])
    plan: BlockPlan | LlamaPool | SourceError | None
    if isinstance(model, GgufModel):
        plan = plan_slots(model, inputs.launches.get(target.name), reading)
    else:
        plan = plan_server(model, target, reading, full_length, cache_dtype, start)
    blocks = plan if isinstance(plan, BlockPlan) else None
    slots = plan if isinstance(plan, LlamaPool) else None
    divided = _ranks_known(target, len(reading.ranks), inputs.devices, device_bytes)
    if slots is not None:
        bytes_known = len(device_bytes) <= 1
    else:
        bytes_known = divided and blocks is not None and start in (None, blocks.start_blocks)
    facts = Facts(
        target=target,
        full_length_tokens=full_length,
        asleep=reading.sleeping is True,
        plan=blocks,
        slot_plan=slots,
        bytes_known=bytes_known,
    )
    ranks = tuple(
        rank_state(rank, facts, inputs.typical.get((target.name, rank.rank))) for rank in reading.ranks
    )
    pin = reading.pin_bytes or target.pin_bytes
    state = ServerState(
        target=target,
        reading=reading,
        full_length_tokens=full_length,
        fingerprint=inputs.fingerprints.get(target.name),
        ranks=ranks,
        cache_dtype=cache_dtype,
        share_ratio=None if pin else _share_ratio(reading, target),
        pin_bytes=pin,
        groups=groups_of(blocks) if blocks and bytes_known else (),
        bytes_per_block=blocks.bytes_per_block if blocks and bytes_known else None,
        pool_bytes=_pool_bytes(blocks, slots, reading, len(device_bytes)) if bytes_known else None,
        minimum_kv_bytes=blocks.minimum_pool_bytes if blocks and bytes_known else None,
        weights_bytes=_weights_bytes(model, target, len(reading.ranks), device_bytes)
        if bytes_known
        else None,
        model_error_ratio=blocks.start_blocks / start - 1 if blocks and start else None,
        model_hash=model_hash,
        device_bytes=device_bytes,
        started_at=reading.start_timestamp_seconds or started_at,
    )
    pool_known = all(rank.full is not None for rank in ranks)
    return state, _model_outcome(target, state, plan, pool_known=pool_known)


def _share_ratio(reading: EngineReading, target: Target) -> float | None:
    """Return gpu_memory_utilization; a page that shows it and says that it does not hold is believed."""
    shown = any(name == "gpu_memory_utilization" for name, _ in reading.settings)
    return reading.share_ratio if shown else target.share_ratio


def _ranks_known(
    target: Target, rank_count: int, devices: Sequence[DeviceReading], device_bytes: Mapping[str, int | None]
) -> bool:
    """Tell whether it is known among how many devices a rank divides its model.

    Configured, or seen: as many devices as ranks means one each, where every device's list is whole.
    """
    if target.pipeline_parallel not in (None, 1):
        return False  # the ranks of a pipeline hold different layers
    if target.tensor_parallel is not None:
        return True
    whole = all(device.processes_reason is None or device.divided for device in devices)
    return whole and len(device_bytes) == rank_count


def _pool_bytes(
    blocks: BlockPlan | None, slots: LlamaPool | None, reading: EngineReading, device_count: int
) -> int | None:
    """Return the bytes that a server's pool takes on each of its devices, null block included."""
    if slots is not None:
        return None if slots.host_bytes is None else slots.total_bytes - slots.host_bytes
    counts = {rank.num_blocks for rank in reading.ranks}
    count = counts.pop()
    if blocks is None or counts or count is None or device_count % len(reading.ranks):
        return None  # unequal ranks, or ranks that share a device
    return count * blocks.bytes_per_block


def _weights_bytes(
    model: Model | GgufModel | SourceError | None,
    target: Target,
    rank_count: int,
    device_bytes: Mapping[str, int | None],
) -> int | None:
    """Return a server's weights on each of its devices: exact where one device holds a whole checkpoint."""
    if not isinstance(model, Model) or model.weights is None or len(device_bytes) != rank_count:
        return None
    return rank_weight_bytes(
        model.weights,
        tensor_parallel=target.tensor_parallel or 1,
        pipeline_parallel=target.pipeline_parallel or 1,
        engine_dtype=model.spec.dtype,
    )


def _model_outcome(
    target: Target,
    server: ServerState | None,
    result: BlockPlan | LlamaPool | Model | GgufModel | SourceError | None,
    *,
    pool_known: bool | None,
) -> Outcome:
    """Say why a server's static facts, its longest request, pool and bytes, are not all known."""
    reason: Reason | None = None
    detail = ""
    if server is not None and server.reading is not None and server.full_length_tokens is None:
        reason = server.reading.full_length_reason or Reason.MISSING_FIELD
        detail = "the server does not state its longest request: set full_length_tokens"
    elif isinstance(result, SourceError):
        reason, detail = result.reason, result.detail
    elif pool_known is False:
        reason = Reason.UNKNOWN_POOL
        detail = "the server does not state its pool: set pool_tokens and kv_unified"
        if target.pool_tokens is not None or target.kv_unified is not None:
            detail = "pool_tokens and kv_unified are too little, or contradict the server's own slots"
    elif result is None:
        reason = Reason.NOT_ENABLED
        detail = "no model_config is set and the model's files are not seen here: bytes are not known"
    return Outcome(source=Source.MODEL, target=target.name, reason=reason, detail=detail)


def _device_bytes(
    server: str, devices: Sequence[DeviceReading], owners: Mapping[int, Owner]
) -> dict[str, int | None]:
    sums: dict[str, int | None] = {}
    for device in devices:
        used = [process.used_bytes for process in device.processes if owners[process.pid].server == server]
        if used:
            known = [value for value in used if value is not None]
            whole = len(known) == len(used) and device.processes_reason is None
            sums[device.uuid] = sum(known) if whole else None
    return sums


def _started_at(server: str, processes: ProcessTable) -> float | None:
    starts = [
        processes.processes[pid].started_at
        for pid in processes.listeners.get(server, ())
        if pid in processes.processes
    ]
    known = [start for start in starts if start is not None]
    return min(known) if known else None


def _stated(cache_dtype: str | None) -> str | None:
    """Return the dtype that a page names; "auto" names none."""
    return None if cache_dtype in (None, "auto") else cache_dtype
