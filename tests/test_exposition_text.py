"""Reading of Prometheus text: only what is wanted, and strictly."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.engines.exposition_text import read_samples
from kvwatch.readings import Reason, SourceError, SumCount

WANTED = ("e:a", "e:b_sum", "e:b_count")


def read(body: str, **options: object) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return what is wanted of a page."""
    samples = read_samples(body, wanted=WANTED, **options)  # type: ignore[arg-type]
    return {
        name: [(dict(labels), value) for labels, value in series] for name, series in samples.by_name.items()
    }


GOOD = {
    "a bare sample": ("e:a 1\n", {"e:a": [({}, 1.0)]}),
    "labels": ('e:a{x="1",y="2"} 3.5\n', {"e:a": [({"x": "1", "y": "2"}, 3.5)]}),
    "labels in another order": ('e:a{y="2",x="1"} 3.5\n', {"e:a": [({"x": "1", "y": "2"}, 3.5)]}),
    "two series": ('e:a{x="1"} 1\ne:a{x="2"} 2\n', {"e:a": [({"x": "1"}, 1.0), ({"x": "2"}, 2.0)]}),
    "quotes, backslashes, brackets and a line feed in a label": (
        'e:a{x="[\'0\'] \\"}, \\\\ \\n"} 1\n', {"e:a": [({"x": "['0'] \"}, \\ \n"}, 1.0)]}),
    "a comma after the last label": ('e:a{x="1",} 1\n', {"e:a": [({"x": "1"}, 1.0)]}),
    "a timestamp": ("e:a 1 1700000000000\n", {"e:a": [({}, 1.0)]}),
    "six significant digits": ("e:a 1.04858e+06\n", {"e:a": [({}, 1_048_580.0)]}),
    "no wanted line": ("# HELP other x\nother 1\n", {}),
    "an unwanted line that is broken": ('other{x="1 2\ne:a 1\n', {"e:a": [({}, 1.0)]}),
    "an unwanted value that is no number": ("other NaN\ne:a 1\n", {"e:a": [({}, 1.0)]}),
    "a longer name that starts alike": ("e:ab 7\ne:a_created 9\ne:a 1\n", {"e:a": [({}, 1.0)]}),
    "a TYPE line that lies": ("# TYPE e:a counter\ne:a 5\n", {"e:a": [({}, 5.0)]}),
    "comments and empty lines": ("\n# a comment\n\ne:a 1\n\n", {"e:a": [({}, 1.0)]}),
    "the end-of-file mark": ("e:a 1\n# EOF\n", {"e:a": [({}, 1.0)]}),
    "nothing but line feeds": ("\n\n", {}),
}  # fmt: skip


@pytest.mark.parametrize("situation", GOOD)
def test_a_page_is_read(situation: str) -> None:
    """Wanted samples come out with their labels unescaped; the rest of the page does not matter."""
    body, expected = GOOD[situation]
    assert read(body) == expected


@pytest.mark.parametrize("line", ['e_a{x="1"} 1\n', 'e:a{x="1"} 1\n'])
def test_other_spellings_are_the_same_series(line: str) -> None:
    """A page in OpenMetrics' spelling, or one relayed with underscores, is read all the same."""
    assert read(line, spellings={"e_": "e:"}) == {"e:a": [({"x": "1"}, 1.0)]}


PARSE, AMBIGUOUS = Reason.PARSE_ERROR, Reason.AMBIGUOUS
BAD = {
    "empty": ("", PARSE),
    "cut in a number": ("e:a 1\ne:b_sum 12", PARSE),
    "cut in a label": ('e:a{x="1', PARSE),
    "HTML": ("<!DOCTYPE html>\n<p>no</p>\n", PARSE),
    "JSON": ('{"error": 1}\n', PARSE),
    "binary": ("\x00\x01\x7f\n", PARSE),
    "no value": ("e:a\n", PARSE),
    "a word for a value": ("e:a many\n", PARSE),
    "not a number": ("e:a NaN\n", PARSE),
    "infinity": ("e:a +Inf\n", PARSE),
    "too large for a double": ("e:a 1e999\n", PARSE),
    "two values": ("e:a 1 2 3\n", PARSE),
    "a time beyond all doubles": (f"e:a 1 {'9' * 400}\n", PARSE),
    "an unclosed quote": ('e:a{x="1} 1\n', PARSE),
    "an unclosed bracket": ('e:a{x="1" 1\n', PARSE),
    "a label without quotes": ("e:a{x=1} 1\n", PARSE),
    "a line feed in a label": ('e:a{x="1\n2"} 1\n', PARSE),
    "the same series twice": ("e:a 1\ne:a 1\n", AMBIGUOUS),
    "the same series twice, labels in another order": (
        'e:a{x="1",y="2"} 1\ne:a{y="2",x="1"} 1\n', AMBIGUOUS),
}  # fmt: skip


@pytest.mark.parametrize("situation", BAD)
def test_a_page_that_cannot_be_trusted_is_refused(situation: str) -> None:
    """Half a page gives no half reading."""
    body, reason = BAD[situation]
    with pytest.raises(SourceError) as caught:
        read(body)
    assert caught.value.reason is reason


def test_the_same_series_in_two_spellings_is_there_twice() -> None:
    """Mixed spellings cannot smuggle in a second value."""
    with pytest.raises(SourceError) as caught:
        read("e:a 1\ne_a 2\n", spellings={"e_": "e:"})
    assert caught.value.reason is AMBIGUOUS


def test_one_value_is_asked_for_and_two_are_ambiguous() -> None:
    """No first, last or largest is picked; an absent one is unknown."""
    samples = read_samples('e:a{x="1"} 1\ne:a{x="2"} 2.5\ne:b_sum 4\n', wanted=WANTED)
    with pytest.raises(SourceError) as caught:
        samples.value("e:a")
    assert caught.value.reason is AMBIGUOUS
    assert samples.select({"x": "1"}).value("e:a") == 1
    assert samples.select({"x": "3"}).value("e:a") is None
    assert samples.select({"x": "1"}).count("e:a") == 1
    assert samples.sum_count("e:b") is None, "a sum without its count"
    for labels in ({"x": "2"},):
        with pytest.raises(SourceError) as caught:
            samples.select(labels).count("e:a")
        assert caught.value.reason is PARSE


def test_sum_and_count_come_together() -> None:
    """A histogram's buckets do not matter."""
    samples = read_samples('e:b_bucket{le="1"} 3\ne:b_sum 4.5\ne:b_count 9\n', wanted=WANTED)
    assert samples.sum_count("e:b") == SumCount(sum=4.5, count=9)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200) | st.text(alphabet='e:a_{}",=\\ 1\n', max_size=200))
def test_any_text_is_read_or_refused(body: str) -> None:
    """No page raises anything but its own reason."""
    try:
        read(body)
    except SourceError as error:
        assert error.reason in (PARSE, AMBIGUOUS)  # noqa: PT017 - not raising is right too


@pytest.mark.parametrize(
    "line",
    ["e:a{" + '} "' * 30_000, "e:a" + " " * 60_000 + "b" + " " * 60_000 + "c", "e:a{" + "x" * 200_000],
    ids=["brackets", "blanks", "a long label"],
)
def test_a_hostile_line_costs_no_time(line: str) -> None:
    """Reading is linear: what would take quadratic time here takes minutes."""
    started = time.process_time()
    with pytest.raises(SourceError):
        read(line + "\n")
    assert time.process_time() - started < 2
