"""From exported series to observations: gaps, resets, clashing names, setups, starts, selectors."""

from __future__ import annotations

import random

import pytest

from kvwatch.observation import Neighbour
from kvwatch.snapshot import KvGroup
from kvwatch.triage.prometheus import PrometheusSource
from kvwatch.triage.prometheus_api import Access, PrometheusApi
from kvwatch.triage.prometheus_observations import Grid, observations_of
from kvwatch.triage.prometheus_series import SelectorError, Series, matcher, parse_selector
from kvwatch.triage.prometheus_servers import series_by_server
from kvwatch.triage.prometheus_starts import start_windows
from kvwatch.triage.source import Span
from tests.triage.stub_api import stub_api

MINUTE = Grid(seconds=60)


def series(name: str, samples: object, /, **labels: str) -> Series:
    """Return a series of the server chat, rank 0; samples are {minute: value} or one value for 0 to 9."""
    by_minute = samples if isinstance(samples, dict) else dict.fromkeys(range(10), samples)
    pairs = [(minute * 60.0, float(value)) for minute, value in sorted(by_minute.items())]
    return Series(name=f"kvwatch_{name}", labels={"server": "chat"} | labels, samples=pairs)


def rank(name: str, samples: object, /, **labels: str) -> Series:
    """Return a series of rank 0."""
    return series(name, samples, rank="0", **labels)


def group(number: int, **labels: str) -> Series:
    """Return a KV group's series."""
    return series("kv_group_info", 1, group=str(number), block_size="16", **labels)


def read(*given: Series) -> dict[int, object]:
    """Return the observations by the minute of their end."""
    return {
        round(one.at / 60) + 1: one
        for one in observations_of("chat", given, MINUTE, drivers={"GPU-0": "580.1"})
    }


def test_a_step_without_a_sample_has_no_observation_and_no_zero() -> None:
    """A hole stays a hole; what was not exported is None, a measured zero is 0."""
    found = read(rank("requests_running", {1: 3, 2: 0, 8: 5}))
    assert sorted(found) == [1, 2, 8]
    assert [found[step].running_mean for step in (1, 2, 8)] == [3, 0, 5]
    assert found[2].usage_mean is None
    assert found[2].waiting_mean == {}
    assert found[2].waiting_max is None
    assert (found[1].at, found[1].seconds) == (0, 60)


def test_counters_gain_over_resets_and_not_over_long_holes() -> None:
    """A first gain is unknown, and one over a long hole; a counter that fell restarts all of its rank's."""
    found = read(
        rank("finished_requests_total", {1: 100, 2: 110, 3: 4, 9: 50}, reason="stop"),
        rank("finished_requests_total", {2: 5, 3: 1, 9: 1}, reason="abort"),
        # Grew past what it was, within the minute of the restart: the other counters tell.
        rank("finished_prompt_tokens_total", {1: 10, 2: 20, 3: 900, 9: 1000}),
        rank("request_queue_seconds_sum", {1: 1, 2: 3}),
        rank("request_queue_seconds_count", {1: 1, 2: 2}),
    )
    assert [found[step].finished for step in (1, 2, 3, 9)] == [None, 15, 5, None]
    assert [found[step].finished_prompt_tokens for step in (1, 2, 3, 9)] == [None, 10, 900, None]
    assert (found[2].queue_seconds.sum, found[2].queue_seconds.count) == (2, 1)
    assert found[3].queue_seconds is None


def test_a_scrape_that_came_late_is_no_hole() -> None:
    """What a counter gained since the minute before last counts in the minute of the sample."""
    found = read(rank("preemptions_total", {1: 7, 3: 9}))
    assert [found[step].preemptions for step in (1, 3)] == [None, 2]


def test_the_suspicions_of_kvwatch_begin_anew_with_kvwatch_alone() -> None:
    """Its own counter falls at its own restart; the engine's go on."""
    found = read(rank("recompute_suspected_total", {1: 9, 2: 1}), rank("preemptions_total", {1: 100, 2: 103}))
    assert (found[2].suspected, found[2].preemptions) == (1, 3)


def test_a_setup_is_what_the_series_say_and_nothing_more() -> None:
    """Block bytes and R are quotients of exported numbers; empty labels are unknown."""
    found = read(
        series("server_info", 1, engine="vllm", model="m", version="0.32.0", url="u", fingerprint="f"),
        series(
            "server_config_info", 1, cache_dtype="fp8", tensor_parallel="2", pipeline_parallel="",
            model_hash="h", block_size="16", max_num_batched_tokens="",
        ),
        group(0, kind="full", layers="4", page_bytes="8192", window=""),
        group(1, kind="window", layers="2", page_bytes="8192", window="128"),
        series("server_share_ratio", 0.9),
        series("full_length_tokens", 1024),
        series("server_device_memory_bytes", 10**9, device="GPU-0"),
        rank("kv_capacity_blocks", 99),
        rank("kv_capacity_bytes", 99 * 32_768),
        rank("kv_capacity_tokens", 99 / 64 * 1024),
        rank("request_limit", 16),
    )  # fmt: skip
    setup = found[5].setup
    assert (setup.engine, setup.model, setup.version, setup.fingerprint) == ("vllm", "m", "0.32.0", "f")
    assert (setup.cache_dtype, setup.tensor_parallel, setup.pipeline_parallel) == ("fp8", 2, None)
    assert (setup.model_hash, setup.block_size, setup.max_num_batched_tokens) == ("h", 16, None)
    assert setup.groups == (
        KvGroup(kind="full", layers=4, block_size=16, page_bytes=8192, window=None),
        KvGroup(kind="window", layers=2, block_size=16, page_bytes=8192, window=128),
    )
    assert (setup.share_ratio, setup.pin_bytes, setup.full_length_tokens) == (0.9, None, 1024)
    assert (setup.bytes_per_block, setup.resident_blocks, setup.request_limit) == (32_768, 64, 16)
    assert (setup.devices, setup.driver, setup.settings) == (("GPU-0",), "580.1", ())
    assert found[5].device_bytes == {"GPU-0": 10**9}
    assert (found[5].usable_blocks, found[5].usable_bytes) == (99, 99 * 32_768)
    assert found[4].setup is setup


def test_a_cost_function_of_which_a_part_cannot_be_read_is_none() -> None:
    """Half of the groups would be another model."""
    (one, *_) = read(
        rank("requests_running", 1),
        group(0, kind="full", layers="4", page_bytes="1"),
        group(1, kind="full", layers="?", page_bytes="1"),
    ).values()
    assert one.setup.groups == ()


def test_where_two_setups_meet_in_a_step_the_later_one_holds() -> None:
    """The step of a restart has the labels of both lives."""
    found = read(
        rank("requests_running", 1),
        series("server_info", dict.fromkeys(range(6), 1), version="1", fingerprint="a"),
        series("server_info", dict.fromkeys(range(5, 10), 1), version="2", fingerprint="b"),
    )
    assert [found[step].setup.version for step in (4, 5, 6)] == ["1", "2", "2"]


def test_two_machines_with_a_server_of_the_same_name_are_told_apart() -> None:
    """Series that overlap in time under different instances are of two servers."""
    one, other = (
        rank("requests_running", value, instance=instance, job="kvwatch")
        for instance, value in (("a:9836", 1), ("b:9836", 2))
    )
    assert series_by_server([one, other], slack_seconds=300) == {"chat@a:9836": [one], "chat@b:9836": [other]}


def test_a_daemon_that_moved_still_watches_the_same_server() -> None:
    """Series that follow each other are of one server, the one that is most alike where there are two."""
    lives = [
        rank("requests_running", dict.fromkeys(range(start, start + 5), 1), node=node, instance=instance)
        for node, instance, start in (
            ("n1", "10.0.0.1", 0), ("n2", "10.0.0.2", 0), ("n2", "10.0.0.7", 5), ("n1", "10.0.0.8", 5),
        )
    ]  # fmt: skip
    found = series_by_server(lives, slack_seconds=60)
    assert found == {"chat@10.0.0.8": [lives[0], lives[3]], "chat@10.0.0.7": [lives[1], lives[2]]}
    assert list(series_by_server([lives[0], lives[3]], slack_seconds=60)) == ["chat"]


def test_copies_of_a_pair_of_prometheus_servers_are_one_server() -> None:
    """Labels of replicas set no servers apart; the fuller copy is read."""
    fuller = rank("requests_running", 1, instance="a", prometheus_replica="1")
    lesser = rank("requests_running", {1: 1}, instance="a", prometheus_replica="0")
    assert series_by_server([lesser, fuller], slack_seconds=60) == {"chat": [fuller]}


def near(*processes: tuple[str, str, dict[int, float]]) -> list[Series]:
    """Return what a device shows around a start: the server's own process 10, and these others."""
    own = {1: 1e9, 2: 9e9, 3: 20e9}
    result = [
        series("server_device_memory_bytes", own, device="GPU-0"),
        rank("kv_capacity_blocks", {3: 99}),
        Series(name="kvwatch_device_memory_free_bytes", labels={"device": "GPU-0"},
               samples=[(60.0, 50e9), (120.0, 40e9), (180.0, 20e9)]),
    ]  # fmt: skip
    for pid, server, held in [("10", "chat", own), *processes]:
        info = {"device": "GPU-0", "pid": pid, "name": "python3", "server": server}
        result.append(series("process_info", dict.fromkeys(held, 1), **info))
        result.append(
            Series(
                name="kvwatch_process_memory_bytes",
                labels={"device": "GPU-0", "pid": pid},
                samples=[(minute * 60.0, value) for minute, value in held.items() if value],
            )
        )
    return result


def test_a_start_window_names_who_came_and_grew() -> None:
    """A neighbour that was not there held 0; one whose memory is N/A held an unknown amount."""
    seen = near(
        ("77", "", {2: 3e9, 3: 6e9}),
        ("78", "embedding", {1: 5e9, 2: 5e9, 3: 5e9}),
        ("79", "", {1: 0, 2: 0, 3: 0}),
    )
    own = [one for one in seen if one.labels.get("server") == "chat"]
    (window,) = start_windows("chat", 30.0, own, seen, step_seconds=15)
    assert (window.device, window.started_at, window.ready_at, window.seen_from) == ("GPU-0", 30, 180, 60)
    assert (window.free_first_bytes, window.free_last_bytes) == (50 * 10**9, 20 * 10**9)
    assert window.neighbours == (
        Neighbour(
            server="", name="python3", pid=77, first_bytes=0, last_bytes=6 * 10**9, most_bytes=6 * 10**9
        ),
        Neighbour(
            server="embedding", name="python3", pid=78, first_bytes=5 * 10**9, last_bytes=5 * 10**9,
            most_bytes=5 * 10**9,
        ),
        Neighbour(server="", name="python3", pid=79, first_bytes=None, last_bytes=None, most_bytes=None),
    )  # fmt: skip


def test_without_processes_other_servers_are_the_neighbours() -> None:
    """Where no process is exported, what whole servers hold is."""
    seen = [one for one in near() if "process" not in one.name]
    seen.append(series("server_device_memory_bytes", {2: 3e9, 3: 6e9}, device="GPU-0", server="embedding"))
    own = [one for one in seen if one.labels.get("server") == "chat"]
    (window,) = start_windows("chat", 30.0, own, seen, step_seconds=15)
    assert [(one.server, one.name, one.first_bytes, one.last_bytes) for one in window.neighbours] == [
        ("embedding", "", 0, 6 * 10**9),
        # Of the 30 GB that were taken, 19 are the server's own.
        ("", "other", 0, 5 * 10**9),
    ]


def test_a_whole_server_that_started_again_is_two_neighbours() -> None:
    """What its earlier life held hides nothing of what the next one takes."""
    seen = [one for one in near() if "process" not in one.name and "free" not in one.name]
    seen.append(
        series("server_device_memory_bytes", {0: 9e9, 1: 9e9, 2: 1e9, 3: 8e9}, device="GPU-0", server="e")
    )
    own = [one for one in seen if one.labels.get("server") == "chat"]
    (window,) = start_windows("chat", 30.0, own, seen, step_seconds=15)
    assert [(one.first_bytes, one.last_bytes) for one in window.neighbours] == [
        (9 * 10**9, 0),
        (0, 8 * 10**9),
    ]


def test_the_ledger_tells_what_is_nobodys() -> None:
    """Where no process is exported, the ledger's part for others is one neighbour."""
    seen = [one for one in near() if "process" not in one.name]
    ledger = {1: 2e9, 2: 3e9, 3: 7e9}
    seen.append(series("device_ledger_bytes", ledger, device="GPU-0", server="", component="other"))
    own = [one for one in seen if one.labels.get("server") == "chat"]
    (window,) = start_windows("chat", 30.0, own, seen, step_seconds=15)
    assert [(one.name, one.first_bytes, one.last_bytes) for one in window.neighbours] == [
        ("other", 2 * 10**9, 7 * 10**9)
    ]


def test_a_start_without_a_page_in_time_has_no_window() -> None:
    """Nothing is said about a server that shows no pool within half an hour."""
    assert start_windows("chat", 30.0, [], near(), step_seconds=15) == []


@pytest.mark.parametrize(
    "text, expected",
    [
        ('job="kvwatch"', 'job="kvwatch"'),
        ('{job="kvwatch", cluster=~"a|b" }', 'job="kvwatch",cluster=~"a|b"'),
        (r'a!="x\"y",', r'a!="x\"y"'),
    ],
)
def test_a_selector_is_a_list_of_matchers(text: str, expected: str) -> None:
    """Braces and blanks are nobody's business."""
    assert parse_selector(text) == expected


@pytest.mark.parametrize(
    "text", ["", "{}", "job", 'job="a"} or vector(1) or {b="c"', 'job="a" or up', "job='a'"]
)
def test_a_selector_that_would_be_more_is_refused(text: str) -> None:
    """It goes into a query, so nothing but matchers may."""
    with pytest.raises(SelectorError):
        parse_selector(text)


def test_a_servers_name_stays_a_value() -> None:
    """Whatever a name holds, it ends with its own quotation mark."""
    assert matcher("server", 'a"} or vector(1)\\\n') == r'server="a\"} or vector(1)\\\n"'


def test_every_query_carries_the_selector_and_asks_for_last_samples() -> None:
    """A window is asked for in steps that end at whole multiples, a little less than a step at a time."""
    with stub_api() as stub, PrometheusApi(Access(url=stub.url)) as api:
        source = PrometheusSource(api, selector='job="kvwatch"')
        assert source.read([Span(start_at=6010, end_at=6610)], 'ch"at') == [{}]
        assert source.latest(7200) is None
    assert len(stub.queries) == 6
    assert all('job="kvwatch"' in query["query"] for query in stub.queries)
    window = next(query for query in stub.queries if "finished_prompt_tokens" in query["query"])
    assert window["query"].startswith('last_over_time({__name__=~"kvwatch_')
    assert r'server="ch\"at"' in window["query"]
    assert window["query"].endswith("}[59999ms])")
    # One step earlier than the window, for the first gain.
    assert (window["start"], window["end"], window["step"]) == ("6060", "6600", "60")


def test_resets_anywhere_lose_nothing_but_the_unseen() -> None:
    """Whatever the noise, the gains of a counter are what was seen to be counted, never negative."""
    source = random.Random(4)  # noqa: S311 - no secret
    for _ in range(50):
        total, samples, counted = 0, {}, 0
        for minute in range(1, 60):
            if source.random() < 0.1:
                total = 0
            more = source.randint(0, 9)
            total += more
            samples[minute] = total
        gains = [one.preemptions for one in read(rank("preemptions_total", samples)).values()]
        counted = sum(
            now - before if now >= before else now
            for before, now in zip(list(samples.values()), list(samples.values())[1:], strict=False)
        )
        assert gains[0] is None
        assert sum(gains[1:]) == counted
