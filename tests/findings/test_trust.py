"""Rules about what cannot be read or believed, and about pools that a start made smaller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.finding import RuleId
from kvwatch.lives import Poolsize
from kvwatch.observation import Neighbour, StartWindow
from kvwatch.readings import Reason, Source
from tests.findings.states import (
    CARD,
    MIB,
    Moment,
    device,
    down,
    found,
    held_for,
    inspected,
    silent,
    unjudged,
    vllm,
)

R = RuleId
WATCHED = {"servers": [vllm()], "devices": [device()]}


def outage(source: Source, target: str, reason: Reason, detail: str = "why") -> Moment:
    """Return a poll in which one source of a watched server or device is down."""
    return Moment(servers=[vllm()], devices=[device()], sources=[down(source, target, reason, detail)])


DOWN: dict[str, tuple[Moment, tuple[str, str], str]] = {
    "a server's pages": (
        outage(Source.ENGINE, "chat", Reason.UNREACHABLE, "refused"), ("chat", ""),
        "chat cannot be read: engine (unreachable)"),
    "a device": (
        outage(Source.NVML, CARD, Reason.DEVICE_LOST), ("", CARD),
        f"{CARD} cannot be read: nvml (device_lost)"),
    "a device that is gone from the list": (
        outage(Source.NVML, "GPU-9", Reason.DEVICE_LOST), ("", "GPU-9"), "GPU-9 cannot be read"),
    "the driver": (outage(Source.NVML, "driver", Reason.TIMEOUT), ("", ""), "driver cannot be read"),
    "two sources of one server": (
        Moment(servers=[vllm()], sources=[
            down(Source.ENGINE, "chat", Reason.TIMEOUT), down(Source.PROCFS, "chat", Reason.PERMISSION)]),
        ("chat", ""), "chat cannot be read: engine (timeout) and procfs (permission)"),
    "a pool that nobody states": (
        outage(Source.MODEL, "chat", Reason.UNKNOWN_POOL, "set pool_tokens and kv_unified"), ("chat", ""),
        "chat cannot be read: model (unknown_pool)"),
}  # fmt: skip

NOT_DOWN: dict[str, tuple[Moment, float]] = {
    "all is read": (Moment(servers=[vllm()], sources=[down(Source.ENGINE, "chat", None)]), 300),
    "no model is configured": (outage(Source.MODEL, "chat", Reason.NOT_ENABLED), 300),
    "it sleeps": (outage(Source.ENGINE, "chat", Reason.SLEEPING), 300),
    "it loads": (outage(Source.ENGINE, "chat", Reason.LOADING), 300),
    "the device has no such feature": (outage(Source.NVML, CARD, Reason.NOT_SUPPORTED), 300),
    "a machine without a GPU": (outage(Source.NVML, "driver", Reason.LIBRARY_NOT_FOUND), 300),
    "a restart of less than a minute": (outage(Source.ENGINE, "chat", Reason.UNREACHABLE), 55),
}  # fmt: skip


@pytest.mark.parametrize("situation", DOWN)
def test_a_source_that_stays_down(situation: str) -> None:
    """After a minute, once for each subject, with its reasons."""
    moment, subject, words = DOWN[situation]
    (finding,) = found(inspected(*held_for(60, moment)), R.SOURCE_DOWN)
    assert (finding.server, finding.device) == subject
    assert words in finding.summary


@pytest.mark.parametrize("situation", NOT_DOWN)
def test_a_source_that_is_no_fault(situation: str) -> None:
    """States are no outages, and a restart is none yet."""
    moment, seconds = NOT_DOWN[situation]
    assert found(inspected(*held_for(seconds, moment)), R.SOURCE_DOWN) == []


def test_a_driver_that_was_asked_for_is_missed() -> None:
    """`nvml: {enabled: true}` makes a missing library a fault."""
    moments = held_for(60, outage(Source.NVML, "driver", Reason.LIBRARY_NOT_FOUND))
    assert found(inspected(*moments, driver_needed=True), R.SOURCE_DOWN)


def test_the_next_step_of_an_outage_is_one_line() -> None:
    """Of a traceback only its end is told."""
    text = 'Traceback\n  File "x"\nValueError: it broke.\n'
    moment = outage(Source.MODEL, "chat", Reason.INTERNAL_ERROR, text)
    (finding,) = found(inspected(*held_for(60, moment)), R.SOURCE_DOWN)
    assert finding.next_step == (
        "Look up internal_error in docs/runbooks/KvwatchSourceDown.md: ValueError: it broke."
    )


@pytest.mark.parametrize(
    "error, words",
    [(0.25, "charges chat +25% of"), (-0.02, "charges chat -2%"), (0.01, None), (0.0, None), (None, None)],
)
def test_a_cost_model_that_disagrees(error: float | None, words: str | None) -> None:
    """More than one percent either way."""
    findings = found(inspected(Moment(servers=[vllm(model_error_ratio=error)])), R.MODEL_DISAGREES)
    assert [words in finding.summary for finding in findings if words] == ([True] if words else [])
    assert bool(findings) == (words is not None)


def test_series_that_are_missing() -> None:
    """Named, three of them at most; a complete page and a silent server are no finding."""
    server = vllm()
    assert server.reading is not None
    gone = tuple(f"vllm:gone_{number}" for number in range(5))
    lacking = replace(server, reading=replace(server.reading, missing=gone))
    (finding,) = found(
        inspected(*held_for(60, Moment(servers=[lacking]))), R.ENGINE_METRIC_MISSING
    )  # fmt: skip
    assert finding.summary == "chat lacks 5 series: vllm:gone_0, vllm:gone_1, vllm:gone_2 and 2 more"
    assert found(inspected(*held_for(55, Moment(servers=[lacking]))), R.ENGINE_METRIC_MISSING) == []
    assert found(inspected(*held_for(60, Moment(servers=[server]))), R.ENGINE_METRIC_MISSING) == []
    quiet = inspected(*held_for(60, Moment(servers=[silent()])))
    assert found(quiet, R.ENGINE_METRIC_MISSING) == []
    assert len(unjudged(quiet, R.ENGINE_METRIC_MISSING)) == 1


def start(size: int, *, ready_at: float = 0.0, setup: str = "same") -> Poolsize:
    """Return a start's pool."""
    return Poolsize(ready_at=ready_at, setup=(setup,), sizes={"0": size})


# 4.72 and 1.84 GiB of a public case, in blocks of 16 tokens.
WHOLE, RACED = 2761, 1076
SMALLER: dict[str, tuple[tuple[Poolsize, ...], bool]] = {
    "raced": ((start(WHOLE), start(RACED)), True),
    "raced twice": ((start(WHOLE), start(RACED), start(RACED)), True),
    "raced, after an unlike start": ((start(WHOLE), start(9999, setup="other"), start(RACED)), True),
    "got it back": ((start(WHOLE), start(RACED), start(WHOLE)), False),
    "grew": ((start(RACED), start(WHOLE)), False),
    "other flags": ((start(WHOLE), start(RACED, setup="other")), False),
    "some blocks of profiling": ((start(WHOLE), start(WHOLE - 40)), False),
    "the first start that was seen": ((start(RACED),), False),
    "none was seen": ((), False),
}


@pytest.mark.parametrize("situation", SMALLER)
def test_a_pool_that_a_start_made_smaller(situation: str) -> None:
    """Against the best of the starts that were alike, until one gets it back."""
    pools, fires = SMALLER[situation]
    findings = found(inspected(Moment(servers=[vllm()]), pools={"chat": pools}), R.POOL_CHANGED_SAME_FLAGS)
    assert bool(findings) == fires
    if fires:
        assert "has 1,076 blocks, 39% of the 2,761 of an earlier start" in findings[0].summary


def test_the_neighbour_that_grew_is_named() -> None:
    """The evidence of the start window stands beside the figure."""
    window = StartWindow(
        server="chat", device=CARD, started_at=90.0, ready_at=100.0, seen_from=90.0, free_first_bytes=None,
        free_last_bytes=None,
        neighbours=(
            Neighbour(
                server="embedding", name="VLLM::EngineCor", pid=77, first_bytes=0, last_bytes=11_154 * MIB,
                most_bytes=11_154 * MIB,
            ),
        ),
    )  # fmt: skip
    moment = Moment(servers=[vllm()], more={"start_windows": (window,)})
    pools = {"chat": (start(WHOLE), start(RACED, ready_at=100.0))}
    (finding,) = found(inspected(moment, pools=pools), R.POOL_CHANGED_SAME_FLAGS)
    assert finding.summary.endswith("; embedding (process 77) grew by 11,154 MiB while it started")


def test_a_smaller_pool_of_a_server_that_is_away_cannot_be_judged() -> None:
    """It may come back with its whole pool."""
    inspection = inspected(Moment(servers=[silent()]), pools={"chat": (start(WHOLE), start(RACED))})
    assert found(inspection, R.POOL_CHANGED_SAME_FLAGS) == []
    assert len(unjudged(inspection, R.POOL_CHANGED_SAME_FLAGS)) == 1
