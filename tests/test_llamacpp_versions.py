"""llama-server from 2024 to b11434: what each level of features says, and what it cannot say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.engines import llamacpp
from kvwatch.readings import Page, Reason, Slot, SlotPool, SourceError
from tests.daemon import config, reason, running, value
from tests.replay import CAPTURES, Answer, llamacpp_pages, replaying

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.readings import EngineReading

pytestmark = pytest.mark.anyio

FOLDER = CAPTURES / "llamacpp"
Server = dict[str, str | Reason]


def capture(name: str) -> str:
    """Return a captured page."""
    return (FOLDER / name).read_text()


def server(level: str, *, props: str | None = None, slots: str | None = None) -> Server:
    """Return the pages of a synthetic level; `props` and `slots` are of the level that looked the same."""
    return {
        "/props": capture(f"{props or level}-synthetic.props.json"),
        "/metrics": capture(f"{level}-synthetic.metrics"),
        "/slots": capture(f"{slots or level}-synthetic.slots.json"),
    }


def real(mode: str, state: str) -> Server:
    """Return the pages of a captured b11434."""
    return {path: answer.body.decode() for path, answer in llamacpp_pages(mode, state).items()}


def fetched(pages: Mapping[str, str | Reason]) -> dict[str, Page]:
    """Let the adapter ask a server for what it wants; others are not found."""
    got: dict[str, Page] = {}
    while (path := llamacpp.next_path(got)) is not None:
        assert path not in got, f"{path} is asked for again"
        body = pages.get(path, Reason.NOT_FOUND)
        if isinstance(body, Reason):
            got[path] = Page(path=path, body=None, reason=body)
        else:
            got[path] = Page(path=path, body=body, status=200)
    return got


def ask(pages: Mapping[str, str | Reason]) -> tuple[EngineReading, list[str]]:
    """Return a server's reading and the paths that it was asked for."""
    got = fetched(pages)
    return llamacpp.read(got), list(got)


def pool_of(pages: Mapping[str, str | Reason]) -> SlotPool:
    """Return a server's pool as it was read."""
    pool = ask(pages)[0].ranks[0].slots
    assert pool is not None
    return pool


def changed(page: str | Reason, **fields: Any) -> str:
    """Return a JSON object with fields replaced; None takes one away."""
    document = {**json.loads(str(page)), **fields}
    return json.dumps({name: value for name, value in document.items() if value is not None})


def without(page: str | Reason, name: str) -> str:
    """Return /metrics without a series."""
    lines = str(page).splitlines(keepends=True)
    assert any(line.startswith(f"llamacpp:{name} ") for line in lines), name
    return "".join(line for line in lines if not line.startswith(f"llamacpp:{name} "))


@dataclass(frozen=True)
class Level:
    """What is read of one level while one of its two slots works, its 16 last tokens to come."""

    pages: Server
    resident: int | None = None
    remaining: int | None = None
    longest: int | None = None
    ratio: float | None = None
    cells: int | None = None
    sleeping: bool | None = None
    missing: tuple[str, ...] = ()
    version: str | None = None


LEVELS = {
    "2024-08: state is a number, the cache has gauges": Level(server("2024-08"), ratio=0.25, cells=2048),
    "2025-05: -c was left out, so the ratio divides by 0": Level(
        server("2025-05"), cells=2048, missing=(llamacpp.RESIDENT_RATIO,), version="b5300-0000000"),
    "2025-08: no gauges any more, a high-water mark": Level(
        server("2025-08", props="2025-05", slots="2025-05"), longest=4095, version="b5300-0000000"),
    "b9093: next_token is an array, sleeping is told": Level(
        server("b9093"), longest=4095, sleeping=False, version="b9093-0000000"),
    "b9279: resident tokens, n_remain not yet sure": Level(
        server("b9093", slots="b9279"), resident=1024, longest=4095, sleeping=False, version="b9093-0000000"),
    "b10435: the counter of reused tokens": Level(
        {**server("b9093", slots="b9279"),
         "/metrics": capture("b9093-synthetic.metrics") + "llamacpp:prompt_tokens_cached_total 5\n"},
        resident=1024, remaining=16, longest=4095, sleeping=False, version="b9093-0000000"),
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_level_says_is_read_and_the_rest_is_unknown(level: str) -> None:
    """By what is on the pages: no level's resident tokens, ratio or sleep is guessed from another's."""
    row = LEVELS[level]
    reading, asked = ask(row.pages)
    (rank,) = reading.ranks
    pool = rank.slots
    assert pool is not None
    assert pool.slots is not None
    assert asked == ["/props", "/metrics", "/slots"]
    assert (rank.running, rank.waiting, rank.generation_tokens_total) == (1, {"deferred": 0}, 345679)
    assert (pool.total_slots, pool.slot_limit_tokens, pool.busy_slots) == (2, 4096, 1)
    assert pool.slots[0] == Slot(
        limit_tokens=4096, busy=True, resident_tokens=row.resident, remaining_tokens=row.remaining
    )
    assert pool.slots[1].busy is False
    assert (pool.longest_tokens, pool.resident_ratio, pool.resident_tokens) == (
        row.longest, row.ratio, row.cells,
    )  # fmt: skip
    assert (reading.sleeping, reading.missing, reading.version) == (row.sleeping, row.missing, row.version)
    assert reading.full_length_tokens == 4096


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("build", [None, "b0-unknown", "b99999-abcdef0"])
def test_the_build_string_decides_nothing(level: str, build: str | None) -> None:
    """A build from a source archive calls itself b0-unknown."""
    row = LEVELS[level]
    (plain, asked), (named, asked_named) = (
        ask(row.pages),
        ask({**row.pages, "/props": changed(row.pages["/props"], build_info=build)}),
    )
    assert named.version == build
    assert (named.ranks, named.missing, named.sleeping) == (plain.ranks, plain.missing, plain.sleeping)
    assert asked == asked_named


OLD_GAUGES: dict[str, tuple[str, float | None]] = {
    "0.25": ("0.25", 0.25),
    "empty": ("0", 0.0),
    "full": ("1", 1.0),
    "cells are rounded up from -c, so it may be more than full": ("1.024", 1.0),
    "-c left out, nothing used": ("-nan", None),
    "-c left out, something used": ("inf", None),
    "no ratio": ("-0.5", None),
}


@pytest.mark.parametrize("situation", OLD_GAUGES)
def test_the_old_ratio_costs_nothing_else_when_it_is_none(situation: str) -> None:
    """It divides by the -c of the command line; the rest of such a page is good."""
    text, expected = OLD_GAUGES[situation]
    pages = server("2024-08")
    page = str(pages["/metrics"])
    assert "ratio 0.25" in page
    reading, _ = ask({**pages, "/metrics": page.replace("ratio 0.25", f"ratio {text}")})
    pool = reading.ranks[0].slots
    assert pool is not None
    assert pool.resident_ratio == expected
    assert pool.resident_tokens == 2048
    assert reading.ranks[0].running == 1
    assert reading.missing == (() if expected is not None else (llamacpp.RESIDENT_RATIO,))


@pytest.mark.parametrize("spelling", ["llamacpp:", "llamacpp_"])
def test_both_spellings_of_every_name_are_read(spelling: str) -> None:
    """A proxy that turns colons into underscores takes nothing away, not even the question for /slots."""
    pages = server("2024-08")
    reading, asked = ask({**pages, "/metrics": str(pages["/metrics"]).replace("llamacpp:", spelling)})
    assert asked == ["/props", "/metrics", "/slots"]
    assert reading == ask(pages)[0]


def test_a_build_that_does_not_count_its_slots_is_asked_for_them() -> None:
    """It has no sleep that a question could disturb; one that has a sleep is not asked while idle."""
    pages = server("2024-08")
    idle = str(pages["/metrics"]).replace("requests_processing 1", "requests_processing 0")
    uncounted = {**pages, "/metrics": idle, "/props": changed(pages["/props"], total_slots=None)}
    reading, asked = ask(uncounted)
    assert asked == ["/props", "/metrics", "/slots"]
    assert reading.ranks[0].slots is not None
    assert reading.ranks[0].slots.total_slots == 2
    may_sleep = {**uncounted, "/props": changed(uncounted["/props"], is_sleeping=False)}
    with pytest.raises(SourceError) as caught:
        ask(may_sleep)
    assert caught.value.reason is Reason.PARSE_ERROR


@pytest.mark.parametrize(
    "name, missing",
    [
        ("requests_deferred", (llamacpp.DEFERRED,)),
        ("tokens_predicted_total", (llamacpp.GENERATED,)),
        ("prompt_tokens_total", (llamacpp.PROMPT,)),
        ("n_tokens_max", (llamacpp.LONGEST,)),
        ("prompt_tokens_cached_total", ()),
        ("n_busy_slots_per_decode", ()),
    ],
)
def test_a_series_that_this_level_should_have_is_named(name: str, missing: tuple[str, ...]) -> None:
    """What came later than a level's other features cannot be missed, and what is not read is not."""
    pages = real("split", "load2")
    reading, _ = ask({**pages, "/metrics": without(pages["/metrics"], name)})
    assert reading.missing == missing


@pytest.mark.parametrize("level", [level for level, row in LEVELS.items() if not row.missing])
def test_no_level_misses_what_came_after_it(level: str) -> None:
    """An old build is not reported as broken."""
    assert ask(LEVELS[level].pages)[0].missing == ()


@pytest.mark.parametrize(
    "field, missing",
    [
        ("n_prompt_tokens", ("/slots n_prompt_tokens",)),
        ("n_remain", ("/slots next_token.n_remain",)),
        ("n_decoded", ("/slots next_token.n_decoded",)),
    ],
)
def test_a_field_of_a_busy_slot_that_is_gone_is_named_and_unknown(
    field: str, missing: tuple[str, ...]
) -> None:
    """Without it, a slot claims all it may."""
    pages = real("split", "load2")
    entries = json.loads(str(pages["/slots"]))
    for entry in entries:
        entry.pop(field, None)
        entry["next_token"][0].pop(field, None)
    reading, _ = ask({**pages, "/slots": json.dumps(entries)})
    assert reading.missing == missing
    pool = reading.ranks[0].slots
    assert pool is not None
    assert pool.slots is not None
    gone = "resident_tokens" if field == "n_prompt_tokens" else "remaining_tokens"
    assert [getattr(slot, gone) for slot in pool.slots] == [None] * 4


def test_a_build_that_stops_telling_whether_it_sleeps_is_named() -> None:
    """Then it can only be hoped that no page wakes it."""
    pages = real("split", "load2")
    reading, _ = ask({**pages, "/props": changed(pages["/props"], is_sleeping=None)})
    assert (reading.sleeping, reading.missing) == (None, ("/props is_sleeping",))


# Through the daemon


async def scrape(
    pages: Mapping[str, Answer], options: str, *, path: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """Return the exposition of a daemon that watches these pages as server `s`, and the paths it asked."""
    async with replaying(pages) as replay:
        text = f"servers: [{{name: s, url: '{replay.url}{path}', {options}}}]"
        async with running(config(text)) as daemon:
            series = await daemon.until(lambda series: "kvwatch_source_up" in series)
            return series, replay.asked


def answers(pages: Mapping[str, str | Reason]) -> dict[str, Answer]:
    """Return pages as a replay serves them."""
    return {path: Answer(str(body).encode()) for path, body in pages.items()}


POOLS: dict[str, tuple[Server, str, dict[str, float | None]]] = {
    "2024, slots with a share each: idle slots fit, use is not known": (
        server("2024-08"), "kv_unified: false, pool_tokens: 8192",
        {"fit_now": 1, "fit_guaranteed": 1, "fit_empty": 2, "usage": None, "worst": 1}),
    "b9093, one pool for both: who holds what is not known": (
        server("b9093"), "kv_unified: true, pool_tokens: 4096",
        {"fit_now": None, "fit_guaranteed": 0, "fit_empty": 1, "usage": None, "worst": 2}),
    "b9279, one pool for both: what runs may take all of it": (
        server("b9093", slots="b9279"), "kv_unified: true, pool_tokens: 4096",
        {"fit_now": 0, "fit_guaranteed": 0, "fit_empty": 1, "usage": 0.25, "worst": 2}),
    "b11434, slots capped below the pool, empty": (
        real("capped", "idle"), "kv_unified: true, pool_tokens: 1024",
        {"fit_now": 2, "fit_guaranteed": 2, "fit_empty": 2, "usage": 0, "worst": 2}),
    "b11434, capped, two at work": (
        real("capped", "2-running"), "kv_unified: true, pool_tokens: 1024",
        {"fit_now": 1, "fit_guaranteed": 0, "fit_empty": 2, "usage": 401 / 1024, "worst": 2}),
    "b11434, capped, after all of them failed": (
        real("capped", "after-failure"), "kv_unified: true, pool_tokens: 1024",
        {"fit_now": 2, "fit_guaranteed": 2, "fit_empty": 2, "usage": 0, "worst": 2}),
    "b11434, split, four at work and one waits": (
        real("small-split", "one-waiting"), "kv_unified: false, pool_tokens: 4096",
        {"fit_now": 0, "fit_guaranteed": 0, "fit_empty": 4, "usage": 1303 / 4096, "worst": 1}),
}  # fmt: skip


@pytest.mark.parametrize("situation", POOLS)
async def test_a_pool_in_requests(situation: str) -> None:
    """Each level and mode through the whole daemon: what follows from its pages, and nothing else."""
    pages, options, expected = POOLS[situation]
    series, _ = await scrape(answers(pages), options)
    assert reason(series, "engine", "s") is None
    fits = {
        name: value(series, f"full_length_requests_{name}", server="s") for name in expected if "fit" in name
    }
    assert {
        **fits,
        "usage": value(series, "kv_usage_ratio", server="s"),
        "worst": value(series, "worst_case_demand_ratio", server="s"),
    } == pytest.approx(expected)


async def test_a_prefix_of_the_api_is_part_of_the_url() -> None:
    """Every page is asked for below it."""
    pages = {f"/llm{path}": answer for path, answer in llamacpp_pages("split", "load2").items()}
    series, asked = await scrape(pages, "kv_unified: false", path="/llm")
    assert value(series, "requests_running", server="s") == 4
    assert set(asked) == {"/llm/props", "/llm/metrics", "/llm/slots"}
