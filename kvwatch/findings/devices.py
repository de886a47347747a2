"""Rules about who holds a device's memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvwatch.findings.rule import NO_ANSWER, Condition, Evidence, Unknown, Verdict
from kvwatch.findings.words import card, listed, mib
from kvwatch.shares import gave_memory_back
from kvwatch.snapshot import Component

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.snapshot import Claim, ServerState

_ROUNDING = 1e-9
_OUT_OF_STEP = 0.02
"""Of the pin, or of the card: less is the rounding to whole blocks, and what a context takes."""


def share_sum_over_limit(evidence: Evidence) -> Iterator[Verdict]:
    """Find devices of which the running servers claim more than the limit."""
    limit = evidence.snapshot.share_limit_ratio
    for device in evidence.snapshot.devices:
        awake = [claim for claim in device.claims if not claim.asleep]
        known = math.fsum(claim.ratio for claim in awake if claim.ratio is not None)
        if known <= limit + _ROUNDING:
            if awake and device.share_sum_ratio is None:
                yield Unknown(device=device.reading.uuid, why="a claim is not known")
            continue
        least = "" if device.share_sum_ratio is not None else "at least "
        yield Condition(
            device=device.reading.uuid,
            summary=(
                f"the servers on {card(device)} claim {least}{known:.2f} of it together, limit {limit:.2f}: "
                f"{listed([_claim(claim) for claim in awake])}"
            ),
            detail="One of them may fail to start, or run out of memory while it serves.",
            next_step=f"Lower shares by {known - limit:.2f} in all, or move a server to another device.",
        )


def share_sum_unknown(evidence: Evidence) -> Iterator[Verdict]:
    """Find devices of which it cannot be said whether they are over the limit."""
    for device in evidence.snapshot.devices:
        if not device.claims or device.share_sum_ratio is not None:
            continue
        missing = [claim for claim in device.claims if claim.ratio is None and not claim.asleep]
        if missing:
            summary = (
                f"what {listed([claim.server for claim in missing])} claims of {card(device)} is not known"
            )
            why = f"{missing[0].server}: {missing[0].why}"
        else:
            summary = f"who holds {card(device)} is not known for every process"
            why = "a process there may be a server's: see kvwatch_source_reason of procfs and nvml"
        yield Condition(
            device=device.reading.uuid,
            summary=summary,
            detail="Nothing is felt; the sum of the shares on this device is left out.",
            next_step=f"Make it known: {why}.",
        )


def unpinned_neighbours(evidence: Evidence) -> Iterator[Verdict]:
    """Find devices on which two or more servers measure free memory when they start."""
    for device in evidence.snapshot.devices:
        here = [server for server in evidence.snapshot.servers if device.reading.uuid in server.device_bytes]
        unpinned = [server.target.name for server in here if server.share_ratio is not None]
        untold = [server.target.name for server in here if _sized_unknown(server)]
        if len(unpinned) > 1:
            yield Condition(
                device=device.reading.uuid,
                summary=f"{listed(unpinned)} share {card(device)}, each with a share and none with a pin",
                detail=(
                    "Nothing is felt until they start together: then each takes the other's growth for its "
                    "own and comes back with a smaller pool."
                ),
                next_step=(
                    "Pin their pools (kv_cache_memory_bytes), or start each when the one before is ready."
                ),
            )
        elif len(unpinned) + len(untold) > 1:
            yield Unknown(
                device=device.reading.uuid, why=f"how the pool of {listed(untold)} was sized is not known"
            )


def pin_out_of_step(evidence: Evidence) -> Iterator[Verdict]:
    """Find pins that are not what the pool takes, or that exceed the share that stands beside them."""
    totals = {
        device.reading.uuid: device.reading.total_bytes
        for device in evidence.snapshot.devices
        if device.reading.total_bytes
    }
    for server in evidence.snapshot.servers:
        pin, name = server.pin_bytes, server.target.name
        if pin is None or gave_memory_back(server):
            continue
        if server.reading is None:
            yield Unknown(server=name, why=NO_ANSWER)
            continue
        if dict(server.reading.settings).get("num_gpu_blocks_override", "None") != "None":
            continue  # somebody has counted the blocks by hand, and the pin is not in force
        pool, share = server.pool_bytes, _stated_share(server)
        beyond = [
            (held, totals[uuid])
            for uuid, held in server.device_bytes.items()
            if share is not None and held is not None and uuid in totals
            if held > (share + _OUT_OF_STEP) * totals[uuid]
        ]
        if pool is not None and abs(pool / pin - 1) > _OUT_OF_STEP:
            yield Condition(
                server=name,
                summary=f"{name} is pinned to {mib(pin)}, and its pool takes {mib(pool)}",
                detail="Capacity is not what the configuration says.",
                next_step=(
                    "Restart it if the pin was changed, or correct kv_cache_memory_bytes in kvwatch's "
                    "configuration if it was copied there."
                ),
            )
        elif beyond and share is not None:
            held, total = beyond[0]
            yield Condition(
                server=name,
                summary=(
                    f"{name} holds {mib(held)}, {held / total:.2f} of its device, though its flags still say "
                    f"a share of {share:.2f}: the pin of {mib(pin)} overrides it"
                ),
                detail="Nothing is felt; whoever adds up the shares of the device reckons too low.",
                next_step=(
                    f"Set gpu_memory_utilization to {held / total:.2f}, or lower the pin by "
                    f"{mib(held - share * total)}."
                ),
            )
        elif pool is None and share is None:
            yield Unknown(server=name, why="neither its pool's bytes nor a share beside its pin are known")


def orphan_memory(evidence: Evidence) -> Iterator[Verdict]:
    """Find memory that an engine's process holds though its server is gone."""
    for device in evidence.snapshot.devices:
        uuid = device.reading.uuid
        parts = [part for part in device.ledger if part.component is Component.ORPHAN and part.bytes]
        if not parts:
            if device.reading.processes_reason is not None and not device.reading.divided:
                yield Unknown(device=uuid, why="the list of processes is not whole")
            continue
        pids = [
            str(process.pid)
            for process in evidence.snapshot.processes
            if process.device == uuid and process.orphan
        ]
        total = sum(part.bytes for part in parts)
        names = sorted({part.server for part in parts if part.server})
        who = f"process{'es' if len(pids) > 1 else ''} {listed(pids)}"
        whose = f", left behind by {listed(names)}" if names else ", left behind by a server that is gone"
        yield Condition(
            device=uuid,
            server=names[0] if len(names) == 1 else "",
            summary=f"{mib(total)} of {card(device)} are held by {who}{whose}",
            detail="Nobody is served by that memory, and a server that starts there finds less.",
            next_step=f"Make sure that nothing uses them, then end them: kill {' '.join(pids)}.",
        )


def _claim(claim: Claim) -> str:
    return f"{claim.server} {'?' if claim.ratio is None else f'{claim.ratio:.2f}'} ({claim.basis})"


def _sized_unknown(server: ServerState) -> bool:
    """Tell whether a server may have measured free memory at its start for all that is known."""
    reading = server.reading
    if server.share_ratio is not None or server.pin_bytes is not None:
        return False
    if reading is None:
        return True
    # vLLM shows its share also where a block count overrides it; other engines have none.
    return reading.cost_rules == "vllm" and _stated_share(server) is None


def _stated_share(server: ServerState) -> float | None:
    """Return the share that a server's page shows, whether it holds or not."""
    settings = () if server.reading is None else server.reading.settings
    shown = dict(settings).get("gpu_memory_utilization")
    try:
        return None if shown is None else float(shown)
    except ValueError:
        return None
