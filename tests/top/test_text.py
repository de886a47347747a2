"""Text in cells and bars: foreign strings are made safe, nothing is wider than its room, cells sum."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.top import fields
from kvwatch.top.bars import apportion, pool_bar
from kvwatch.top.cells import clip, fit_line, line, pad, width, wrap
from kvwatch.top.glyphs import ASCII, UNICODE
from kvwatch.top.keys import State
from kvwatch.top.screen import screen_of
from tests.top.sights import feed_of, rush, screen, text_of

_HOSTILE = "\x1b]0;owned\x07\x1b[2Jchat\x9b31m\r\n\u202echat\u200b\u2028\ud800"


@pytest.mark.parametrize(
    "given_text, shown",
    [
        ("chat", "chat"),
        ("modèle 模型", "modèle 模型"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202eevil", "\\u202eevil"),
        (7, None),
        (None, None),
    ],
)
def test_foreign_text_is_safe(given_text: object, shown: str | None) -> None:
    """Whatever a terminal could take for a command, or that reorders a line, is written as an escape."""
    assert fields.word(given_text) == shown


@pytest.mark.parametrize(
    "value, read",
    [
        (3, 3.0),
        (0, 0.0),
        (True, None),
        ("3", None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        (None, None),
        ([1], None),
    ],
)
def test_number_is_a_finite_number_or_unknown(value: object, read: float | None) -> None:
    """No figure is made of what is none."""
    assert fields.number(value) == read


def test_hostile_document_reaches_no_screen_as_a_command() -> None:
    """Every string of a document replaced by escape sequences leaves every page printable."""
    document = _replace_strings(rush())
    for keys in ("", "c", "f", "u", "enter"):
        text = text_of(screen(document, keys=[keys], rows=50))
        assert "".join(text.splitlines()).isprintable(), keys
        assert "\\x1b" in text


def _replace_strings(value: Any) -> Any:
    """Replace the strings that others than kvwatch could have chosen."""
    if isinstance(value, dict):
        return {
            key: item if key in ("component", "severity", "uuid") else _replace_strings(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_replace_strings(item) for item in value]
    return f"{value}{_HOSTILE}" if isinstance(value, str) else value


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "target",
                    "name",
                    "reading",
                    "ranks",
                    "full",
                    "guaranteed",
                    "index",
                    "ledger",
                    "bytes",
                    "slots",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "servers",
                "devices",
                "findings",
                "sources",
                "unjudged",
                "taken_at",
                "processes",
                "capacity_changes",
            ]
        ),
        _JSON | st.lists(_JSON, max_size=2),
    )
)
def test_any_document_can_be_shown(document: dict[str, Any]) -> None:
    """A document of another version, or of a liar, is shown with unknowns and never raises."""
    feed, now = feed_of({**document, "taken_at": 5000.0})
    shown = screen_of(feed, State(), now, UNICODE, cells=80, rows=24)
    assert all(line.text.isprintable() for line in shown.lines)


@pytest.mark.parametrize(
    "text, cells", [("", 0), ("chat", 4), ("模型", 4), ("e\u0301", 1), ("a模", 3), ("\u200d", 0)]
)
def test_width_is_that_of_the_terminal(text: str, cells: int) -> None:
    """Wide characters take two cells, combining ones none."""
    assert width(text) == cells


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30), st.integers(min_value=0, max_value=20))
def test_nothing_is_wider_than_its_room(text: str, cells: int) -> None:
    """Clipping and wrapping keep to the room; what is padded fills it."""
    assert width(clip(text, cells, "~")) <= cells
    assert width(pad(clip(text, cells, "~"), cells)) == cells
    assert width(fit_line(line(text, text), cells, "~").text) <= cells
    assert all(width(one) <= max(2, cells) for one in wrap(text, cells))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=1 << 40), min_size=1, max_size=12), st.integers(0, 200))
def test_cells_of_a_ledger_sum_to_its_bar(amounts: list[int], cells: int) -> None:
    """Cells are shared out to the last; whoever holds something is seen where there is room for all."""
    shares = apportion(amounts, cells)
    assert all(share >= 0 for share in shares)
    if sum(amounts):
        assert sum(shares) == cells
    if cells >= len(amounts):
        assert all(
            share > 0 for share, amount in zip(shares, amounts, strict=True) if amount and sum(amounts)
        )


@pytest.mark.parametrize(
    "ratio, bar",
    [
        (0.0, "[........]"),
        (0.001, "[#.......]"),
        (0.5, "[####....]"),
        (0.999, "[#######.]"),
        (1.0, "[########]"),
        (None, "[????????]"),
    ],
)
def test_pool_bar_is_full_only_where_the_pool_is(ratio: float | None, bar: str) -> None:
    """A pool that is nearly full or nearly empty does not look full or empty, and unknown is neither."""
    assert "".join(span.text for span in pool_bar(ratio, 10, ASCII, current=True)) == bar
