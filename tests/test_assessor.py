"""Start windows, claims and findings of the real daemon, over the stand-in driver and real processes."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.assessor import Assessor
from kvwatch.finding import RuleId
from kvwatch.readings import ProcessTable
from kvwatch.wiring import Devices, open_poller
from tests.daemon import config, running, value
from tests.findings.states import Moment, Rank, vllm
from tests.nvml_standin.build import build, write_scenario
from tests.replay import Answer, edited, llamacpp_pages, replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.daemon import Running

MIB = 1 << 20
CARD = "GPU-a"


@pytest.fixture
def engine() -> Iterator[int]:
    """Return the PID of a child of the process that listens: an engine core."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


class Card:
    """A card of 46,068 MiB in a scenario file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def devices(self) -> Devices:
        """Return devices over the stand-in."""
        environment = {"LD_LIBRARY_PATH": str(build()), "KVWATCH_NVML_SCENARIO": str(self.path)}
        return Devices(environment=environment, host_pids=False)

    def holds(self, **mib: int) -> None:
        """Let processes p1, p2, ... hold so many MiB."""
        used = sum(mib.values())
        lines = [f"gpu 0 uuid={CARD} name=L40S total=46068MiB reserved=594MiB used={used}MiB"]
        lines += [f"proc gpu=0 pid={pid[1:]} type=C used={size}MiB" for pid, size in mib.items()]
        write_scenario(self.path, "\n".join(lines) + "\n")


@pytest.fixture
def card(tmp_path: Path) -> Card:
    """Return the card of this test."""
    return Card(tmp_path / "nvml.scn")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def started_now(pages: dict[str, Answer]) -> dict[str, Answer]:
    """Return vLLM's pages as of a process that has just started."""
    page = edited(
        pages["/metrics"],
        "process_start_time_seconds 1.79606249871e+09",
        f"process_start_time_seconds {time.time()}",
    )
    return {**pages, "/metrics": page}


async def document(daemon: Running) -> dict[str, Any]:
    """Return the snapshot as JSON."""
    return dict(json.loads(await daemon.text("/api/v1/snapshot")))


@pytest.mark.anyio
async def test_a_start_that_nobody_could_ask_is_told_afterwards(engine: int, card: Card) -> None:
    """While the server does not answer its neighbour grows; when it does, the window is there."""
    port = free_port()
    stranger = 3_999_999
    card.holds(**{f"p{stranger}": 1000})
    text = f"servers: [{{name: s, url: 'http://127.0.0.1:{port}', engine: vllm}}]"
    configuration = config(text, nvml="{enabled: true, deadline: 5s}")
    async with running(configuration, devices=card.devices) as daemon:
        await daemon.until(lambda series: value(series, "device_memory_used_bytes", device=CARD) is not None)
        pages = started_now(vllm_pages("idle"))
        for own, others in ((500, 1000), (9000, 7000), (20_000, 6000)):
            card.holds(**{f"p{engine}": own, f"p{stranger}": others})
            used = (own + others) * MIB
            await daemon.until(
                lambda series, used=used: value(series, "device_memory_used_bytes", device=CARD) == used  # type: ignore[misc]
            )
        async with replaying(pages, port=port):
            series = await daemon.until(
                lambda series: value(series, "server_start_neighbour_growth_bytes", server="s") is not None
            )
            snapshot = await document(daemon)
    growth = value(series, "server_start_neighbour_growth_bytes", server="s", device=CARD)
    assert growth == 6000 * MIB
    (window,) = snapshot["start_windows"]
    assert (window["server"], window["device"], window["woke"]) == ("s", CARD, False)
    assert window["grew_bytes"] == 6000 * MIB
    (neighbour,) = window["neighbours"]
    assert neighbour["pid"] == stranger
    assert (neighbour["first_bytes"], neighbour["last_bytes"]) == (1000 * MIB, 6000 * MIB)
    assert (neighbour["most_bytes"], neighbour["grew_bytes"]) == (7000 * MIB, 6000 * MIB)
    assert window["free_last_bytes"] == (46_068 - 594 - 26_000) * MIB
    assert window["started_at"] <= window["ready_at"] <= time.time()


@pytest.mark.anyio
async def test_claims_and_findings_reach_metrics_json_and_log(
    engine: int, card: Card, caplog: pytest.LogCaptureFixture
) -> None:
    """A share of a card and what sleepers would claim; a standing finding from the first poll on."""
    caplog.set_level(logging.INFO)
    card.holds(**{f"p{engine}": 20_000})
    async with (
        replaying(vllm_pages("idle")) as chat,
        replaying(llamacpp_pages("unified-q8_0", "idle")) as llama,
    ):
        text = (
            f"servers: [{{name: chat, url: '{chat.url}', share: 0.6, pid: {os.getpid()}}}, "
            f"{{name: llama, url: '{llama.url}', pool_tokens: 4096, pid: 1}}]"
        )
        async with running(
            config(text, nvml="{enabled: true, deadline: 5s}"), devices=card.devices
        ) as daemon:
            series = await daemon.until(
                lambda series: value(series, "device_share_sum_ratio", device=CARD) is not None
            )
            snapshot = await document(daemon)
    # The page of this capture shows a pin, which overrides any share: it claims what it holds.
    assert value(series, "device_share_sum_ratio", device=CARD) == 20_000 / 46_068
    assert value(series, "device_share_asleep_ratio", device=CARD) == 0
    assert value(series, "finding", rule="worst_case_over_pool", server="llama", severity="warning") == 1
    (device,) = snapshot["devices"]
    assert [(claim["server"], claim["basis"]) for claim in device["claims"]] == [("chat", "pin")]
    found = {finding["rule"]: finding for finding in snapshot["findings"]}
    assert found["worst_case_over_pool"]["next_step"].endswith(".")
    assert {subject["rule"] for subject in snapshot["unjudged"]} <= {"recompute_suspected", "preempting"}
    assert sum("worst_case_over_pool" in line for line in caplog.messages) == 1


@pytest.mark.anyio
async def test_stale_data_is_a_finding_in_place_of_all_others(card: Card) -> None:
    """While a poll takes longer than its data may be shown, the exposition itself says so."""
    card.holds()
    configuration = config("", nvml="{enabled: true, deadline: 5s}")
    async with running(configuration, devices=card.devices) as daemon:
        await daemon.until(lambda series: value(series, "device_memory_used_bytes", device=CARD) is not None)
        assert value(await daemon.series(), "finding", rule="data_stale") is None
        write_scenario(card.path, f"{card.path.read_text()}delay nvmlDeviceGetMemoryInfo* ms=forever gpu=0\n")
        series = await daemon.until(lambda series: "kvwatch_finding" in series, seconds=8)
    assert value(series, "finding", rule="data_stale", severity="critical", server="", device="") == 1
    assert "kvwatch_device_memory_used_bytes" not in series


@pytest.mark.anyio
@pytest.mark.parametrize("pace, found", [(1.0, False), (100_000.0, True)])
async def test_the_pace_of_the_rules_reaches_them(pace: float, found: bool) -> None:  # noqa: FBT001 - a case
    """A captured queue before a full pool is a finding after a minute, or at once where a minute is short."""
    async with replaying(vllm_pages("pool-full")) as replay:
        configuration = config(f"servers: [{{name: chat, url: '{replay.url}'}}]")
        async with open_poller(configuration, Devices(), pace=pace) as poller:
            await poller.poll()
            snapshot = await poller.poll()
    assert (RuleId.WAITING_POOL_FULL in {finding.rule for finding in snapshot.findings}) == found


def assess(assessor: Assessor, moment: Moment) -> list[RuleId]:
    """Return what is found after one more poll."""
    snapshot = assessor.assess(moment.snapshot(), table=ProcessTable(), reasons={"chat": None})
    return [finding.rule for finding in snapshot.findings]


def test_the_log_has_one_line_when_a_finding_begins_and_one_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not one for each poll, and none where it only cannot be told for a moment."""
    caplog.set_level(logging.INFO)
    assessor = Assessor()
    queue = Moment(servers=[vllm(Rank(usage=0.97, waiting=6))])
    away = Moment(servers=[replace(vllm(), reading=None, ranks=())])
    for moment in (queue, *(replace(queue, at=at) for at in (60.0, 65.0)), replace(away, at=70.0)):
        assess(assessor, moment)
    begun = [record for record in caplog.records if "waiting_pool_full" in record.getMessage()]
    assert [(record.levelname, "over" in record.getMessage()) for record in begun] == [("WARNING", False)]
    assess(assessor, Moment(at=75.0, servers=[vllm()]))
    assert caplog.messages[-1:] != ["waiting_pool_full: over for chat"]
    caplog.clear()
    for at, server in ((80.0, queue.servers[0]), (145.0, queue.servers[0]), (150.0, vllm())):
        assess(assessor, Moment(at=at, servers=[server]))
    assert "waiting_pool_full: over for chat" in caplog.messages


def test_a_bug_in_the_lives_costs_no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings go on, and the windows that were known stay."""
    assessor = Assessor()

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvwatch.lives.Lives.advance", fail)
    queue = Moment(servers=[vllm(Rank(usage=0.97, waiting=6))])
    assess(assessor, queue)
    assert assess(assessor, replace(queue, at=60.0)) == [RuleId.WAITING_POOL_FULL]
