"""What public reports quote of their logs is read to the last figure."""

from __future__ import annotations

import pytest

from kvwatch.startup_log.difference import compare
from tests.startup_log.public_cases import CASES, RACE
from tests.startup_log.reading import documents, only, read


@pytest.mark.parametrize("name", CASES)
def test_report(name: str) -> None:
    """Each figure of the report is there, and what it does not print is absent."""
    case = CASES[name]
    starts = documents(case.log)
    assert len(starts) == len(case.starts)
    for start, expected in zip(starts, case.starts, strict=True):
        assert {key: start.get(key) for key in expected} == expected


def test_two_instances_that_started_together() -> None:
    """C39: the same flags and weights, and 61 % of the pool gone: a neighbour is suspected."""
    old, new = (only(read(log)) for log in RACE)
    difference = compare(old, new)

    moved = {row.name: row.moved for row in difference.rows}
    assert (moved["KV cache"], moved["tokens"], moved["weights"]) == ("-2.88 GiB", "-26,960", "same")
    assert difference.settings == ()
    assert difference.sentences[0] == "The KV cache moved by -2.88 GiB, -61 %."
    assert (
        "another process most likely took card memory while this server profiled" in difference.sentences[1]
    )
