"""Rules about who holds a device's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.finding import RuleId
from kvwatch.readings import EngineReading, RankReading, Reason
from kvwatch.snapshot import Claim, ClaimBasis, Component, LedgerPart, Match, ProcessState
from tests.findings.states import (
    CARD,
    MIB,
    Moment,
    device,
    found,
    held_for,
    inspected,
    silent,
    unjudged,
    vllm,
)

if TYPE_CHECKING:
    from kvwatch.snapshot import DeviceState, ServerState

R = RuleId


def claim(server: str, ratio: float | None, *, asleep: bool = False) -> Claim:
    """Return a claim."""
    why = "" if ratio is not None else "what its processes hold is not known"
    return Claim(server=server, ratio=ratio, basis=ClaimBasis.SHARE, asleep=asleep, why=why)


def shared(*claims: Claim, total: float | None, complete: bool = True) -> list[DeviceState]:
    """Return the card with these claims."""
    return [device(claims=claims, share_sum_ratio=total, claims_complete=complete)]


A, B = claim("chat", 0.57), claim("embedding", 0.45)
GONE = {"device_bytes": {}}
SHARED = {"device_bytes": {CARD: 1}}
PLAIN = EngineReading(engine="llamacpp", ranks=(RankReading(rank="0"),))


def orphaned(*pids: int, server: str = "chat") -> Moment:
    """Return a card of which these processes, 1,000 MiB each, are orphans."""
    part = LedgerPart(component=Component.ORPHAN, server=server, bytes=1000 * MIB * len(pids))
    return Moment(
        devices=[device(ledger=(part,))],
        more={
            "processes": tuple(
                ProcessState(
                    device=CARD, pid=pid, used_bytes=1000 * MIB, name="VLLM::EngineCor", server=server,
                    match=Match.NONE, orphan=True,
                )
                for pid in pids
            )
        },
    )  # fmt: skip


def pinned(pool_mib: int | None, *, share: float | None = None, held_mib: int = 11_154) -> ServerState:
    """Return a server pinned to 1,761 MiB."""
    return vllm(
        name="embedding", share=share, pin=1761 * MIB,
        pool_bytes=None if pool_mib is None else pool_mib * MIB, device_bytes={CARD: held_mib * MIB},
    )  # fmt: skip


def counted_by_hand(server: ServerState) -> ServerState:
    """Return the server with --num-gpu-blocks-override."""
    assert server.reading is not None
    settings = (("num_gpu_blocks_override", "100"),)
    return replace(server, reading=replace(server.reading, settings=settings))


FIRES: dict[str, tuple[RuleId, float, Moment, str]] = {
    "two shares": (
        R.SHARE_SUM_OVER_LIMIT, 0, Moment(devices=shared(A, B, total=1.02)),
        "claim 1.02 of it together, limit 0.95: chat 0.57 (share) and embedding 0.45 (share)"),
    "over the limit whatever the third claims": (
        R.SHARE_SUM_OVER_LIMIT, 0, Moment(devices=shared(A, B, claim("third", None), total=None)),
        "claim at least 1.02 of it"),
    "a claim that nobody knows": (
        R.SHARE_SUM_UNKNOWN, 60, Moment(devices=shared(A, claim("third", None), total=None)),
        "what third claims of GPU 0 (L40S) is not known"),
    "a process that may be a server's": (
        R.SHARE_SUM_UNKNOWN, 60, Moment(devices=shared(A, total=None, complete=False)),
        "who holds GPU 0 (L40S) is not known for every process"),
    "two vLLM servers with shares": (
        R.UNPINNED_NEIGHBOURS, 0,
        Moment(devices=[device()], servers=[vllm(**SHARED), vllm(name="embedding", **SHARED)]),
        "chat and embedding share GPU 0 (L40S), each with a share and none with a pin"),
    "two of three": (
        R.UNPINNED_NEIGHBOURS, 0,
        Moment(
            devices=[device()],
            servers=[vllm(**SHARED), vllm(name="b", **SHARED), vllm(name="c", share=None, pin=9, **SHARED)],
        ), "chat and b share"),
    "a pin that is not what the pool takes": (
        R.PIN_OUT_OF_STEP, 0, Moment(devices=[device()], servers=[pinned(6410)]),
        "embedding is pinned to 1,761 MiB, and its pool takes 6,410 MiB"),
    "a pin that exceeds the share beside it": (
        R.PIN_OUT_OF_STEP, 0,
        Moment(devices=[device()], servers=[pinned(1760, share=0.25, held_mib=14_000)]),
        "holds 14,000 MiB, 0.30 of its device, though its flags still say a share of 0.25"),
    "an engine that outlived its server": (
        R.ORPHAN_MEMORY, 60, orphaned(4711),
        "1,000 MiB of GPU 0 (L40S) are held by process 4711, left behind by chat"),
    "two workers, and it is not known whose": (
        R.ORPHAN_MEMORY, 60, orphaned(4711, 4712, server=""),
        "held by processes 4711 and 4712, left behind by a server that is gone"),
}  # fmt: skip

SILENT: dict[str, tuple[RuleId, float, Moment]] = {
    "two shares at the limit": (
        R.SHARE_SUM_OVER_LIMIT, 300,
        Moment(devices=shared(claim("a", 0.03), claim("b", 0.92), total=0.03 + 0.92))),
    "one over and one asleep": (
        R.SHARE_SUM_OVER_LIMIT, 300, Moment(devices=shared(A, claim("b", 0.9, asleep=True), total=0.57))),
    "nobody claims": (R.SHARE_SUM_OVER_LIMIT, 300, Moment(devices=[device()])),
    "all claims are known": (R.SHARE_SUM_UNKNOWN, 300, Moment(devices=shared(A, total=0.57))),
    "unknown for less than a minute": (
        R.SHARE_SUM_UNKNOWN, 55, Moment(devices=shared(claim("third", None), total=None))),
    "one vLLM server": (R.UNPINNED_NEIGHBOURS, 60, Moment(devices=[device()], servers=[vllm(**SHARED)])),
    "one of two is pinned": (
        R.UNPINNED_NEIGHBOURS, 60,
        Moment(devices=[device()], servers=[vllm(**SHARED), vllm(name="b", share=None, pin=9, **SHARED)])),
    "on two devices": (
        R.UNPINNED_NEIGHBOURS, 60,
        Moment(devices=[device()], servers=[vllm(**SHARED), vllm(name="b", device_bytes={"GPU-1": 1})])),
    "beside a llama-server, which measures nothing": (
        R.UNPINNED_NEIGHBOURS, 60,
        Moment(devices=[device()], servers=[vllm(**SHARED), silent("llama", reading=PLAIN, **SHARED)])),
    "sized by a block count": (
        R.UNPINNED_NEIGHBOURS, 60,
        Moment(devices=[device()], servers=[vllm(**SHARED), vllm(name="b", share_ratio=None, **SHARED)])),
    "a pin rounded to whole blocks": (
        R.PIN_OUT_OF_STEP, 60, Moment(devices=[device()], servers=[pinned(1760, share=0.25)])),
    "the default share beside a pin": (
        R.PIN_OUT_OF_STEP, 60, Moment(devices=[device()], servers=[pinned(1760, share=0.92)])),
    "a block count that overrides the pin": (
        R.PIN_OUT_OF_STEP, 60, Moment(devices=[device()], servers=[counted_by_hand(pinned(3))])),
    "no pin": (R.PIN_OUT_OF_STEP, 60, Moment(devices=[device()], servers=[vllm()])),
    "a server that ends takes its engine with it within a minute": (R.ORPHAN_MEMORY, 55, orphaned(4711)),
    "no orphan": (R.ORPHAN_MEMORY, 300, Moment(devices=[device()])),
}  # fmt: skip

LOST = replace(device().reading, processes_reason=Reason.TIMEOUT)
UNTOLD: dict[str, tuple[RuleId, Moment]] = {
    "below the limit as far as is known": (
        R.SHARE_SUM_OVER_LIMIT, Moment(devices=shared(A, claim("third", None), total=None))),
    "one shares and the other does not answer": (
        R.UNPINNED_NEIGHBOURS, Moment(devices=[device()], servers=[vllm(**SHARED), silent("b", **SHARED)])),
    "a page without its configuration": (
        R.UNPINNED_NEIGHBOURS,
        Moment(devices=[device()], servers=[vllm(**SHARED), vllm(name="b", share=None, **SHARED)])),
    "neither pool nor share beside a pin": (
        R.PIN_OUT_OF_STEP, Moment(devices=[device()], servers=[pinned(None)])),
    "a pinned server does not answer": (
        R.PIN_OUT_OF_STEP, Moment(devices=[device()], servers=[silent(pin_bytes=9)])),
    "the list of processes is cut": (R.ORPHAN_MEMORY, Moment(devices=[device(reading=LOST)])),
}  # fmt: skip


@pytest.mark.parametrize("situation", FIRES)
def test_what_fires(situation: str) -> None:
    """Once, with its figures and with all its words."""
    rule, seconds, moment, words = FIRES[situation]
    (finding,) = found(inspected(*held_for(seconds, moment)), rule)
    assert words in finding.summary
    assert finding.next_step.endswith(".")
    assert "None" not in finding.summary + finding.detail + finding.next_step


@pytest.mark.parametrize("situation", SILENT)
def test_what_does_not_fire(situation: str) -> None:
    """Neither a finding nor a doubt."""
    rule, seconds, moment = SILENT[situation]
    inspection = inspected(*held_for(seconds, moment))
    assert found(inspection, rule) == []
    assert unjudged(inspection, rule) == []


@pytest.mark.parametrize("situation", UNTOLD)
def test_what_cannot_be_told(situation: str) -> None:
    """No finding, and the rule stands among the unjudged."""
    rule, moment = UNTOLD[situation]
    inspection = inspected(*held_for(300, moment))
    assert found(inspection, rule) == []
    assert len(unjudged(inspection, rule)) == 1


def test_findings_of_a_device_carry_its_label_and_orphans_their_servers_name() -> None:
    """So that an alert leads to the card."""
    (finding,) = found(inspected(*held_for(60, orphaned(4711))), R.ORPHAN_MEMORY)
    assert (finding.device, finding.server) == (CARD, "chat")
    assert "kill 4711" in finding.next_step
