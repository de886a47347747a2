"""Each way known to read a llama-server wrong, by its number in docs/pitfalls-llamacpp.md."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.document import visit_document
from kvwatch.engines import ADAPTERS, detect, llamacpp
from kvwatch.readings import Outcome, Page, Reason, Source, SourceError
from kvwatch.visit import Visit
from tests.daemon import config, reason, running, value
from tests.replay import Answer, edited, llamacpp_pages, replaying
from tests.test_llamacpp_versions import (
    answers,
    ask,
    capture,
    changed,
    fetched,
    pool_of,
    real,
    scrape,
    server,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "pitfalls-llamacpp.md"
COUNT = 51
ONE_POOL = "kv_unified: true, pool_tokens: 4096"
SLEEPS = {"/props": capture("b11434-asleep.props.json"), "/metrics": capture("b11434-asleep.metrics")}
ROUTER = {"/props": capture("b11434-router.props.json"), "/models": capture("b11434-router.models.json")}


def refused(pages: Mapping[str, str | Reason]) -> SourceError:
    """Return why a server cannot be read."""
    with pytest.raises(SourceError) as caught:
        ask(pages)
    return caught.value


def with_slots(pages: Mapping[str, str | Reason], **fields: Any) -> dict[str, str | Reason]:
    """Return pages on which every slot has these fields."""
    entries = [{**entry, **fields} for entry in json.loads(str(pages["/slots"]))]
    return {**pages, "/slots": json.dumps(entries)}


def test_every_pitfall_has_its_test_or_its_reason() -> None:
    """The document has a row for each number; a row without a test says why it cannot matter."""
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, COUNT + 1))
    named: dict[int, list[str]] = {}
    for name in globals():
        if re.match(r"test_\d\d_", name):
            named.setdefault(int(name[5:7]), []).append(f"`{name}`")
    tested = {int(number): text.strip() for number, text in rows if text.startswith("`test_")}
    assert tested == {number: ", ".join(names) for number, names in named.items()}


# Harm done by scraping


async def test_01_a_sleeping_server_is_asked_nothing_that_wakes_it() -> None:
    """Nor is an idle one kept awake by a look at its slots, also where its engine must be found out."""
    for options in ("engine: llamacpp", "full_length_tokens: 1"):
        series, asked = await scrape(answers(SLEEPS), options)
        assert set(asked) == {"/props"}
        assert value(series, "server_sleeping", server="s") == 1
        assert value(series, "requests_running", server="s") is None
    _, asked = await scrape(answers(real("split", "idle")), "kv_unified: false")
    assert set(asked) == {"/props", "/metrics"}


def test_02_metrics_are_not_asked_of_a_sleeping_server() -> None:
    """Up to b10502 that reloads the model; the page that tells comes first, and is never left out."""
    assert ask(SLEEPS)[1] == ["/props"]
    assert detect({}) == "/props"
    assert llamacpp.next_path({"/props": Page(path="/props", body=None, reason=Reason.TIMEOUT)}) is None


async def test_03_a_router_is_asked_for_no_models_page() -> None:
    """Such a page loads the model and may evict another; the list of models does not."""
    series, asked = await scrape(answers(ROUTER), "engine: llamacpp")
    assert set(asked) == {"/props", "/models"}
    assert reason(series, "engine", "s") == "not_supported"
    _, asked = await scrape(answers(ROUTER), "full_length_tokens: 1")
    assert set(asked) == {"/props", "/models"}


def test_04_no_page_is_asked_with_a_query() -> None:
    """`?reload=1` may unload models, `?model=` may load one: there is no query at all."""
    asked = [path for pages in (ROUTER, SLEEPS, real("split", "load2")) for path in fetched(pages)]
    assert len(asked) == 6
    assert not [path for path in asked if "?" in path]


def test_05_gauges_that_any_scrape_resets_are_not_read() -> None:
    """Another scraper halves their window: their values and their absence change nothing."""
    pages = real("split", "load2")
    page = str(pages["/metrics"])
    for name in ("prompt_tokens_seconds", "predicted_tokens_seconds"):
        page = without(page, name)
    assert ask({**pages, "/metrics": page})[0] == ask(pages)[0]


# Tokens


async def test_06_no_gauge_of_the_cache_is_no_empty_cache() -> None:
    """Where the gauges are, they say cells of idle slots too, so they are kept apart from what is in use."""
    series, _ = await scrape(answers(server("b9093")), ONE_POOL)
    assert value(series, "kv_usage_ratio", server="s") is None
    assert value(series, "kv_free_tokens", server="s") is None
    assert pool_of(server("b9093")).resident_ratio is None
    old = pool_of(server("2024-08"))
    assert (old.resident_ratio, old.resident_tokens) == (0.25, 2048)
    series, _ = await scrape(answers(server("2024-08")), "kv_unified: false, pool_tokens: 8192")
    assert value(series, "kv_usage_ratio", server="s") is None


def test_07_generated_tokens_are_not_taken_for_resident_ones() -> None:
    """Before b9279 nobody says what a slot holds: n_decoded leaves the prompt out, and may be stale."""
    slots = pool_of(server("b9093")).slots
    assert slots is not None
    assert (slots[0].busy, slots[0].resident_tokens) == (True, None)


async def test_08_resident_tokens_hold_the_generated_ones_already() -> None:
    """n_prompt_tokens is what is in the cache, in spite of its name; n_decoded is not added."""
    pages = real("small-split", "one-waiting")
    series, _ = await scrape(answers(pages), "kv_unified: false, pool_tokens: 4096")
    held = sum(entry["n_prompt_tokens"] for entry in json.loads(str(pages["/slots"])))
    assert value(series, "kv_free_tokens", server="s") == 4096 - held


async def test_09_tokens_that_idle_slots_keep_are_free() -> None:
    """They are dropped as soon as somebody needs the cells."""
    pages = with_slots(real("shared-prompt", "four"), n_prompt_tokens=1000)
    entries = json.loads(str(pages["/slots"]))
    for entry in entries[1:]:
        entry["is_processing"] = False
    series, _ = await scrape(answers({**pages, "/slots": json.dumps(entries)}), ONE_POOL)
    assert value(series, "kv_free_tokens", server="s") == 3096


async def test_10_idle_tokens_that_move_to_the_host_change_no_figure() -> None:
    """By default they vanish when the next request starts."""
    entries = json.loads(str(real("shared-prompt", "four")["/slots"]))
    for entry in entries[1:]:
        entry["is_processing"] = False
    free = set()
    for kept in (1000, 0):
        for entry in entries[1:]:
            entry["n_prompt_tokens"] = kept
        pages = {**real("shared-prompt", "four"), "/slots": json.dumps(entries)}
        series, _ = await scrape(answers(pages), ONE_POOL)
        free.add(value(series, "kv_free_tokens", server="s"))
    assert free == {4096 - 1026}


async def test_11_one_pool_is_not_multiplied_by_its_slots() -> None:
    """The endpoints say a slot's limit only: where nobody says which mode it is, nothing is said to fit."""
    pages = answers(real("shared-prompt", "four"))
    series, _ = await scrape(pages, ONE_POOL)
    assert value(series, "kv_capacity_tokens", server="s") == 4096
    series, _ = await scrape(pages, "request_limit: 4")
    assert value(series, "kv_capacity_tokens", server="s") is None
    assert value(series, "full_length_requests_fit_empty", server="s") is None
    assert reason(series, "model", "s") == "unknown_pool"


async def test_12_a_cap_on_the_slots_does_not_shrink_the_pool() -> None:
    """1,024 cells that four slots may use 512 of each hold two full-length requests."""
    series, _ = await scrape(answers(real("capped", "idle")), "kv_unified: true, pool_tokens: 1024")
    assert value(series, "full_length_tokens", server="s") == 512
    assert value(series, "kv_capacity_tokens", server="s") == 1024
    assert value(series, "full_length_requests_fit_empty", server="s") == 2
    assert value(series, "worst_case_demand_ratio", server="s") == 2


async def test_13_slots_that_divide_a_unified_pool_all_fit() -> None:
    """Builds of 2025-08 limit each slot to its share also with --kv-unified."""
    pages = server("2025-08", props="2025-05", slots="2025-05")
    pages["/metrics"] = str(pages["/metrics"]).replace("requests_processing 1", "requests_processing 0")
    series, _ = await scrape(answers(pages), "kv_unified: true, pool_tokens: 8192")
    assert value(series, "full_length_requests_fit_empty", server="s") == 2
    assert value(series, "worst_case_demand_ratio", server="s") == 1


async def test_14_a_pool_smaller_than_its_split_slots_is_refused() -> None:
    """`-c 4096 -np 3` allocates 4,608 cells, 1,536 a slot: the stated limit counts, not -c."""
    props = changed(
        real("split", "idle")["/props"], total_slots=3, default_generation_settings={"n_ctx": 1536}
    )
    pages = answers({**real("split", "idle"), "/props": props})
    series, _ = await scrape(pages, "kv_unified: false, pool_tokens: 4096")
    assert value(series, "full_length_requests_fit_empty", server="s") is None
    assert reason(series, "model", "s") == "unknown_pool"
    series, _ = await scrape(pages, "kv_unified: false, pool_tokens: 4608")
    assert value(series, "full_length_requests_fit_empty", server="s") == 3


async def test_15_a_shared_prompt_counts_at_most_as_the_whole_pool() -> None:
    """Four completions of one prompt: 4,104 tokens of 4,096 cells, and none was missing."""
    pages = real("shared-prompt", "four")
    assert sum(entry["n_prompt_tokens"] for entry in json.loads(str(pages["/slots"]))) == 4104
    series, _ = await scrape(answers(pages), ONE_POOL)
    assert value(series, "kv_usage_ratio", server="s") == 1
    assert value(series, "kv_free_tokens", server="s") == 0


async def test_16_a_prompt_that_is_still_being_read_claims_its_whole_slot() -> None:
    """64 of 1,950 tokens are in the cache: what is to come is not its 60 tokens to generate."""
    pages = real("long-prompt", "half-read")
    slots = pool_of(pages).slots
    assert slots is not None
    assert (slots[3].busy, slots[3].resident_tokens, slots[3].remaining_tokens) == (True, 64, None)
    series, _ = await scrape(answers(pages), "kv_unified: true, pool_tokens: 3072")
    assert value(series, "full_length_requests_fit_guaranteed", server="s") == 0


async def test_16_a_context_shift_or_a_cancel_is_no_event() -> None:
    """Resident tokens may fall while a request runs; what it may grow to is never more than its limit."""
    for held in (4000, 2000):
        pages = with_slots(
            real("shared-prompt", "four"),
            n_prompt_tokens=held,
            next_token=[{"n_remain": 10**6, "n_decoded": 9}],
        )
        entries = json.loads(str(pages["/slots"]))[:1]
        entries += [{"id": 1 + number, "n_ctx": 4096, "is_processing": False} for number in range(3)]
        series, _ = await scrape(answers({**pages, "/slots": json.dumps(entries)}), ONE_POOL)
        assert value(series, "full_length_requests_fit_guaranteed", server="s") == 0
        assert value(series, "kv_free_tokens", server="s") == 4096 - held


async def test_17_a_slot_that_never_ran_holds_nothing_that_counts() -> None:
    """Its fields are absent; tokens of a restore hide there, and are as free as any idle slot's."""
    pages = real("capped", "2-running")
    slots = pool_of(pages).slots
    assert slots is not None
    assert [slot.resident_tokens for slot in slots] == [None, None, 200, 201]
    series, _ = await scrape(answers(pages), "kv_unified: true, pool_tokens: 1024")
    assert value(series, "kv_free_tokens", server="s") == 1024 - 401


def test_18_a_pool_that_ran_out_is_no_restart() -> None:
    """All slots fall to 0 at once and the counters go on."""
    before, after = (ask(real("capped", state))[0].ranks[0] for state in ("3-running", "after-failure"))
    assert (before.running, after.running) == (3, 0)
    assert before.generation_tokens_total is not None
    assert after.generation_tokens_total is not None
    assert after.generation_tokens_total >= before.generation_tokens_total > 0
    assert (after.preemptions_total, after.finished_total) == (None, {})


def test_19_the_limit_that_the_slots_state_is_newer() -> None:
    """Each start and wake-up fits n_ctx to free memory anew, and /props keeps the first one."""
    pages = with_slots(real("split", "load2"), n_ctx=1024)
    reading, _ = ask(pages)
    assert reading.full_length_tokens == 1024
    assert pool_of(pages).slot_limit_tokens == 1024


async def test_20_cells_that_are_free_now_are_no_promise() -> None:
    """Two of 512 run in 1,024 cells and hold 401: one more would fit now, and would kill all three."""
    series, _ = await scrape(answers(real("capped", "2-running")), "kv_unified: true, pool_tokens: 1024")
    assert value(series, "full_length_requests_fit_now", server="s") == 1
    assert value(series, "full_length_requests_fit_guaranteed", server="s") == 0


async def test_21_free_cells_without_an_idle_slot_are_no_room() -> None:
    """One waits beside more free cells than a full-length request takes."""
    series, _ = await scrape(answers(real("small-split", "one-waiting")), ONE_POOL)
    assert (value(series, "kv_free_tokens", server="s") or 0) > 1024
    assert value(series, "requests_waiting", server="s", reason="deferred") == 1
    assert value(series, "full_length_requests_fit_now", server="s") == 0
    assert value(series, "fit_bound_by", server="s", bound="queue") == 1


def test_22_the_longest_request_is_the_limit_as_stated() -> None:
    """One token less can be used, so what fits at n_ctx fits."""
    assert ask(real("capped", "idle"))[0].full_length_tokens == 512


# Counters


def test_32_six_digits_are_a_count_still() -> None:
    """1.23457e+06 is a whole number; what stands behind the sixth digit is lost at the source."""
    pages = real("split", "load2")
    page = re.sub(
        r"^(llamacpp:n_tokens_max) .*$", r"\1 1.23457e+06", str(pages["/metrics"]), flags=re.MULTILINE
    )
    page = re.sub(r"^(llamacpp:prompt_tokens_total) .*$", r"\1 9.87654e+09", page, flags=re.MULTILINE)
    rank = ask({**pages, "/metrics": page})[0].ranks[0]
    assert rank.slots is not None
    assert rank.slots.longest_tokens == 1_234_570
    assert rank.prefix_cache_queries_total == 9.87654e09


def test_34_reused_tokens_are_added_to_the_prompts() -> None:
    """prompt_tokens_total leaves them out; without the counter of reused ones nothing is known."""
    pages = real("split", "load2")
    page = str(pages["/metrics"]).replace("prompt_tokens_cached_total 0", "prompt_tokens_cached_total 52")
    rank = ask({**pages, "/metrics": page})[0].ranks[0]
    assert (rank.prefix_cache_queries_total, rank.prefix_cache_hits_total) == (2100, 52)
    rank = ask(server("b9093"))[0].ranks[0]
    assert (rank.prefix_cache_queries_total, rank.prefix_cache_hits_total) == (None, None)


@pytest.mark.parametrize("kind", ["counter", "gauge", "untyped", "histogram"])
def test_35_type_lines_decide_nothing(kind: str) -> None:
    """n_tokens_max is a high-water mark that calls itself a counter."""
    pages = real("split", "load2")
    page = re.sub(r"^(# TYPE \S+) \w+$", rf"\1 {kind}", str(pages["/metrics"]), flags=re.MULTILINE)
    assert page.count(f" {kind}\n") > 10
    assert ask({**pages, "/metrics": page})[0] == ask(pages)[0]


async def test_36_a_counter_without_total_keeps_its_name() -> None:
    """A client of OpenMetrics would look for n_tokens_max_total; plain text is asked for and read."""
    assert pool_of(real("split", "load2")).longest_tokens == 600
    async with (
        replaying(answers(real("split", "load2"))) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        await daemon.until(lambda series: value(series, "requests_running", server="s") == 4)
        assert {headers["Accept"] for headers in replay.headers} == {"text/plain, application/json"}


def test_37_slots_are_counted_not_requests() -> None:
    """One request for four completions runs as four, and each takes its slot."""
    reading, _ = ask(real("shared-prompt", "four"))
    assert reading.ranks[0].running == 4
    assert pool_of(real("shared-prompt", "four")).busy_slots == 4


async def test_38_the_start_time_in_the_header_is_not_read() -> None:
    """It is a monotonic clock's."""
    header = {"Process-Start-Time-Unix": "5012345678"}
    pages = {
        path: Answer(answer.body, headers=header) for path, answer in llamacpp_pages("split", "load2").items()
    }
    series, _ = await scrape(pages, "kv_unified: false")
    assert value(series, "requests_running", server="s") == 4
    assert (value(series, "server_start_timestamp_seconds", server="s") or 2e9) > 1e9
    assert ask(real("split", "load2"))[0].start_timestamp_seconds is None


def test_39_a_counter_that_is_not_read_is_absent_not_0() -> None:
    """A sleeper's counters go on when it wakes: 0 in between would look like a restart."""
    rank = ask(SLEEPS)[0].ranks[0]
    assert (rank.generation_tokens_total, rank.prefix_cache_hits_total) == (None, None)


# Transport and identity


@pytest.mark.parametrize(
    "path, status, expected",
    [
        ("/props", 503, "loading"),
        ("/props", 401, "unauthorized"),
        ("/props", 400, "http_error"),
        ("/metrics", 501, "not_enabled"),
        ("/metrics", 401, "unauthorized"),
    ],
)
async def test_40_a_status_is_never_turned_into_0(path: str, status: int, expected: str) -> None:
    """Loading, switched off, no key and no model each have their reason, and no series of requests."""
    body = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
    pages = {**llamacpp_pages("split", "load2"), path: Answer(body, status=status)}
    series, _ = await scrape(pages, "engine: llamacpp, kv_unified: false")
    assert reason(series, "engine", "s") == expected
    assert "kvwatch_requests_running" not in series


def test_41_health_is_not_asked() -> None:
    """It says ok of a sleeper and of a router without a model."""
    asked = {path for pages in (SLEEPS, ROUTER, real("split", "load2")) for path in fetched(pages)}
    assert asked == {"/props", "/metrics", "/slots", "/models"}


async def test_42_a_server_that_does_not_answer_in_time_is_asked_no_more() -> None:
    """While it wakes or decodes a page may hang: nothing else is tried, and no old value is shown as new."""
    pages = llamacpp_pages("split", "load2")
    for path, asked in (("/props", {"/props"}), ("/metrics", {"/props", "/metrics"})):
        async with replaying({**pages, path: Answer(hang=True)}) as replay:
            text = f"scrape: {{deadline: 300ms}}\nservers: [{{name: s, url: '{replay.url}'}}]"
            async with running(config(text)) as daemon:
                series = await daemon.until(lambda series: "kvwatch_source_up" in series)
                assert reason(series, "engine", "s") == "timeout"
                assert set(replay.asked) == asked
                assert "kvwatch_requests_running" not in series


async def test_43_a_key_and_a_prefix_reach_every_page(tmp_path: Path) -> None:
    """Also the list of models, which needs the key since b10531."""
    token = tmp_path / "token"
    token.write_text("k\n")
    for pages in (ROUTER, real("split", "load2")):
        prefixed = {f"/llm{path}": answer for path, answer in answers(pages).items()}
        async with replaying(prefixed) as replay:
            text = f"servers: [{{name: s, url: '{replay.url}/llm/', bearer_token_file: '{token}'}}]"
            async with running(config(text)) as daemon:
                await daemon.until(lambda series: "kvwatch_source_up" in series)
                assert {f"/llm{path}" for path in pages} == set(replay.asked)
                assert {headers.get("Authorization") for headers in replay.headers} == {"Bearer k"}


def test_44_a_routers_children_are_named_with_their_addresses() -> None:
    """Each is a server of its own on a port of its own; one that is not loaded has none."""
    error = refused(ROUTER)
    assert error.reason is Reason.NOT_SUPPORTED
    assert re.search(r"\(alpha at http://127\.0\.0\.1:\d{4,5}\)$", error.detail), error.detail


LOADED = '{"id": "a", "status": {"value": "loaded", "args": ["x", "--host", "h", "--port", "1"]}}'
SLEEPING = '{"id": "b", "status": {"value": "sleeping", "args": ["x", "--port", "2", "--host", "h"]}}'
UNLOADED = '{"id": "c", "status": {"value": "unloaded", "args": ["x", "--host", "h", "--port", "0"]}}'
NO_ADDRESS = '{"id": "a", "status": {"value": "loaded", "args": [1, null]}}'
ODD = '1, null, {"status": "loaded"}, {"status": {"value": []}}'
MODEL_LISTS: dict[str, tuple[str | Reason, str]] = {
    "none loaded": (f'{{"data": [{UNLOADED}]}}', "(none is loaded now)"),
    "two, one of them asleep": (
        f'{{"data": [{LOADED}, {SLEEPING}, {UNLOADED}]}}', "(a at http://h:1, b at http://h:2)"),
    "an address that is not told": (f'{{"data": [{NO_ADDRESS}]}}', "(a at http://?:?)"),
    "needs a key": (Reason.UNAUTHORIZED, "(the list of its models could not be read)"),
    "no JSON": ("<html>", "(the list of its models could not be read)"),
    "another document": ("[]", "(the list of its models could not be read)"),
    "odd cards": (f'{{"data": [{ODD}]}}', "(none is loaded now)"),
}  # fmt: skip


@pytest.mark.parametrize("situation", MODEL_LISTS)
def test_44_a_routers_list_never_breaks_its_reason(situation: str) -> None:
    """Whatever the list says, the router is told to be one."""
    body, words = MODEL_LISTS[situation]
    error = refused({**ROUTER, "/models": body})
    assert error.reason is Reason.NOT_SUPPORTED
    assert error.detail.endswith(words)


@pytest.mark.parametrize("build", ["b0-unknown", "", "b1", None])
def test_46_a_build_without_a_number_is_read_by_its_features(build: str | None) -> None:
    """What is missing is told by what is on the pages."""
    pages = real("split", "load2")
    reading, _ = ask({**pages, "/props": changed(pages["/props"], build_info=build)})
    assert (reading.version, reading.missing) == (build, ())
    assert reading.ranks == ask(pages)[0].ranks


@pytest.mark.parametrize("form", [[{"n_remain": 7, "n_decoded": 1}], {"n_remain": 7, "n_decoded": 1}])
def test_47_the_next_token_is_an_object_or_an_array_of_one(form: object) -> None:
    """Both have been sent, and both are documented."""
    slots = pool_of(with_slots(real("split", "load2"), next_token=form)).slots
    assert slots is not None
    assert {slot.remaining_tokens for slot in slots} == {7}


async def test_48_slots_switched_off_leave_idle_slots_known() -> None:
    """Off by default in 2024 and 2025: how many are busy is on /metrics, what they hold is unknown."""
    pages = {**server("2024-08"), "/slots": Reason.NOT_ENABLED}
    pool = pool_of(pages)
    assert (pool.busy_slots, pool.slots) == (1, None)
    served = {**answers(server("2024-08")), "/slots": Answer(status=501)}
    series, _ = await scrape(served, "kv_unified: false")
    assert value(series, "full_length_requests_fit_now", server="s") == 1
    assert value(series, "kv_usage_ratio", server="s") is None


async def test_49_a_users_words_go_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """Old builds send prompts in /slots: not into logs, not into /debug, not into an error."""
    caplog.set_level(logging.DEBUG)
    pages = server("2024-08")
    assert "own words" in str(pages["/slots"])
    got = {
        path: Page(path=path, body=str(body), status=200)
        for path, body in {**pages, "/slots": str(pages["/slots"])[:-3]}.items()
    }
    with pytest.raises(SourceError) as caught:
        llamacpp.read(got)
    assert "words" not in str(caught.value)
    visit = Visit(
        pages=tuple(got.values()),
        adapter=ADAPTERS["llamacpp"],
        reading=ask(pages)[0],
        outcome=Outcome(
            source=Source.ENGINE, target="s", reason=caught.value.reason, detail=caught.value.detail
        ),
    )
    assert "words" not in json.dumps(visit_document(visit))
    async with (
        replaying(answers(pages)) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        await daemon.until(lambda series: value(series, "requests_running", server="s") == 1)
        texts = [
            await daemon.text(path) for path in ("/metrics", "/api/v1/snapshot", "/debug/target?server=s")
        ]
        replay.pages["/slots"] = edited(replay.pages["/slots"], "[{", "[[")
        await daemon.until(lambda series: reason(series, "engine", "s") == "parse_error")
        texts.append(await daemon.text("/debug/target?server=s"))
    assert "words" not in "".join(texts) + caplog.text
    assert Counter(bool(text) for text in texts) == {True: 4}
