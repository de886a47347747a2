"""Whole screens as text: what an on-call engineer sees at the usual sizes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.top.cells import Style, width
from kvwatch.top.glyphs import ASCII, UNICODE
from tests.top.sights import fleet, rush, screen, text_of, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

_SCREENS = Path(__file__).parent / "screens"
_SIZES = ((80, 24), (60, 20), (200, 50))
_DOCUMENTS = {"rush": rush, "unknown": unknown, "fleet": fleet}
_ALL_KEYS = ("", "enter", "c", "f", "u", "?", "/")


@pytest.mark.parametrize("cells, rows", _SIZES)
@pytest.mark.parametrize("name", _DOCUMENTS)
def test_overview_is_what_it_was(name: str, cells: int, rows: int, *, update_golden: bool) -> None:
    """The overview at each size is the kept text; read the diff before you accept another."""
    shown = text_of(screen(_DOCUMENTS[name](), cells=cells, rows=rows))
    _compare(f"{name}-{cells}x{rows}", shown, update=update_golden)


@pytest.mark.parametrize(
    "name, options",
    [
        ("server", {"keys": ["enter"], "rows": 50}),
        ("cards", {"keys": ["c"]}),
        ("findings", {"keys": ["f"], "rows": 40}),
        ("help", {"keys": ["?"], "rows": 50}),
        ("filter", {"keys": ["/", "e", "m", "b"]}),
        ("stale", {"silent": True}),
        ("ascii", {"glyphs": ASCII}),
    ],
)
def test_page_is_what_it_was(name: str, options: dict[str, Any], *, update_golden: bool) -> None:
    """Each page is the kept text."""
    _compare(name, text_of(screen(rush(), **options)), update=update_golden)


def test_unknown_server_page_gives_a_reason_for_each_figure(*, update_golden: bool) -> None:
    """An open server whose page says nothing shows the word unknown and why, for each figure."""
    _compare(
        "unknown-server", text_of(screen(unknown(), keys=["down", "enter"], rows=50)), update=update_golden
    )


def _compare(name: str, shown: str, *, update: bool) -> None:
    file = _SCREENS / f"{name}.txt"
    if update:
        file.write_text(shown, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == shown


@pytest.mark.parametrize("cells, rows", [*_SIZES, (40, 12), (20, 5), (9, 3), (1, 1)])
@pytest.mark.parametrize("document", [rush, unknown, lambda: fleet(12), dict])
def test_screen_is_never_larger_than_the_terminal(
    document: Callable[[], dict[str, Any]], cells: int, rows: int
) -> None:
    """No page at any size is wider or higher than the terminal, current or stale."""
    for key in _ALL_KEYS:
        for silent in (False, True):
            shown = screen(document(), cells=cells, rows=rows, keys=[key], silent=silent)
            assert len(shown.lines) <= rows
            assert max(width(line.text) for line in shown.lines) <= cells, key


@pytest.mark.parametrize("cells, rows", _SIZES)
def test_worst_server_is_first(cells: int, rows: int) -> None:
    """Among 64 servers the one with a queue is in the first row and named by the first sentence."""
    lines = text_of(screen(fleet(), cells=cells, rows=rows)).splitlines()
    first = next(at for at, line in enumerate(lines) if "SERVER" in line) + 1
    assert lines[1].startswith("chat-05 cannot take one more full-length request")
    assert lines[first].startswith(">!chat-05")


def test_what_is_cut_is_counted() -> None:
    """Servers and cards that have no room are counted, so that nobody takes the screen for everything."""
    shown = text_of(screen(fleet()))
    rows = len(re.findall(r"^[ >][ !]chat-", shown, flags=re.MULTILINE))
    hidden = re.search(r"(\d+) more below", shown)
    assert hidden
    assert rows + int(hidden[1]) == 64
    cards = len(re.findall(r"^GPU \d", shown, flags=re.MULTILINE))
    more = re.search(r"(\d+) more cards", shown)
    assert more
    assert cards + int(more[1]) == 8


def test_stale_figures_all_stand_in_brackets() -> None:
    """With the daemon gone no figure of a server or a card stands as if it were current."""
    current, stale = screen(rush()), screen(rush(), silent=True)
    text = text_of(stale)
    assert "STALE: kvwatch does not answer" in text
    rows = [line for line in text.splitlines() if "chat " in line[:8] or line.startswith("GPU")]
    assert rows
    assert all(re.search(r"\(\d", row) for row in rows)
    assert "takes 3 more" in text_of(current)
    assert text.count("takes 3 more") == text.count("was: takes 3 more")
    assert stale.lines[1].spans[0].style is Style.ALARM


def test_unknown_is_no_zero_and_no_calm() -> None:
    """Where nothing is known every figure is a question mark, and the reason stands beside it."""
    text = text_of(screen(unknown(), cells=200, rows=50))
    row = next(line for line in text.splitlines() if line.startswith("  chat "))
    assert "????" in row
    assert "UNKNOWN: " in row
    assert not re.search(r"\b0\b", row)
    assert "NO ANSWER: unreachable: refused" in text
    assert "not_supported" in text


def test_monochrome_tells_everything() -> None:
    """The parts of a card differ by letter and fill, not only by colour, in both sets of characters."""
    for glyphs in (UNICODE, ASCII):
        fills = glyphs.fills
        assert (
            len({fills[name] for name in ("kv_cache", "weights", "working", "other", "orphan", "free")}) == 6
        )
        text = text_of(screen(rush(), glyphs=glyphs))
        assert re.search(r"^\[a.+b.+c.+d.+g.+\]$", text, flags=re.MULTILINE)
        assert glyphs is UNICODE or text.isascii()


def test_calm_without_judgement_is_no_all_clear() -> None:
    """Without a finding it says how many rules could not be judged."""
    document = {**rush(), "findings": []}
    assert "none among what can be judged; 2 rules not judged" in text_of(screen(document))


def test_no_card_says_why() -> None:
    """A machine without a driver shows why there is no card."""
    source = {
        "source": "nvml",
        "target": "driver",
        "reason": "library_not_found",
        "detail": "no libnvidia-ml",
    }
    document = {**rush(), "devices": [], "sources": [source]}
    assert "No card: library_not_found: no libnvidia-ml." in text_of(screen(document))


def test_mig_instances_have_names_of_their_own() -> None:
    """The instances of a divided card are told apart, and the card says that it is divided."""
    document = rush()
    device = document["devices"][0]
    instance = {**device, "reading": {**device["reading"], "parent_uuid": "GPU-p", "uuid": "MIG-1"}}
    other = {**instance, "reading": {**instance["reading"], "uuid": "MIG-2"}}
    parent = {"reading": {**device["reading"], "uuid": "GPU-p", "divided": True}, "ledger": []}
    text = text_of(screen({**document, "devices": [parent, instance, other]}, rows=50))
    assert "GPU 0  NVIDIA L40S  divided by MIG" in text
    assert "GPU 0/0 " in text
    assert "GPU 0/1 " in text


def test_ledger_rest_is_unknown() -> None:
    """What no known part accounts for is a part of its own, called unknown: the ledger sums to the card."""
    document = rush()
    device = document["devices"][0]
    device["ledger"] = [part for part in device["ledger"] if part["component"] != "weights_and_working"]
    text = text_of(screen(document))
    assert re.search(r"\?+", next(line for line in text.splitlines() if line.startswith("[a")))
    assert "? unknown 28.66 GiB" in text
