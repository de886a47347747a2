"""What makes a scraper of vLLM report wrong numbers, by its number in docs/pitfalls-vllm.md."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvwatch.capacity import Facts, rank_state
from kvwatch.engines import vllm
from kvwatch.progress import Progress, suspected_recomputes
from kvwatch.readings import EngineReading, Page, Reason, SourceError
from kvwatch.target import Target
from tests.replay import vllm_pages
from tests.vllm_page import MODEL, page, without

if TYPE_CHECKING:
    from kvwatch.snapshot import RankState

DOCUMENT = Path(__file__).parents[1] / "docs" / "pitfalls-vllm.md"
CARDS = json.dumps({"data": [{"id": MODEL, "root": "/models/tiny", "max_model_len": 128}]})
NEWEST = page("0.32.0", usage=0.25, running=2, waiting=1, finished=7)


def read(text: str, models: str | Reason = CARDS, version: str = '{"version": "0.32.0"}') -> EngineReading:
    """Read a page of metrics beside the others."""
    return vllm.read(
        {
            "/metrics": Page(path="/metrics", body=text),
            "/v1/models": Page(
                path="/v1/models",
                body=models if not isinstance(models, Reason) else None,
                reason=models if isinstance(models, Reason) else None,
            ),
            "/version": Page(path="/version", body=version),
        }
    )


def refused(text: str) -> Reason:
    """Return why a page is refused."""
    with pytest.raises(SourceError) as caught:
        read(text)
    return caught.value.reason


def captured(state: str) -> EngineReading:
    """Read a captured page."""
    pages = vllm_pages(state)
    return vllm.read({path: Page(path=path, body=answer.body.decode()) for path, answer in pages.items()})


def state_of(reading: EngineReading, *, request_limit: int | None = None) -> RankState:
    """Return what a server's first rank comes to, its model unknown."""
    target = Target(name="s", url="http://h:1", host="h", port=1, request_limit=request_limit)
    facts = Facts(
        target=target,
        full_length_tokens=reading.full_length_tokens,
        asleep=reading.sleeping is True,
        plan=None,
        bytes_known=False,
    )
    return rank_state(reading.ranks[0], facts, None)


def unread(*lines: str) -> None:
    """Check that lines on a page change nothing."""
    assert read(NEWEST + "".join(f"{line}\n" for line in lines)) == read(NEWEST)


# Capacity


def test_01_blocks_are_a_sum_over_ranks() -> None:
    """Each rank's series repeats all ranks' blocks; what is not summed stays whole."""
    got = read(page("0.32.0", ranks="0123", labels={"num_gpu_blocks": "404"})).ranks
    assert [(rank.num_blocks, rank.max_concurrency, rank.kv_size_tokens) for rank in got] == [
        (101, 12.625, 1616)
    ] * 4


def test_02_blocks_may_be_the_word_none() -> None:
    """It is unknown, and neither zero nor a refusal."""
    got = read(page("0.16.0", ranks="01", labels={"num_gpu_blocks": "None"}))
    assert [rank.num_blocks for rank in got.ranks] == [None, None]
    assert "vllm:cache_config_info{num_gpu_blocks}" in got.missing
    assert state_of(got).usable_blocks is None


def test_03_the_configuration_comes_last() -> None:
    """Before it is there the pool is unknown and requests are read."""
    got = read(without(NEWEST, "vllm:cache_config_info"))
    assert got.ranks[0].running == 2
    assert state_of(got).full is None
    assert got.missing == ("vllm:cache_config_info",)


def test_04_blocks_times_their_size_are_no_capacity() -> None:
    """A hybrid's 899 blocks of 32 hold 4,733 tokens of full-length requests, and not 28,768."""
    state = state_of(captured("hybrid-idle"))
    assert state.capacity_tokens == pytest.approx(899 / 389 * 2048)
    assert state.ceiling is None


def test_05_the_engines_tokens_hold_for_full_length_only() -> None:
    """They are shown as the engine's own and nothing is computed from them."""
    other = NEWEST.replace('kv_cache_size_tokens="1616"', 'kv_cache_size_tokens="9999"')
    got = read(other)
    assert got.ranks[0].kv_size_tokens == 9999
    assert state_of(got).full == state_of(read(NEWEST)).full


def test_06_the_printed_concurrency_counts_the_null_block() -> None:
    """Of 11 blocks and 8 a request it prints 1.38, and 1.25 can be held."""
    labels = {"num_gpu_blocks": "11", "kv_cache_max_concurrency": "1.375"}
    state = state_of(read(page("0.32.0", usage=0.0, labels=labels)))
    assert state.capacity_tokens == pytest.approx(1.25 * 128)


def test_08_a_cache_dtype_of_auto_is_no_number_of_bytes() -> None:
    """It is passed on as said; without the model no bytes are known."""
    got = read(NEWEST)
    assert got.cache_dtype == "auto"
    assert (state_of(got).capacity_bytes, state_of(got).bytes_per_token) == (None, None)


def test_09_the_share_means_nothing_under_a_pin_or_a_number_of_blocks() -> None:
    """The label keeps its value."""
    assert read(NEWEST).share_ratio == 0.9
    assert read(NEWEST.replace('_override="None"', '_override="101"')).share_ratio is None
    pinned = read(NEWEST.replace('kv_cache_memory_bytes="None"', 'kv_cache_memory_bytes="1073741824"'))
    assert (pinned.share_ratio, pinned.pin_bytes) == (None, 1 << 30)


@pytest.mark.parametrize("label", ["hash_block_size", "kv_cache_layout", "mamba_cache_dtype"])
def test_10_labels_that_only_the_engine_resolves_are_not_believed(label: str) -> None:
    """What reads None there may be anything in the engine, and the same name meant other things before."""
    got = read(NEWEST.replace(f'{label}="None"', f'{label}="64"'))
    assert (got.ranks, got.missing) == (read(NEWEST).ranks, read(NEWEST).missing)


def test_11_labels_come_and_go() -> None:
    """A label more or less is no other reading."""
    more = NEWEST.replace("cache_config_info{", 'cache_config_info{a_label_of_tomorrow="1",')
    assert read(more) == read(NEWEST)
    assert read(without(NEWEST, "{kv_cache_layout}", "{num_cpu_blocks}")) == read(NEWEST)


def test_12_a_sleeping_server_has_no_room() -> None:
    """Its gauges read as an empty pool."""
    awake = f'vllm:engine_sleep_state{{engine="0",sleep_state="awake",model_name="{MODEL}"}} '
    assert f"{awake}1.0" in NEWEST
    got = read(NEWEST.replace(f"{awake}1.0", f"{awake}0.0"))
    state = state_of(got)
    assert got.sleeping is True
    assert (state.usage_ratio, state.free_blocks, state.full and state.full.now) == (None, None, None)


def test_14_scaling_up_sets_all_counters_back() -> None:
    """The window of finished requests begins anew, and nothing is suspected of those that vanished."""
    before = read(page("0.32.0", running=9, finished=50))
    after = read(page("0.32.0", ranks="01", waiting=4, finished=0, labels={"num_gpu_blocks": "202"}))
    progress = Progress()
    for at, reading in enumerate((before, after)):
        progress = progress.advance(reading, now=at, at=at, window_seconds=60)
    assert progress.windows["0"].typical() is None
    assert progress.suspected == {"0": 0, "1": 0}


# Usage and queue


def test_15_usage_is_no_percentage_and_two_gauges_are_one() -> None:
    """Half full is 0.5, whether one name says it, the other, or both."""
    assert read(page("0.10.2", usage=0.5)).ranks[0].usage_ratio == 0.5
    assert read(page("0.32.0", usage=0.5)).ranks[0].usage_ratio == 0.5
    assert refused(page("0.32.0", usage=50.0)) is Reason.PARSE_ERROR


def test_16_the_null_block_counts_as_used_up_to_0_10_1() -> None:
    """An idle pool reads 1/101 there, and is empty."""
    assert read(page("0.10.1", usage=1 - 100 / 101)).ranks[0].usage_ratio == pytest.approx(0)
    assert read(page("0.10.2", usage=0.0)).ranks[0].usage_ratio == 0


def test_17_idle_cached_prefixes_are_free() -> None:
    """After the load the cache is full of them and all 99 blocks can be had."""
    assert state_of(captured("after-load")).free_blocks == 99


def test_18_waiting_requests_may_hold_blocks() -> None:
    """What waits for a transfer does not wait for room, and the blocks it holds are not free."""
    deferred = NEWEST.replace(
        'reason="capacity",model_name="tiny"} 1.0', 'reason="capacity",model_name="tiny"} 0'
    )
    deferred = deferred.replace(
        'reason="deferred",model_name="tiny"} 0.0', 'reason="deferred",model_name="tiny"} 1'
    )
    state = state_of(read(deferred))
    assert state.load.waiting_for_capacity is False
    assert state.free_blocks == 75
    assert state.full is not None
    assert state.full.guaranteed == min(75 // 8, 100 // 8 - 3)


@pytest.mark.parametrize("reason", [Reason.UNREACHABLE, Reason.HTTP_ERROR, Reason.LOADING])
def test_20_a_dead_engine_is_no_idle_one(reason: Reason) -> None:
    """A page that cannot be had is a reason, and never zeros."""
    with pytest.raises(SourceError) as caught:
        vllm.read({"/metrics": Page(path="/metrics", body=None, reason=reason)})
    assert caught.value.reason is reason


def test_21_a_server_may_show_a_later_rank_alone() -> None:
    """Its blocks are its own."""
    assert [(rank.rank, rank.num_blocks) for rank in read(page("0.32.0", ranks="3")).ranks] == [("3", 101)]


def test_22_the_first_name_stands_for_all_aliases_and_adapters() -> None:
    """The longest request is the served model's; a LoRA's card has none."""
    cards = [
        {"id": MODEL, "root": "/models/tiny", "max_model_len": 128},
        {"id": "chat", "root": "/models/tiny", "max_model_len": 128},
        {"id": "sql", "root": "/adapters/sql", "parent": MODEL, "max_model_len": None},
    ]
    got = read(NEWEST, json.dumps({"data": cards}))
    assert (got.model, got.model_path, got.full_length_tokens) == (MODEL, "/models/tiny", 128)


def test_23_the_configuration_is_joined_by_rank() -> None:
    """It has no model's name."""
    text = page("0.32.0", ranks="01", labels={"num_gpu_blocks": "202"})
    assert not re.search(r"cache_config_info\{[^}]*model_name", text)
    other = text.replace('block_size="16"', 'block_size="32"', 1)
    assert [rank.block_size for rank in read(other).ranks] == [32, 16]


def test_24_the_limit_of_running_requests_is_on_no_page() -> None:
    """Unknown it bounds nothing; configured it does."""
    got = read(page("0.32.0", usage=0.0))
    free, bound = state_of(got).full, state_of(got, request_limit=3).full
    assert free is not None
    assert bound is not None
    assert (free.now, bound.now) == (12, 3)


def test_25_free_blocks_are_no_promise_while_requests_wait() -> None:
    """Whatever holds them back may hold back the next one."""
    full = state_of(read(NEWEST)).full
    assert full is not None
    assert (full.now, full.guaranteed) == (9, 0)


# Counters


def test_26_preemptions_are_counted_late() -> None:
    """Six requests lost their blocks, and the engine's counter still says 0."""
    before, now = captured("pool-full"), captured("preempted-not-yet-counted")
    assert now.ranks[0].preemptions_total == 0
    assert suspected_recomputes(before, now) == {"0": 6}


def test_27_counters_restart_with_the_server() -> None:
    """What fell begins anew; when the process started is said only by a single API server."""
    before, after = read(page("0.32.0", running=9, finished=50)), read(page("0.32.0", waiting=9, finished=1))
    assert suspected_recomputes(before, after) == {"0": 0}
    assert read(NEWEST).start_timestamp_seconds is None
    assert read(f"{NEWEST}process_start_time_seconds 1.7e9\n").start_timestamp_seconds == 1.7e9


def test_28_a_name_ending_in_total_may_be_a_histogram() -> None:
    """Tokens of an iteration are no counter of generated tokens."""
    assert "vllm:iteration_tokens_total_sum" in NEWEST
    assert read(NEWEST).ranks[0].generation_tokens_total == 1000
    unread('vllm:kv_offload_total_bytes_total{engine="0"} 5', 'vllm:iteration_tokens_total{engine="0"} 5')


def test_29_moments_of_creation_are_no_values() -> None:
    """A page with them reads as one without."""
    assert "_created{" in NEWEST
    assert read(page("0.32.0", finished=7)) == read(page("0.32.0", finished=7, created=False))


def test_30_prompt_tokens_jump_and_hold_cached_ones() -> None:
    """The typical prompt comes from finished requests."""
    assert read(NEWEST.replace("prompt_tokens_total{", "prompt_tokens_total_{")) == read(NEWEST)
    unread('vllm:prompt_tokens_total{engine="9"} 5e9')


def test_31_prefix_counters_of_blocks_are_not_shown_as_tokens() -> None:
    """The old names counted either, by release."""
    text = page("0.8.5")
    assert "vllm:gpu_prefix_cache_queries_total{" in text
    assert read(text).ranks[0].prefix_cache_queries_total is None


def test_32_a_typical_request_needs_finished_ones() -> None:
    """Right after a start nothing has finished, and nothing is typical."""
    progress = Progress()
    for at, finished in enumerate((0, 0)):
        reading = read(page("0.32.0", running=5, finished=finished))
        progress = progress.advance(reading, now=at, at=at, window_seconds=60)
    assert progress.windows["0"].typical() is None


def test_33_buckets_are_not_read() -> None:
    """A quantile above the last edge is no number; means are."""
    lines = [line for line in NEWEST.splitlines() if "_bucket{" not in line]
    assert len(lines) < len(NEWEST.splitlines())
    assert read("\n".join(lines) + "\n") == read(NEWEST)


def test_34_a_default_length_of_answers_is_no_length() -> None:
    """request_params_max_tokens is what the engine filled in."""
    assert read(without(NEWEST, "vllm:request_params_max_tokens_sum")) == read(NEWEST)


def test_35_preemptions_by_request_are_no_count_of_preemptions() -> None:
    """The first bucket mixes none and one; the series only tells how new the page is."""
    text = without(NEWEST, "vllm:request_num_preemptions_sum", "vllm:request_num_preemptions_bucket")
    assert read(text) == read(NEWEST)


def test_36_adapters_in_use_are_a_moment_and_not_a_count() -> None:
    """Their gauge is a time, and its old label sets stay."""
    unread('vllm:lora_requests_info{max_lora="1",running_lora_adapters="a",waiting_lora_adapters=""} 1.7e9')


# Endpoints and format


def test_37_statistics_switched_off_are_no_zeros() -> None:
    """The page answers 200 and has other programs' series only."""
    assert refused("python_info 1.0\nhttp_requests_total 5.0\n") is Reason.NO_ENGINE_SERIES


def test_38_the_path_is_exact_and_both_spellings_are_read() -> None:
    """With a trailing slash another application answers and may spell the names with an underscore."""
    assert vllm.next_path({}) == "/metrics"
    assert read(NEWEST.replace("vllm:", "vllm_")) == read(NEWEST)
    assert vllm.recognises("# HELP x y\nvllm_num_requests_running 1.0\n")


def test_39_a_key_may_be_wanted_for_the_models_alone() -> None:
    """Everything else is read, and why the longest request is unknown is said."""
    got = read(NEWEST, Reason.UNAUTHORIZED)
    assert (got.ranks[0].running, got.full_length_tokens) == (2, None)
    assert got.full_length_reason is Reason.UNAUTHORIZED


def test_40_labels_have_no_order_and_may_hold_anything() -> None:
    """They are parsed, not matched."""
    turned = re.sub(r'\{engine="0",([^}]*)\}', r'{\1,engine="0"}', NEWEST)
    assert turned != NEWEST
    assert read(turned) == read(NEWEST)
    odd = NEWEST.replace(
        "cache_config_info{", "cache_config_info{kv_cache_dtype_skip_layers=\"['0', '\\\"}']\","
    )
    assert read(odd) == read(NEWEST)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1.0"])
def test_41_what_is_no_number_of_requests_is_refused(value: str) -> None:
    """It is neither zero nor passed on."""
    line = f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} '
    assert refused(NEWEST.replace(f"{line}2.0", f"{line}{value}")) is Reason.PARSE_ERROR


def test_42_the_api_servers_memory_is_not_the_caches() -> None:
    """Its own series are left alone."""
    unread("process_resident_memory_bytes 7.5e+08", 'http_requests_total{handler="/v1/completions"} 5.0')


DEAD = {
    "its configuration": 'vllm:cache_config_info{engine="0",num_gpu_blocks="50"} 1.0',
    "its requests, by process": f'vllm:num_requests_running{{engine="0",model_name="{MODEL}",pid="7"}} 4.0',
    "its usage, by process": f'vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}",pid="7"}} 0.9',
    "its requests, under another name": 'vllm:num_requests_running{engine="0",model_name="other"} 4.0',
}


@pytest.mark.parametrize("what", DEAD)
def test_43_a_dead_runs_series_are_not_taken_for_the_present_ones(what: str) -> None:
    """Files that an earlier run left behind make a page ambiguous."""
    assert refused(f"{NEWEST}{DEAD[what]}\n") is Reason.AMBIGUOUS


def test_43_one_process_label_is_no_other_server() -> None:
    """Gauges of 0.8.5 carry a pid when a folder for several processes is set."""
    text = page("0.8.5", running=2, usage=1.0).replace("{engine=", '{pid="7",engine=')
    assert (read(text).ranks[0].running, read(text).ranks[0].usage_ratio) == (2, 1.0)


def test_44_rays_names_are_not_vllms() -> None:
    """They come from another exporter, for many servers at once."""
    assert not vllm.recognises(NEWEST.replace("vllm:", "ray_vllm_"))
    assert refused(NEWEST.replace("vllm:", "ray_vllm_")) is Reason.NO_ENGINE_SERIES


def test_51_the_page_says_what_it_has() -> None:
    """What /version says changes neither what is read nor what is missed."""
    for release in ("0.8.5", "0.10.1", "0.16.0", "0.32.0"):
        old, new = (read(page(release), version=f'{{"version": "{v}"}}') for v in ("0.8.5", "0.32.0"))
        same = {"version": None, "release": None}
        assert replace(old, **same) == replace(new, **same)


@pytest.mark.parametrize("version", ["0.32.0.post2", "0.1.dev1+gabc", "", "v0.32", "0.32.0+cpu"])
def test_52_a_version_is_a_text(version: str) -> None:
    """It is shown, and never compared here."""
    assert read(NEWEST, version=json.dumps({"version": version})).version == version


def test_every_pitfall_has_a_test_or_a_reason() -> None:
    """docs/pitfalls-vllm.md lists all 52 and gives a reason for each that has no test here."""
    tested = {
        int(match) for match in re.findall(r"^def test_(\d\d)_", Path(__file__).read_text(), re.MULTILINE)
    }
    listed = dict(re.findall(r"^\| (\d+) \| ([^|]+) \|", DOCUMENT.read_text(), re.MULTILINE))
    reasons = {int(number) for number, what in listed.items() if not what.startswith("`test_")}
    named = {int(number) for number, what in listed.items() if what.startswith("`test_")}
    assert {int(number) for number in listed} == set(range(1, 53))
    assert (named, reasons) == (tested, set(range(1, 53)) - tested)
    names = set(re.findall(r"^def (test_\d\d_\w+)", Path(__file__).read_text(), re.MULTILINE))
    assert set(re.findall(r"`(test_\d\d_\w+)`", DOCUMENT.read_text())) == names
