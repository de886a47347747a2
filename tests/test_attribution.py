"""A device's ledger from its processes' owners: it adds up, and what is missing has a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.attribution import Attribution, attribute
from kvwatch.ledger import device_ledger
from kvwatch.owners import NOBODY, Owner, untold
from kvwatch.readings import (
    DeviceReading,
    GpuProcess,
    Outcome,
    ProcessIdentity,
    ProcessRole,
    ProcessTable,
    Reason,
    Source,
)
from kvwatch.servers import _device_bytes
from kvwatch.snapshot import Match, ServerState
from kvwatch.target import Target

TOTAL = 10_000
CHAT, EMBED = Owner("chat", Match.TREE), Owner("embed", Match.PORT)
ORPHAN, STRAY = Owner(None, Match.NONE, orphan_of="chat"), Owner(None, Match.NONE, orphan_of="")
DOUBT = untold(Reason.AMBIGUOUS, "either's")
NO_TABLE = ProcessTable()


def device(*used: int | None, uuid: str = "GPU-0", first: int = 1, **fields: object) -> DeviceReading:
    """Return a device of 10,000 bytes, 8,000 of them in use, with processes numbered from `first`."""
    usual = {"used_bytes": 8000, "free_bytes": 1900, "reserved_bytes": 100, "memory_version": 2}
    return DeviceReading(
        uuid=uuid,
        index=0,
        name=None,
        driver=None,
        total_bytes=TOTAL,
        processes=tuple(GpuProcess(pid=pid, used_bytes=held) for pid, held in enumerate(used, first)),
        **(usual | fields),  # type: ignore[arg-type]
    )


def servers(
    devices: tuple[DeviceReading, ...],
    owners: dict[int, Owner],
    pools: dict[str, int] | None = None,
    weights: dict[str, int] | None = None,
) -> tuple[ServerState, ...]:
    """Return the servers with what their processes hold, as the join does."""
    return tuple(
        ServerState(
            target=Target(name=name, url=f"http://{name}", host=name, port=1),
            reading=None,
            device_bytes=_device_bytes(name, devices, owners),
            pool_bytes=(pools or {}).get(name),
            weights_bytes=(weights or {}).get(name),
        )
        for name in ("chat", "embed")
    )


def ledger(
    reading: DeviceReading, *owners: Owner, table: ProcessTable = NO_TABLE, **states: dict[str, int]
) -> tuple[dict[tuple[str, str], int], Attribution]:
    """Return the parts of a device whose processes have these owners, and the attribution."""
    whose = dict(enumerate(owners, 1))
    found = attribute(reading, table, whose, servers((reading,), whose, **states))
    parts = device_ledger(reading, found.usage)
    return {(part.component, part.server): part.bytes for part in parts}, found


def reason(found: Attribution) -> Reason | None:
    """Return why the memory could not be attributed; each reason has words."""
    assert found.outcome is not None
    assert (found.outcome.source, found.outcome.target) == (Source.PROCFS, "GPU-0")
    assert bool(found.outcome.detail) is (found.outcome.reason is not None)
    return found.outcome.reason


def test_an_orphan_has_a_part_of_its_own() -> None:
    """Beside the restarted server's, named after the one that is gone, or after none."""
    parts, found = ledger(device(3000, 2000, 500, 700), CHAT, ORPHAN, STRAY, NOBODY)
    assert parts == {
        ("undivided", "chat"): 3000,
        ("other", ""): 700,
        ("orphan", "chat"): 2000,
        ("orphan", ""): 500,
        ("unattributed", ""): 1800,
        ("reserved", ""): 100,
        ("free", ""): 1900,
    }
    assert reason(found) is None
    assert found.owners_known


PROXY = ProcessTable(
    processes={
        90: ProcessIdentity(pid=90, start_ticks=1, parent_pid=1, name="docker-proxy", role=ProcessRole.OTHER)
    },
    listeners={"embed": (90,)},
)
NOT_SEEN = ProcessTable(
    outcomes=(Outcome(source=Source.PROCFS, target="embed", reason=Reason.PERMISSION, detail="why"),)
)
OTHERS_TROUBLE = ProcessTable(
    outcomes=(Outcome(source=Source.PROCFS, target="discovery", reason=Reason.PERMISSION, detail="why"),)
)

# Situation -> device, owners, table; the reason, and the parts that are therefore absent.
MISSING: dict[
    str, tuple[DeviceReading, tuple[Owner, ...], ProcessTable, Reason | None, set[tuple[str, str]]]
] = {
    "nothing is amiss": (device(3000, 500), (CHAT, NOBODY), NO_TABLE, None, set()),
    "nobody is there": (device(), (), NO_TABLE, None, set()),
    "a stranger's bytes are N/A": (
        device(3000, None), (CHAT, NOBODY), NO_TABLE, Reason.NOT_SUPPORTED,
        {("other", ""), ("unattributed", "")}),
    "a server's bytes are N/A": (
        device(None, 500), (CHAT, NOBODY), NO_TABLE, Reason.NOT_SUPPORTED,
        {("undivided", "chat"), ("unattributed", "")}),
    "an orphan's bytes are N/A": (
        device(3000, None), (CHAT, ORPHAN), NO_TABLE, Reason.NOT_SUPPORTED,
        {("orphan", "chat"), ("unattributed", "")}),
    "whose a process is cannot be told": (
        device(3000, 500), (CHAT, DOUBT), NO_TABLE, Reason.AMBIGUOUS, {("other", ""), ("unattributed", "")}),
    "a server's listener is not known, and a process is left": (
        device(3000, 500), (CHAT, NOBODY), NOT_SEEN, Reason.PERMISSION,
        {("other", ""), ("unattributed", "")}),
    "a server's listener is not known, and no process is left": (
        device(3000), (CHAT,), NOT_SEEN, None, set()),
    "the search for other servers fails": (
        device(3000, 500), (CHAT, NOBODY), OTHERS_TROUBLE, None, set()),
    "a proxy listens for a server that holds nothing": (
        device(3000, 500), (CHAT, NOBODY), PROXY, Reason.AMBIGUOUS, {("other", ""), ("unattributed", "")}),
    "a private PID namespace": (
        device(processes_reason=Reason.NAMESPACE), (), NO_TABLE, Reason.NAMESPACE,
        {("other", ""), ("unattributed", "")}),
    "the driver's list is incomplete": (
        device(500, processes_reason=Reason.PERMISSION), (NOBODY,), NO_TABLE, Reason.PERMISSION,
        {("other", ""), ("unattributed", "")}),
    "processes claim more than is used": (
        device(7000, 1500), (CHAT, NOBODY), NO_TABLE, Reason.IMPLAUSIBLE, {("unattributed", "")}),
}  # fmt: skip


@pytest.mark.parametrize("situation", MISSING)
def test_what_is_missing_has_a_reason(situation: str) -> None:
    """And nothing else is missing because of it."""
    reading, owners, table, expected, missing = MISSING[situation]
    parts, found = ledger(reading, *owners, table=table)
    named = {CHAT: ("undivided", "chat"), ORPHAN: ("orphan", "chat")}
    whole = {named[owner] for owner in owners if owner in named}
    whole |= {("other", ""), ("unattributed", ""), ("reserved", ""), ("free", "")}
    assert reason(found) is expected
    assert set(parts) == whole - missing
    assert (sum(parts.values()) == TOTAL) is (not missing)


@pytest.mark.parametrize(
    "pools, weights, words",
    [({"chat": 3001}, {}, "pool of 3001"), ({"chat": 2000}, {"chat": 1001}, "weights of 1001")],
)
def test_figures_that_contradict_each_other_are_said(
    pools: dict[str, int], weights: dict[str, int], words: str
) -> None:
    """The memory stays whole, its division is not made up."""
    parts, found = ledger(device(3000), CHAT, pools=pools, weights=weights)
    assert reason(found) is Reason.IMPLAUSIBLE
    assert found.outcome is not None
    assert words in found.outcome.detail
    assert sum(held for (_, server), held in parts.items() if server == "chat") == 3000
    assert sum(parts.values()) == TOTAL


def test_a_divided_device_is_told_by_its_instances() -> None:
    """It has no parts of its own and nothing to be said of them."""
    whole = device(divided=True, processes_reason=Reason.NOT_SUPPORTED, used_bytes=None, free_bytes=None)
    parts, found = ledger(replace(whole, reserved_bytes=None))
    assert (parts, found.outcome) == ({}, None)


def test_ranks_on_several_devices_have_their_parts_on_each() -> None:
    """Weights, pool and working memory of two tensor-parallel ranks, each card adding up."""
    cards = (device(5000), device(5200, uuid="GPU-1", first=2))
    owners = {1: CHAT, 2: CHAT}
    states = servers(cards, owners, {"chat": 3000}, {"chat": 1500})
    for card, working in zip(cards, (500, 700), strict=True):
        parts = device_ledger(card, attribute(card, NO_TABLE, owners, states).usage)
        own = {part.component: part.bytes for part in parts if part.server == "chat"}
        assert own == {"weights": 1500, "kv_cache": 3000, "working": working}
        assert sum(part.bytes for part in parts) == TOTAL


OWNERS = (CHAT, EMBED, NOBODY, ORPHAN, STRAY, DOUBT)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[tuple[DeviceReading, ...], dict[int, Owner], tuple[ServerState, ...]]:
    """Return devices with any processes of anybody, of drivers old and new, whole and failing."""
    cards, owners = [], {}
    for index in range(draw(st.integers(1, 3))):
        first = 1 + 10 * index
        used = draw(st.lists(st.none() | st.integers(0, 4000), max_size=4))
        owners.update({pid: draw(st.sampled_from(OWNERS)) for pid in range(first, first + len(used))})
        reserved = draw(st.none() | st.integers(0, 200))
        in_use = draw(st.integers(0, TOTAL - 200))
        memory: dict[str, object] = {
            "used_bytes": in_use,
            "free_bytes": TOTAL - in_use - (reserved or 0),
            "reserved_bytes": reserved,
            "memory_version": 1 if reserved is None else 2,
        }
        if draw(st.integers(0, 5)) == 0:
            memory = {**dict.fromkeys(memory), "memory_reason": Reason.NOT_SUPPORTED}
        reason = draw(st.sampled_from((None, None, Reason.PERMISSION, Reason.TIMEOUT)))
        cards.append(device(*used, uuid=f"GPU-{index}", first=first, processes_reason=reason, **memory))
    sizes = st.dictionaries(st.sampled_from(("chat", "embed")), st.integers(0, 5000))
    return tuple(cards), owners, servers(tuple(cards), owners, draw(sizes), draw(sizes))


@settings(max_examples=200, deadline=None)
@given(scenes())
def test_the_parts_add_up_or_something_says_why_not(
    scene: tuple[tuple[DeviceReading, ...], dict[int, Owner], tuple[ServerState, ...]],
) -> None:
    """Each process is in one part, none is negative, and a ledger with a hole has a reason somewhere."""
    cards, owners, states = scene
    for card in cards:
        found = attribute(card, NO_TABLE, owners, states)
        assert found.outcome is not None
        parts = device_ledger(card, found.usage)
        total = sum(part.bytes for part in parts)
        claimed = sum(process.used_bytes or 0 for process in card.processes)
        assert len({(part.component, part.server) for part in parts}) == len(parts)
        assert all(part.bytes >= 0 for part in parts)
        if card.used_bytes is None or claimed <= card.used_bytes:
            assert total <= TOTAL
        silent = found.outcome.reason is None and card.memory_reason is None
        if silent:
            assert total == TOTAL
        if card.memory_reason is None and total != TOTAL:
            assert found.outcome.reason is not None
        if found.outcome.reason is None:
            assert claimed == sum(part.bytes for part in parts if part.server or part.component in _HELD)


_HELD = ("other", "orphan")
