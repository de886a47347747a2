"""What the servers on a device claim of it: shares, pins, what is held, and what sleepers would take back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvwatch.snapshot import Claim, ClaimBasis

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvwatch.readings import DeviceReading
    from kvwatch.snapshot import ServerState


def device_claims(
    device: DeviceReading,
    servers: Sequence[ServerState],
    process_counts: Mapping[str, int],
    awake_bytes: Mapping[str, Mapping[str, int]],
) -> tuple[Claim, ...]:
    """Return what each server on a device claims of it, or why that is not known.

    `process_counts` are a server's processes on this device. `awake_bytes` says by server and device what
    was held when the server was last seen awake.
    """
    return tuple(_claims(device, servers, process_counts, awake_bytes))


def claimed_ratio(claims: Sequence[Claim], *, asleep: bool) -> float | None:
    """Add up the claims of the servers that are awake, or of those asleep; None where one is not known."""
    ratios = [claim.ratio for claim in claims if claim.asleep == asleep]
    known = [ratio for ratio in ratios if ratio is not None]
    return math.fsum(known) if claims and len(known) == len(ratios) else None


def gave_memory_back(server: ServerState) -> bool:
    """Tell whether a server sleeps and holds neither pool nor weights; one that is paused keeps both."""
    reading = server.reading
    return reading is not None and reading.sleeping is True and reading.memory_kept is not True


def _claims(
    device: DeviceReading,
    servers: Sequence[ServerState],
    process_counts: Mapping[str, int],
    awake_bytes: Mapping[str, Mapping[str, int]],
) -> Iterator[Claim]:
    for server in servers:
        name, asleep = server.target.name, gave_memory_back(server)
        before = awake_bytes.get(name, {}) if asleep else {}
        if device.uuid not in server.device_bytes and device.uuid not in before:
            continue
        held = before.get(device.uuid) if asleep else server.device_bytes[device.uuid]
        held_ratio = None if held is None or not device.total_bytes else held / device.total_bytes
        if server.share_ratio is None:
            yield _held_claim(server, held_ratio, asleep=asleep)
            continue
        workers = _workers_here(server, process_counts.get(name, 0))
        if workers is None:
            yield Claim(
                server=name,
                ratio=None,
                basis=ClaimBasis.SHARE,
                asleep=asleep,
                why="how many of its ranks are on this device is not known: set tensor_parallel",
            )
            continue
        stated = server.share_ratio * workers
        # What is outside vLLM's reckoning (contexts, graphs before 0.20) may carry it beyond its share.
        beyond = held_ratio is not None and held_ratio > stated
        yield Claim(
            server=name,
            ratio=held_ratio if beyond else stated,
            basis=ClaimBasis.HELD if beyond else ClaimBasis.SHARE,
            asleep=asleep,
        )


def _held_claim(server: ServerState, held_ratio: float | None, *, asleep: bool) -> Claim:
    """Return the claim of a server without a share: all that its processes hold, once it holds all."""
    ratio, why = held_ratio, ""
    if server.reading is None:
        ratio, why = None, "it does not answer: what it will hold when it does is not known"
    elif held_ratio is None and asleep:
        why = "it sleeps, and what it held when awake was not seen"
    elif held_ratio is None:
        why = "what its processes hold, or the device's total, is not known"
    basis = ClaimBasis.HELD if server.pin_bytes is None else ClaimBasis.PIN
    return Claim(server=server.target.name, ratio=ratio, basis=basis, asleep=asleep, why=why)


def _workers_here(server: ServerState, process_count: int) -> int | None:
    """Return how many of a server's workers are on one device; each claims the share for itself.

    A worker is one tensor- or pipeline-parallel process of one data-parallel rank. Other processes of a
    server may hold a context there: vLLM's API servers do so for media since 0.25.1.
    """
    if process_count == 1:
        return 1
    devices = len(server.device_bytes)
    if server.reading is None or devices == 0:
        return None
    ranks = len(server.reading.ranks)
    tensor, pipeline = server.target.tensor_parallel, server.target.pipeline_parallel
    workers = ranks * tensor * (pipeline or 1) if tensor is not None else max(ranks, devices)
    here, rest = divmod(workers, devices)
    # More of them than processes: a device of the server is not seen.
    return here if rest == 0 and here <= process_count else None
