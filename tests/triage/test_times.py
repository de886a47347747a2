"""Moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from kvwatch.triage.times import MomentError, parse_moment

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 10, 25, 9, 30, tzinfo=BERLIN).timestamp()
"""The morning after the clocks went back."""


@pytest.mark.parametrize(
    "text, expected",
    [
        ("now", datetime(2026, 10, 25, 9, 30, tzinfo=BERLIN)),
        ("2026-10-24T14:00", datetime(2026, 10, 24, 14, 0, tzinfo=BERLIN)),
        ("2026-10-24 14:00:30", datetime(2026, 10, 24, 14, 0, 30, tzinfo=BERLIN)),
        ("2026-10-24T14:00Z", datetime(2026, 10, 24, 14, 0, tzinfo=UTC)),
        ("2026-10-24T14:00+05:30", datetime(2026, 10, 24, 8, 30, tzinfo=UTC)),
        ("2026-10-24", datetime(2026, 10, 24, 0, 0, tzinfo=BERLIN)),
        ("yesterday 14:00", datetime(2026, 10, 24, 14, 0, tzinfo=BERLIN)),
        ("Yesterday at 14:00", datetime(2026, 10, 24, 14, 0, tzinfo=BERLIN)),
        ("yesterday", datetime(2026, 10, 24, 0, 0, tzinfo=BERLIN)),
        ("today 08:15", datetime(2026, 10, 25, 8, 15, tzinfo=BERLIN)),
        ("08:15", datetime(2026, 10, 25, 8, 15, tzinfo=BERLIN)),
        ("23:00", datetime(2026, 10, 24, 23, 0, tzinfo=BERLIN)),
        ("1792827000", datetime.fromtimestamp(1_792_827_000, UTC)),
    ],
)
def test_a_moment_is_read_as_it_is_meant(text: str, expected: datetime) -> None:
    """Without a zone it is the machine's; a time of day alone is the last such time."""
    assert parse_moment(text, NOW, BERLIN) == expected.timestamp()


@pytest.mark.parametrize(
    "text, seconds",
    [("-2h", 7200), ("2h", 7200), ("90m ago", 5400), ("1.5h", 5400), ("-3d", 259_200), ("1w", 604_800)],
)
def test_an_age_is_a_moment(text: str, seconds: float) -> None:
    """With or without a sign, with or without `ago`."""
    assert parse_moment(text, NOW, BERLIN) == NOW - seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "12:60", "2026-13-01", "-2", "2 fortnights", "today 24:01", "1e9"]
)
def test_what_is_no_moment_is_refused_with_what_is(text: str) -> None:
    """The message shows the text and the ways to write one."""
    with pytest.raises(MomentError, match="write 2026-11-30T14:00"):
        parse_moment(text, NOW, BERLIN)
