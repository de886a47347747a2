"""One poll over sources that fail in every way: what they cost, and what they leave untouched."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from kvwatch.poller import Poller, Watch
from kvwatch.readings import (
    DeviceReading,
    GpuProcess,
    NvmlReading,
    Outcome,
    Page,
    ProcessIdentity,
    ProcessTable,
    Reason,
    Source,
    SourceError,
)
from kvwatch.snapshot import Component, Match
from kvwatch.sources.contract import Sources
from kvwatch.sources.local import LocalSource
from kvwatch.sources.threads import BlockingCalls
from kvwatch.target import Target
from tests.replay import vllm_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvwatch.plan import Model
    from kvwatch.snapshot import Snapshot

pytestmark = pytest.mark.anyio

PAGES = vllm_pages("draining")
CHAT = Target(name="chat", url="http://127.0.0.1:8000", host="127.0.0.1", port=8000, engine="vllm")
CARD = DeviceReading(
    uuid="GPU-a",
    index=0,
    name="A",
    driver="1",
    total_bytes=1000,
    used_bytes=600,
    free_bytes=380,
    reserved_bytes=20,
    memory_version=2,
    processes=(GpuProcess(pid=11, used_bytes=500),),
)
TABLE = ProcessTable(
    processes={
        10: ProcessIdentity(pid=10, start_ticks=1, parent_pid=1, name="vllm"),
        11: ProcessIdentity(pid=11, start_ticks=2, parent_pid=10, name="VLLM::EngineCor"),
    },
    listeners={"chat": (10,)},
    outcomes=(Outcome(source=Source.PROCFS, target="chat", reason=None),),
)


@dataclass
class Fakes:
    """The four outside worlds, each replaceable by one that misbehaves."""

    devices: Callable[[], NvmlReading] = lambda: NvmlReading(
        devices=(CARD,), outcomes=(Outcome(source=Source.NVML, target="GPU-a", reason=None),)
    )
    processes: Callable[[], ProcessTable] = lambda: TABLE
    private_pid_namespace: bool | None = False
    asked: list[Sequence[str]] = field(default_factory=list)

    async def poll(self) -> NvmlReading:
        """Be the device source."""
        return self.devices()

    def read(self, _: Sequence[int], servers: Sequence[object]) -> ProcessTable:
        """Be the process source."""
        self.asked.append([getattr(server, "name", "") for server in servers])
        return self.processes()

    async def fetch(self, url: str, path: str, **_: object) -> Page:
        """Be the page source; a port of 1 is unreachable."""
        if url.endswith(":1"):
            return Page(path=path, body=None, reason=Reason.UNREACHABLE, detail="refused")
        return Page(path=path, body=PAGES[path].body.decode(), status=200)


class NoModels:
    """A model source without models."""

    def read(self, path: Path) -> Model:
        """Refuse."""
        raise SourceError(Reason.NOT_FOUND, str(path))

    def find(self, _name: str, _pids: Sequence[int]) -> Model | None:
        """Find none."""
        return None


async def polled(fakes: Fakes, *, targets: Sequence[Target] = (CHAT,), host_pids: bool = True) -> Snapshot:
    """Return the snapshot of one poll."""
    return await poller_of(fakes, targets=targets, host_pids=host_pids).poll()


def poller_of(fakes: Fakes, *, targets: Sequence[Target] = (CHAT,), host_pids: bool = True) -> Poller:
    """Return a poller over the fakes."""
    return Poller(
        sources=Sources(
            devices=fakes,
            local=LocalSource(fakes, NoModels()),
            pages=fakes,
            blocking=BlockingCalls("test"),
            page_deadline_seconds=1.0,
            blocking_deadline_seconds=0.2,
            host_pids=host_pids,
        ),
        watch=Watch(
            targets=tuple(targets), interval_seconds=5.0, typical_window_seconds=900.0, share_limit_ratio=0.95
        ),
    )


def reasons(snapshot: Snapshot) -> dict[tuple[str, str], str | None]:
    """Return why each source is down."""
    return {(source.source, source.target): source.reason for source in snapshot.sources}


def ledger(snapshot: Snapshot) -> dict[Component, int]:
    """Return the first device's ledger."""
    return {part.component: part.bytes for part in snapshot.devices[0].ledger}


async def test_when_all_is_well_everything_is_joined() -> None:
    """The engine core's memory is its server's, found by the tree."""
    snapshot = await polled(Fakes())
    assert ledger(snapshot)[Component.UNDIVIDED] == 500
    assert [process.match for process in snapshot.processes] == [Match.TREE]
    assert snapshot.servers[0].ranks[0].full is not None


async def test_a_bug_in_the_device_source_costs_the_devices_only() -> None:
    """An unexpected exception becomes internal_error; the server's fits stay."""

    def fail() -> NvmlReading:
        raise RuntimeError("a bug")

    snapshot = await polled(Fakes(devices=fail))
    assert reasons(snapshot)["nvml", "driver"] == "internal_error"
    assert snapshot.devices == ()
    assert snapshot.servers[0].ranks[0].full is not None


async def test_a_hanging_proc_costs_ownership_only_and_delays_nothing_twice() -> None:
    """Past the deadline owners are unknown with a reason; while it hangs, further polls do not wait."""
    release = threading.Event()

    def hang() -> ProcessTable:
        release.wait(10)
        return TABLE

    fakes = Fakes(processes=hang)
    poller = poller_of(fakes)
    snapshot = await poller.poll()
    assert reasons(snapshot)["procfs", "chat"] == "timeout"
    assert ledger(snapshot) == {Component.RESERVED: 20, Component.FREE: 380}
    started = time.monotonic()
    snapshot = await poller.poll()
    assert time.monotonic() - started < 0.15
    assert reasons(snapshot)["procfs", "chat"] == "timeout"
    release.set()
    fakes.processes = lambda: TABLE
    for _ in range(100):
        snapshot = await poller.poll()
        if reasons(snapshot)["procfs", "chat"] is None:
            break
        time.sleep(0.01)  # noqa: ASYNC251 - the other thread needs it
    assert ledger(snapshot)[Component.UNDIVIDED] == 500


async def test_in_a_private_pid_namespace_no_process_is_attributed() -> None:
    """There the driver's PIDs mean something else: owners, other and unattributed are unknown."""
    snapshot = await polled(Fakes(private_pid_namespace=True))
    assert reasons(snapshot)["procfs", "chat"] == "namespace"
    assert snapshot.processes == ()
    assert ledger(snapshot) == {Component.RESERVED: 20, Component.FREE: 380}


async def test_simulated_devices_may_live_in_the_same_namespace() -> None:
    """The demo in a container knows its own PIDs."""
    snapshot = await polled(Fakes(private_pid_namespace=True), host_pids=False)
    assert ledger(snapshot)[Component.UNDIVIDED] == 500


async def test_a_server_that_refuses_is_not_looked_for_in_proc() -> None:
    """So that it is looked for anew, and at once, when it answers again; a configured PID is always asked."""
    fakes = Fakes()
    gone = Target(name="gone", url="http://127.0.0.1:1", host="127.0.0.1", port=1)
    pinned = Target(name="pinned", url="http://127.0.0.1:1", host="127.0.0.1", port=1, pid=10)
    await polled(fakes, targets=(CHAT, gone, pinned))
    assert fakes.asked == [["chat", "pinned"]]


async def test_servers_that_stay_keep_what_accumulated_when_the_configuration_changes() -> None:
    """Failures by reason go on counting; those of servers that left are gone."""
    gone = Target(name="gone", url="http://127.0.0.1:1", host="127.0.0.1", port=1)
    left = Target(name="left", url="http://127.0.0.1:1", host="127.0.0.1", port=1)
    poller = poller_of(Fakes(), targets=(gone, left))
    await poller.poll()
    poller.change(
        Watch(targets=(gone, CHAT), interval_seconds=1, typical_window_seconds=60, share_limit_ratio=0.5)
    )
    snapshot = await poller.poll()
    failures = {
        source.target: dict(source.failures) for source in snapshot.sources if source.source == "engine"
    }
    assert failures == {"gone": {"unreachable": 2}, "chat": {}}
    assert (snapshot.interval_seconds, snapshot.share_limit_ratio) == (1, 0.5)
