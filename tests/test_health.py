"""The health of sources over several polls."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvwatch.health import Health
from kvwatch.readings import Outcome, Reason, Source

if TYPE_CHECKING:
    import pytest

ENGINE, MODEL, NVML = Source.ENGINE, Source.MODEL, Source.NVML


def outcome(
    reason: Reason | None = None, *, source: Source = ENGINE, target: str = "chat", detail: str = ""
) -> Outcome:
    """Return what one attempt gave."""
    return Outcome(source=source, target=target, reason=reason, detail=detail, duration_seconds=0.25)


def test_a_source_that_never_worked_has_no_last_success() -> None:
    """Absent, not zero."""
    (state,) = Health().assess([outcome(Reason.UNREACHABLE, detail="refused")], now=100.0)
    assert (state.reason, state.detail, state.last_success_at) == (Reason.UNREACHABLE, "refused", None)
    assert (state.failures, state.duration_seconds) == ({Reason.UNREACHABLE: 1}, 0.25)


def test_failures_add_up_by_reason_and_the_last_success_stays() -> None:
    """A success clears the reason, not the count."""
    health = Health()
    reasons = [None, Reason.TIMEOUT, Reason.TIMEOUT, Reason.LOADING, None]
    states = [health.assess([outcome(reason)], now=float(now))[0] for now, reason in enumerate(reasons, 1)]
    assert [state.last_success_at for state in states] == [1, 1, 1, 1, 5]
    assert [state.reason for state in states] == reasons
    assert states[0].failures == {}
    assert states[-1].failures == {Reason.TIMEOUT: 2, Reason.LOADING: 1}


def test_sources_are_apart_and_in_a_fixed_order() -> None:
    """One server's failure is not another's; a source that was not tried is not there."""
    health = Health()
    states = health.assess(
        [
            outcome(target="embed"),
            outcome(Reason.TIMEOUT),
            outcome(source=NVML, target="driver"),
            outcome(Reason.NOT_ENABLED, source=MODEL),
        ],
        now=1.0,
    )
    assert [(state.source, state.target, state.reason) for state in states] == [
        (ENGINE, "chat", Reason.TIMEOUT),
        (ENGINE, "embed", None),
        (MODEL, "chat", Reason.NOT_ENABLED),
        (NVML, "driver", None),
    ]
    assert [state.target for state in health.assess([outcome()], now=2.0)] == ["chat"]


def test_one_line_for_each_change_of_state(caplog: pytest.LogCaptureFixture) -> None:
    """Silence while nothing changes; what is merely switched off is no warning."""
    caplog.set_level(logging.INFO)
    health = Health()
    for now, reason in enumerate(
        [None, None, Reason.TIMEOUT, Reason.TIMEOUT, Reason.LOADING, None, None, Reason.NOT_ENABLED]
    ):
        health.assess([outcome(reason, detail="why")], now=float(now))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "engine chat: timeout (why)"),
        ("WARNING", "engine chat: loading (why)"),
        ("INFO", "engine chat: works again"),
        ("INFO", "engine chat: not_enabled (why)"),
    ]


def test_a_source_that_is_down_from_the_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The first failure is a change too."""
    Health().assess([outcome(Reason.UNREACHABLE)], now=1.0)
    assert len(caplog.records) == 1


def test_a_server_that_is_no_longer_watched_is_forgotten() -> None:
    """One of the same name that comes later starts anew; devices are nobody's to forget."""
    health = Health()
    health.assess(
        [
            outcome(Reason.TIMEOUT),
            outcome(Reason.TIMEOUT, target="embed"),
            outcome(Reason.DEVICE_LOST, source=NVML, target="GPU-0"),
        ],
        now=1.0,
    )
    health.forget_servers_except({"embed"})
    states = health.assess(
        [outcome(), outcome(target="embed"), outcome(source=NVML, target="GPU-0")], now=2.0
    )
    assert [state.failures for state in states] == [
        {},
        {Reason.TIMEOUT: 1},
        {Reason.DEVICE_LOST: 1},
    ]
