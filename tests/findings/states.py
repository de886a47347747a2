"""Snapshots for the rules: each built by the real arithmetic from what an engine would state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvwatch.capacity import Facts, rank_state
from kvwatch.findings import Inspection
from kvwatch.readings import (
    DeviceReading,
    EngineReading,
    RankReading,
    Reason,
    Slot,
    SlotPool,
    Source,
)
from kvwatch.snapshot import DeviceState, ServerState, Snapshot, SourceState
from kvwatch.target import Target
from kvwatch.typical import TypicalLength

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.finding import Finding, RuleId, Unjudged

MIB = 1 << 20
CARD = "GPU-0"


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One vLLM rank with 1,001 blocks of 16 tokens, so that 1,000 are usable."""

    usage: float | None = 0.5
    running: int | None = 4
    waiting: int | None = 0
    deferred: int = 0
    blocks: int | None = 1001
    typical: float | None = 1600.0
    """Tokens of the typical request: 100 blocks of it."""
    preempted: float | None = 0.0
    finished: float | None = 0.0
    name: str = "0"

    def reading(self) -> RankReading:
        """Return what the page says."""
        waiting = {} if self.waiting is None else {"capacity": self.waiting, "deferred": self.deferred}
        return RankReading(
            rank=self.name,
            num_blocks=self.blocks,
            block_size=16,
            max_concurrency=None if self.blocks is None else self.blocks / 250,
            usage_ratio=self.usage,
            running=self.running,
            waiting=waiting,
            preemptions_total=self.preempted,
            finished_total={} if self.finished is None else {"stop": self.finished},
        )


def vllm(
    *ranks: Rank,
    name: str = "chat",
    limit: int | None = 64,
    full: int = 4000,
    sleeping: bool = False,
    share: float | None = 0.5,
    pin: int | None = None,
    **more: Any,
) -> ServerState:
    """Return a vLLM server that admits 4,000 tokens, which take 250 blocks."""
    target = Target(
        name=name, url="http://h:1", host="h", port=1, request_limit=limit, pin_bytes=pin
    )  # fmt: skip
    facts = Facts(target=target, full_length_tokens=full, asleep=sleeping, plan=None, bytes_known=False)
    states = tuple(
        rank_state(
            rank.reading(),
            facts,
            None
            if rank.typical is None
            else TypicalLength(
                prompt_tokens=rank.typical / 2, generation_tokens=rank.typical / 2, requests=9
            ),
        )
        for rank in ranks or (Rank(),)
    )
    shown = () if share is None else (("gpu_memory_utilization", str(share)),)
    state = ServerState(
        target=target,
        reading=EngineReading(
            engine="vllm", ranks=tuple(state.reading for state in states), cost_rules="vllm",
            sleeping=sleeping, memory_kept=not sleeping, settings=shown,
        ),
        full_length_tokens=full,
        ranks=states,
        share_ratio=None if pin else share,
        pin_bytes=pin,
        device_bytes={CARD: 20_000 * MIB},
        fingerprint="0123456789ab",
    )  # fmt: skip
    return replace(state, **more)


def silent(name: str = "chat", **more: Any) -> ServerState:
    """Return a server that does not answer."""
    target = Target(name=name, url="http://h:1", host="h", port=1)
    return replace(ServerState(target=target, reading=None), **more)


def llama(
    *,
    busy: int = 1,
    deferred: int = 0,
    pool: int | None = 8192,
    unified: bool | None = True,
    slot: int = 8192,
) -> ServerState:
    """Return a llama-server with four slots; each busy one holds 1,000 tokens and may take its limit."""
    slots = tuple(
        Slot(
            limit_tokens=slot, busy=number < busy, resident_tokens=1000 if number < busy else 0,
            remaining_tokens=None,
        )
        for number in range(4)
    )  # fmt: skip
    reading = RankReading(
        rank="0",
        running=busy,
        waiting={"deferred": deferred},
        slots=SlotPool(total_slots=4, slot_limit_tokens=slot, busy_slots=busy, slots=slots),
    )
    target = Target(
        name="llama", url="http://h:1", host="h", port=1, pool_tokens=pool, kv_unified=unified
    )  # fmt: skip
    facts = Facts(target=target, full_length_tokens=slot, asleep=False, plan=None, bytes_known=False)
    return ServerState(
        target=target,
        reading=EngineReading(engine="llamacpp", ranks=(reading,)),
        full_length_tokens=slot,
        ranks=(rank_state(reading, facts, None),),
    )


def device(**more: Any) -> DeviceState:
    """Return a card whose owners are all known."""
    reading = DeviceReading(uuid=CARD, index=0, name="L40S", driver="1", total_bytes=46_068 * MIB)
    return replace(DeviceState(reading=reading, claims_complete=True), **more)


def down(source: Source, target: str, reason: Reason | None, detail: str = "") -> SourceState:
    """Return a source's health."""
    return SourceState(
        source=source, target=target, reason=reason, detail=detail, duration_seconds=0.1,
        last_success_at=None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One poll at a moment, in seconds."""

    at: float = 0.0
    servers: Sequence[ServerState] = ()
    devices: Sequence[DeviceState] = ()
    sources: Sequence[SourceState] = ()
    suspected: Mapping[tuple[str, str], int] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the snapshot."""

    def snapshot(self) -> Snapshot:
        """Return the snapshot of this poll."""
        return replace(
            Snapshot(
                sequence=1, taken_at=1_000_000.0 + self.at, monotonic_at=self.at, poll_seconds=0.1,
                interval_seconds=5.0, typical_window_seconds=900.0, share_limit_ratio=0.95,
                devices=tuple(self.devices), processes=(), servers=tuple(self.servers),
                sources=tuple(self.sources), recompute_suspected=self.suspected,
            ),
            **self.more,
        )  # fmt: skip


def inspected(*moments: Moment, **settings: Any) -> Inspection:
    """Return the inspection after these polls."""
    inspection = Inspection()
    for moment in moments:
        inspection = inspection.advance(moment.snapshot(), **settings)
    return inspection


def held_for(seconds: float, moment: Moment) -> list[Moment]:
    """Return polls of 5 s over a span in which nothing changes."""
    return [replace(moment, at=moment.at + 5.0 * step) for step in range(int(seconds // 5) + 1)]


def found(inspection: Inspection, rule: RuleId) -> list[Finding]:
    """Return the findings of one rule."""
    return [finding for finding in inspection.findings if finding.rule is rule]


def unjudged(inspection: Inspection, rule: RuleId) -> list[Unjudged]:
    """Return what one rule could not judge."""
    return [subject for subject in inspection.unjudged if subject.rule is rule]
