"""Where a device's memory went."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.ledger import Usage, device_ledger
from kvwatch.readings import DeviceReading, Reason


def device(
    used: int | None = 800,
    free: int | None = 180,
    reserved: int | None = 20,
    *,
    incomplete: bool = False,
) -> DeviceReading:
    """Return a device of 1000 bytes."""
    return DeviceReading(
        uuid="GPU-0",
        index=0,
        name=None,
        driver=None,
        total_bytes=1000,
        used_bytes=used,
        free_bytes=free,
        reserved_bytes=reserved,
        processes_reason=Reason.NOT_SUPPORTED if incomplete else None,
    )


@dataclass(frozen=True)
class Case:
    """A device, who uses it, and its ledger as (component, server) -> bytes."""

    parts: dict[tuple[str, str], int]
    by_server: dict[str, int | None] = field(default_factory=dict)
    nobodys: int | None = 0
    kv: dict[str, int] = field(default_factory=dict)
    device: DeviceReading = field(default_factory=device)


FREE = {("reserved", ""): 20, ("free", ""): 180}
CASES = {
    "nobody": Case({("other", ""): 0, ("unattributed", ""): 800, **FREE}),
    "a server whose pool is known": Case(
        {("kv_cache", "chat"): 500, ("weights_and_working", "chat"): 200, ("other", ""): 0,
         ("unattributed", ""): 100, **FREE},
        {"chat": 700}, kv={"chat": 500}),
    "a server whose pool is not known": Case(
        {("undivided", "chat"): 700, ("other", ""): 0, ("unattributed", ""): 100, **FREE}, {"chat": 700}),
    "a pool larger than the process: the model file is another's": Case(
        {("undivided", "chat"): 700, ("other", ""): 0, ("unattributed", ""): 100, **FREE},
        {"chat": 700}, kv={"chat": 701}),
    "a pool that is all the process has": Case(
        {("kv_cache", "chat"): 700, ("weights_and_working", "chat"): 0, ("other", ""): 0,
         ("unattributed", ""): 100, **FREE},
        {"chat": 700}, kv={"chat": 700}),
    "two servers and a notebook": Case(
        {("undivided", "chat"): 400, ("undivided", "embed"): 100, ("other", ""): 250,
         ("unattributed", ""): 50, **FREE},
        {"embed": 100, "chat": 400}, nobodys=250),
    "a server's process is N/A: what depends on it is unknown": Case(
        {("undivided", "embed"): 100, ("other", ""): 0, **FREE}, {"chat": None, "embed": 100},
        kv={"chat": 500}),
    "a stranger's process is N/A": Case({("undivided", "chat"): 700, **FREE}, {"chat": 700}, nobodys=None),
    "the process list is incomplete": Case(
        FREE, {"chat": None}, nobodys=None, device=device(incomplete=True)),
    "no process was seen in an incomplete list": Case(
        {("other", ""): 0, **FREE}, device=device(incomplete=True)),
    "processes claim more than is used: buffers are shared": Case(
        {("undivided", "chat"): 801, ("other", ""): 0, **FREE}, {"chat": 801}),
    "processes claim all that is used": Case(
        {("undivided", "chat"): 800, ("other", ""): 0, ("unattributed", ""): 0, **FREE}, {"chat": 800}),
    "an older driver does not tell reserved memory apart": Case(
        {("undivided", "chat"): 700, ("other", ""): 0, ("unattributed", ""): 120, ("free", ""): 180},
        {"chat": 700}, device=device(820, 180, None)),
    "the device's memory is N/A": Case(
        {("undivided", "chat"): 700, ("other", ""): 0}, {"chat": 700}, device=device(None, None, None)),
    "full": Case({("other", ""): 0, ("unattributed", ""): 980, ("reserved", ""): 20, ("free", ""): 0},
        device=device(980, 0)),
}  # fmt: skip


@pytest.mark.parametrize("situation", CASES)
def test_the_parts_of_a_device(situation: str) -> None:
    """Each part is what was measured, a zero included; one that cannot be known is not there."""
    case = CASES[situation]
    usage = Usage(by_server=case.by_server, nobodys_bytes=case.nobodys, kv_bytes=case.kv, weights_bytes={})
    parts = device_ledger(case.device, usage)
    assert {(part.component, part.server): part.bytes for part in parts} == case.parts
    assert len(parts) == len(case.parts)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers(0, 400), max_size=4),
    st.none() | st.integers(0, 400),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 500), max_size=4),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 500), max_size=4),
    st.integers(0, 900),
    st.none() | st.integers(0, 100),
    st.booleans(),
)
def test_the_parts_add_up_to_the_total_when_all_are_known_and_never_exceed_it(
    by_server: dict[str, int | None],
    nobodys: int | None,
    kv: dict[str, int],
    weights: dict[str, int],
    used: int,
    reserved: int | None,
    incomplete: bool,  # noqa: FBT001 - drawn
) -> None:
    """With every part known they are the whole; with some unknown they are less.

    Processes that claim more than the device has in use are NVML's own contradiction: then what is
    unattributed is not known, and each part stays what was measured.
    """
    free = 1000 - used - (reserved or 0)
    reading = device(used, free, reserved, incomplete=incomplete)
    usage = Usage(by_server=by_server, nobodys_bytes=nobodys, kv_bytes=kv, weights_bytes=weights)
    parts = device_ledger(reading, usage)
    shares = [*by_server.values(), nobodys]
    claimed = sum(share for share in shares if share is not None)
    total = sum(part.bytes for part in parts)
    assert all(part.bytes >= 0 for part in parts)
    if None not in shares and claimed <= used and not incomplete:
        assert total == 1000
    elif claimed <= used:
        assert total <= 1000
    else:
        assert total == 1000 - used + claimed
        assert "unattributed" not in {part.component for part in parts}
    for server, share in by_server.items():
        assert share == (sum(part.bytes for part in parts if part.server == server) if share else share)


@pytest.mark.parametrize(
    "weights, divided",
    [
        (300, {"weights": 300, "kv_cache": 200, "working": 100}),
        (400, {"weights": 400, "kv_cache": 200, "working": 0}),
        (401, {"kv_cache": 200, "weights_and_working": 400}),
        (None, {"kv_cache": 200, "weights_and_working": 400}),
    ],
)
def test_weights_that_are_known_are_told_apart(weights: int | None, divided: dict[str, int]) -> None:
    """Weights that do not fit into what the process holds are somebody else's."""
    usage = Usage(
        by_server={"a": 600},
        nobodys_bytes=0,
        kv_bytes={"a": 200},
        weights_bytes={} if weights is None else {"a": weights},
    )
    parts = device_ledger(device(600, 400), usage)
    assert {part.component: part.bytes for part in parts if part.server == "a"} == divided
