"""Snapshots for tests: one in which everything is known, and one in which nothing is."""

from __future__ import annotations

from dataclasses import replace

from kvwatch.capacity_change import CapacityChange
from kvwatch.exposition import Exposition, ReloadState, SnapshotCollector
from kvwatch.finding import Finding, RuleId, Severity, Unjudged
from kvwatch.fit import Bound, Fit, Load
from kvwatch.join import Inputs, join
from kvwatch.observation import Neighbour, StartWindow
from kvwatch.readings import (
    DeviceReading,
    EngineReading,
    RankReading,
    Reason,
    Slot,
    SlotPool,
    Source,
    SumCount,
)
from kvwatch.snapshot import (
    Basis,
    Claim,
    ClaimBasis,
    Component,
    DeviceState,
    HistoryState,
    KvGroup,
    LedgerPart,
    Match,
    PodState,
    ProcessState,
    RankState,
    ServerState,
    Snapshot,
    SourceState,
    TypicalState,
)
from kvwatch.target import Target
from kvwatch.typical import TypicalLength

MIB = 1 << 20
TARGET = Target(
    name="chat",
    url="http://127.0.0.1:8000",
    host="127.0.0.1",
    port=8000,
    request_limit=16,
    max_num_batched_tokens=2048,
    tensor_parallel=1,
    pipeline_parallel=1,
)
FIT = Fit(now=1, guaranteed=0, empty=3, resident_limit=3, headroom=-1, bound_by=Bound.QUEUE)


def rank_reading(rank: str = "0") -> RankReading:
    """Return a rank that states everything."""
    return RankReading(
        rank=rank,
        num_blocks=100,
        block_size=32,
        max_concurrency=3.125,
        kv_size_tokens=3200,
        usage_ratio=0.5,
        running=2,
        waiting={"capacity": 2, "deferred": 0},
        preemptions_total=42,
        finished_total={"stop": 7.0, "length": 13.0},
        finished_prompt_tokens=SumCount(sum=4000, count=20),
        finished_generation_tokens=SumCount(sum=14000, count=20),
        generation_tokens_total=15908,
        prefix_cache_queries_total=4800,
        prefix_cache_hits_total=0,
        queue_seconds=SumCount(sum=165.25, count=20),
        time_to_first_token_seconds=SumCount(sum=347.5, count=24),
    )


def rank_state(rank: str = "0") -> RankState:
    """Return a rank of which everything is known."""
    return RankState(
        reading=rank_reading(rank),
        load=Load(running=2, waiting=2, waiting_for_capacity=True, request_limit=16),
        basis=Basis.RESIDENT,
        usable_blocks=99,
        free_blocks=48,
        usage_ratio=0.5,
        start_blocks=32,
        resident_blocks=32,
        capacity_tokens=3168.0,
        free_tokens=1536.0,
        capacity_bytes=99 * 32 * 1024,
        bytes_per_token=1024.0,
        full=FIT,
        ceiling=3,
        typical=TypicalState(
            length=TypicalLength(prompt_tokens=200.5, generation_tokens=700.0, requests=20),
            fit=FIT,
            capacity=3.4,
        ),
        last_block_waste_tokens=62,
        worst_case_ratio=5.25,
    )


def engine_reading() -> EngineReading:
    """Return an engine that states everything but one series."""
    return EngineReading(
        engine="vllm",
        ranks=(rank_reading("0"), rank_reading("1")),
        model="tiny",
        version="0.32.0",
        full_length_tokens=1024,
        sleeping=False,
        cache_dtype="auto",
        share_ratio=0.92,
        settings=(("block_size", "32"),),
        missing=("vllm:gone",),
    )


def known() -> Snapshot:
    """Return a snapshot in which every family has a series."""
    reading = engine_reading()
    chat = ServerState(
        target=TARGET,
        reading=reading,
        full_length_tokens=1024,
        fingerprint="0123456789ab",
        ranks=(rank_state("0"), rank_state("1")),
        cache_dtype="bfloat16",
        groups=(
            KvGroup(kind="full", layers=2, block_size=32, page_bytes=4096, window=None),
            KvGroup(kind="window", layers=2, block_size=32, page_bytes=4096, window=128),
        ),
        bytes_per_block=32 * 1024,
        minimum_kv_bytes=33 * 32 * 1024,
        model_error_ratio=0.0,
        model_hash="abc",
        device_bytes={"GPU-0": 700 * MIB},
        started_at=1000.0,
        config_changed_at=2000.0,
        share_ratio=0.92,
    )
    pinned = ServerState(
        target=Target(name="pinned", url="http://127.0.0.1:1", host="127.0.0.1", port=1, pin_bytes=5 * MIB),
        reading=reading,
        pin_bytes=5 * MIB,
    )
    return Snapshot(
        sequence=1,
        taken_at=5000.0,
        monotonic_at=50.0,
        poll_seconds=0.01,
        interval_seconds=5.0,
        typical_window_seconds=900.0,
        share_limit_ratio=0.95,
        devices=(
            DeviceState(
                reading=DeviceReading(
                    uuid="GPU-0",
                    index=0,
                    name="Card",
                    driver="580.1",
                    total_bytes=1000 * MIB,
                    used_bytes=800 * MIB,
                    free_bytes=180 * MIB,
                    reserved_bytes=20 * MIB,
                    memory_version=2,
                ),
                ledger=(
                    LedgerPart(component=Component.KV_CACHE, server="chat", bytes=500 * MIB),
                    LedgerPart(component=Component.WEIGHTS_AND_WORKING, server="chat", bytes=200 * MIB),
                    LedgerPart(component=Component.OTHER, bytes=0),
                    LedgerPart(component=Component.UNATTRIBUTED, bytes=100 * MIB),
                    LedgerPart(component=Component.RESERVED, bytes=20 * MIB),
                    LedgerPart(component=Component.FREE, bytes=180 * MIB),
                ),
                share_sum_ratio=0.92,
                share_asleep_ratio=0.0,
                claims=(Claim(server="chat", ratio=0.92, basis=ClaimBasis.SHARE),),
                claims_complete=True,
            ),
        ),
        processes=(
            ProcessState(
                device="GPU-0",
                pid=42,
                used_bytes=700 * MIB,
                name="VLLM::EngineCor",
                server="chat",
                match=Match.TREE,
            ),
        ),
        servers=(chat, pinned),
        sources=(
            source(Source.ENGINE, "chat", None),
            source(Source.MODEL, "chat", Reason.UNKNOWN_ARCHITECTURE, "FooForCausalLM"),
        ),
        recompute_suspected={("chat", "0"): 6, ("chat", "1"): 0},
        pods=(
            PodState(
                container="3f" * 32,
                pod_uid="0f0b5a3c-2d4e-4f60-8a1b-9c2d3e4f5a6b",
                pod="chat-0",
                namespace="models",
                name="vllm",
            ),
        ),
        history=HistoryState(size_bytes=8 * MIB, oldest_at=3000.0),
        start_windows=(
            StartWindow(
                server="chat",
                device="GPU-0",
                started_at=1000.0,
                ready_at=1060.0,
                seen_from=1000.0,
                free_first_bytes=900 * MIB,
                free_last_bytes=180 * MIB,
                neighbours=(
                    Neighbour(
                        server="",
                        name="python3",
                        pid=77,
                        first_bytes=10 * MIB,
                        last_bytes=30 * MIB,
                        most_bytes=60 * MIB,
                    ),
                ),
            ),
        ),
        capacity_changes=(
            CapacityChange(
                server="chat",
                baseline="1d",
                at=4980.0,
                ratio=0.5,
                factors={
                    "pool": -0.6931471805599453,
                    "cost_per_token": 0.0,
                    "prompt_length": 0.0,
                    "generation_length": 0.0,
                },
                cause="pool_smaller_startup_race",
                confidence="high",
                headline="chat: room for typical requests went to 50 % of what it was.",
                evidence=("embedding grew by 5 GiB while it started.",),
                levers=("Restart it alone.",),
                deployed=True,
            ),
        ),
        findings=(
            Finding(
                rule=RuleId.WAITING_POOL_FULL,
                severity=Severity.CRITICAL,
                server="chat",
                summary="chat has 2 requests waiting: its pool is full, 96% of it used",
                detail="New requests are answered late.",
                next_step="Send load elsewhere or add a replica.",
                since=4900.0,
            ),
        ),
        unjudged=(Unjudged(rule=RuleId.STALLED_POOL_FREE, server="pinned", why="nothing is known"),),
    )


def source(source: Source, target: str, reason: Reason | None, detail: str = "") -> SourceState:
    """Return the health of a source that worked once and failed once."""
    return SourceState(
        source=source,
        target=target,
        reason=reason,
        detail=detail,
        duration_seconds=0.25,
        last_success_at=4990.0,
        failures={Reason.TIMEOUT: 1},
    )


def unknown() -> Snapshot:
    """Return a snapshot of sources that answered and said nothing."""
    rank = RankReading(
        rank="0",
        slots=SlotPool(
            total_slots=4,
            slot_limit_tokens=2048,
            busy_slots=None,
            slots=(Slot(limit_tokens=2048, busy=False, resident_tokens=None, remaining_tokens=None),),
        ),
    )
    return Snapshot(
        sequence=1,
        taken_at=5000.0,
        monotonic_at=50.0,
        poll_seconds=0.01,
        interval_seconds=5.0,
        typical_window_seconds=900.0,
        share_limit_ratio=0.95,
        devices=(
            DeviceState(
                reading=DeviceReading(
                    uuid="GPU-0", index=0, name=None, driver=None, memory_reason=Reason.NOT_SUPPORTED
                )
            ),
        ),
        processes=(
            ProcessState(device="GPU-0", pid=42, used_bytes=None, name=None, server=None, match=Match.NONE),
        ),
        servers=(
            ServerState(
                target=TARGET,
                reading=EngineReading(engine="llamacpp", ranks=(rank,)),
                ranks=(
                    RankState(
                        reading=rank,
                        load=Load(running=None, waiting=None, waiting_for_capacity=None, request_limit=None),
                        full=Fit(),
                        typical=TypicalState(
                            length=TypicalLength(prompt_tokens=1.0, generation_tokens=0.0, requests=1),
                            fit=None,
                            capacity=None,
                        ),
                    ),
                ),
                device_bytes={"GPU-0": None},
            ),
            ServerState(target=Target(name="gone", url="http://h:1", host="h", port=1), reading=None),
        ),
        sources=(
            SourceState(
                source=Source.ENGINE, target="gone", reason=Reason.UNREACHABLE, detail="refused",
                duration_seconds=None, last_success_at=None, failures={Reason.UNREACHABLE: 3},
            ),
        ),
        recompute_suspected={},
    )  # fmt: skip


def exported(reading: EngineReading) -> str:
    """Return the exposition of a server that was read so: one odd server must not cost the others theirs."""
    target = Target(
        name="s", url="http://h:1", host="h", port=1, request_limit=16, pool_tokens=8192, tensor_parallel=1
    )
    joined = join(Inputs(targets=[target], engines={"s": reading}, models={}))
    snapshot = replace(unknown(), servers=joined.servers)
    collector = SnapshotCollector(
        current=lambda: snapshot,
        reload_state=lambda: ReloadState(successful=True, succeeded_at=1.0),
        clock=lambda: snapshot.monotonic_at,
    )
    return Exposition(collector, clock=lambda: 0.0).render(openmetrics=False, compressed=False)[0].decode()
