"""Keys, order and age: where the reader is, what comes first, when figures stop being current."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.top.feed import Feed, Moment
from kvwatch.top.keys import Page, State, press
from kvwatch.top.order import Sort, matches, sorted_servers
from kvwatch.top.screen import Screen
from kvwatch.top.snapshot_view import view_of
from tests.top.sights import feed_of, fleet, rush, screen, text_of, unknown

_SCREEN = Screen(lines=(), names=("a", "b", "c"), page_rows=2, scroll_limit=5)


@pytest.mark.parametrize(
    "keys, state",
    [
        ("down", State(selected="b")),
        ("down down down down", State(selected="c")),
        ("j j k", State(selected="b")),
        ("end", State(selected="c")),
        ("end home", State()),
        ("pgdn", State(selected="c")),
        ("down enter", State(page=Page.SERVER, selected="b")),
        ("enter n n p", State(page=Page.SERVER, selected="b")),
        ("enter esc", State(selected="a")),
        ("enter q", State(selected="a")),
        ("f down down", State(page=Page.FINDINGS, scroll=2)),
        ("f end down", State(page=Page.FINDINGS, scroll=5)),
        ("f end home", State(page=Page.FINDINGS)),
        ("f f", State()),
        ("u c", State(page=Page.CARDS)),
        ("?", State(page=Page.HELP)),
        ("s", State(sort=Sort.NAME)),
        ("s s s s s s r", State(backwards=True)),
        ("/ c h q", State(filter="chq", typing=True)),
        ("/ c enter", State(filter="c")),
        ("/ c esc", State()),
        ("/ c enter esc", State()),
        ("/ backspace", State()),
        ("q", State(ended=True)),
        ("f Q", State(page=Page.FINDINGS, ended=True)),
        ("x F12 \x00", State()),
    ],
)
def test_keys(keys: str, state: State) -> None:
    """Each key leads where the help says; unknown ones nowhere."""
    now = State()
    for key in keys.split():
        now = press(now, key, _SCREEN)
    assert now == state


def test_selected_server_stays_selected_wherever_it_goes() -> None:
    """The mark stays with a server when the order changes, and on the worst until one is chosen."""
    document = fleet(4)
    chosen = screen(document, keys=["end", "s", "r"])
    row = next(line.text for line in chosen.lines if line.selected)
    assert row.startswith("> ")
    assert "chat-03" in row


def test_far_selected_server_is_in_view() -> None:
    """The list follows the mark to its end and says what is above."""
    text = text_of(screen(fleet(), keys=["end"]))
    assert ">" in text
    assert "chat-63" in text
    assert " above" in text


@pytest.mark.parametrize("sort", Sort)
def test_unknown_comes_first_in_every_order_by_a_figure(sort: Sort) -> None:
    """A figure that is not known may be the worst: it is not put out of sight at the end."""
    servers = [*view_of(rush()).servers, *view_of(unknown()).servers]
    names = [server.name for server in sorted_servers(servers, sort, backwards=False)]
    known = ["embedding", "chat"] if sort in (Sort.FITS, Sort.POOL, Sort.WAITING, Sort.RECOMPUTE) else []
    assert not known or names.index("gone") < names.index("embedding")
    assert sorted(names) == ["chat", "chat", "embedding", "gone"]


def test_critical_comes_before_silent_before_full_before_open() -> None:
    """By worst: findings decide, then whether it answers, then whether it can take one more."""
    chat, embedding = view_of(rush()).servers
    gone = view_of(unknown()).servers[1]
    calm = replace(chat, severity=3, name="calm")
    ordered = sorted_servers([embedding, calm, gone, chat], Sort.WORST, backwards=False)
    assert [server.name for server in ordered] == ["chat", "gone", "calm", "embedding"]


@pytest.mark.parametrize(
    "text, found", [("", True), ("CHA", True), ("vllm demo", True), ("full", True), ("embedding", False)]
)
def test_filter_looks_at_name_engine_model_and_state(text: str, found: bool) -> None:  # noqa: FBT001
    """Every word of the filter must be somewhere."""
    assert matches(view_of(rush()).servers[0], text) is found


@pytest.mark.parametrize(
    "later, doubt",
    [
        (1.0, ""),
        (3.9, ""),
        (4.5, "kvwatch answers, but always with the same poll"),
        (11.0, "no answer since 03:07:11"),
    ],
)
def test_old_data_is_doubted(later: float, doubt: str) -> None:
    """Data older than three intervals is stale, by this machine's clock alone; and so is a silence."""
    feed, now = feed_of(rush())
    at = Moment(monotonic=100.0 + later, unix=now.unix + later, zone=now.zone)
    if later < 10:
        feed = feed.with_view(view_of(rush()), replace(at, monotonic=at.monotonic - 0.1))
    assert feed.doubt(at) == doubt


def test_daemon_that_stopped_polling_is_doubted() -> None:
    """The daemon's own word that its data is stale is enough."""
    feed, now = feed_of({**rush(), "stale": True})
    assert feed.doubt(now) == "kvwatch answers but has stopped polling"


def test_failure_is_told_with_its_beginning_until_an_answer_comes() -> None:
    """A failure says since when; the first good answer ends it."""
    feed, now = feed_of(rush())
    later = replace(now, unix=now.unix + 60, monotonic=now.monotonic + 60)
    failing = feed.with_failure("gone", now).with_failure("gone", later)
    assert failing.doubt(later) == "gone, since 03:07:11"
    assert failing.with_view(view_of({**rush(), "sequence": 99}), later).doubt(later) == ""


def test_nothing_yet_is_no_data() -> None:
    """Before the first answer there is nothing to show, and a failure says so."""
    feed = Feed(origin="http://h:1", refresh_seconds=1.0)
    assert feed.doubt(Moment(monotonic=1.0, unix=1.0)) == ""
    assert feed.age_seconds(Moment(monotonic=1.0, unix=1.0)) is None


def test_recompute_of_the_last_minute_is_told_apart() -> None:
    """Growth within a minute is shown beside the total; older growth is not, and a restart is no growth."""
    feed, now = feed_of(rush())
    for sequence, (seconds, requests) in enumerate([(10, 14), (20, 2), (30, 3)], start=500):
        document = {**rush(), "sequence": sequence}
        document["recompute_suspected"] = [{"server": "chat", "rank": "0", "requests": requests}]
        feed = feed.with_view(view_of(document), replace(now, monotonic=100.0 + seconds))
    assert feed.view is not None
    assert feed.view.servers[0].redone_lately == 3 + 1
    much_later = feed.with_view(view_of({**rush(), "sequence": 600}), replace(now, monotonic=300.0))
    assert much_later.view is not None
    assert much_later.view.servers[0].redone_lately == 0
