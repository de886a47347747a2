"""vLLM from 0.8.5 to 0.32, read by what is on the page and never by a version."""

from __future__ import annotations

import json

import pytest

from kvwatch.engines import vllm
from kvwatch.engines.vllm_levels import (
    CACHE_CONFIG,
    LEVELS,
    RUNNING,
    SLEEP_STATE,
    USAGE,
    USAGE_BEFORE,
    WAITING_BY_REASON,
)
from kvwatch.readings import EngineReading, Page, RankReading, Reason
from tests.replay import CAPTURES
from tests.vllm_page import MODEL, RELEASES, page, v0_page, without

MODELS = json.dumps({"data": [{"id": MODEL, "root": "/models/tiny", "max_model_len": 128}]})
OLD, NEW = RELEASES[: RELEASES.index("0.10.2")], RELEASES[RELEASES.index("0.10.2") :]


NOT_BEFORE_THE_FIRST_STEP = (RUNNING, "vllm:num_requests_waiting", USAGE, WAITING_BY_REASON)


def capture(state: str) -> str:
    """Return a page of a real vLLM 0.32.0."""
    return (CAPTURES / "vllm" / f"0.32.0-{state}.metrics").read_text()


def read(text: str, *, version: str = "0.0.1.dev7", models: str | Reason = MODELS) -> EngineReading:
    """Read a page; the version says nothing that could be used."""
    pages = {
        "/metrics": Page(path="/metrics", body=text),
        "/v1/models": Page(path="/v1/models", body=None, reason=models)
        if isinstance(models, Reason)
        else Page(path="/v1/models", body=models),
        "/version": Page(path="/version", body=json.dumps({"version": version})),
    }
    return vllm.read(pages)


def rank(text: str) -> RankReading:
    """Read the one rank of a page."""
    (only,) = read(text).ranks
    return only


@pytest.mark.parametrize("release", RELEASES)
def test_a_page_of_each_release_lacks_nothing(release: str) -> None:
    """What a release does not have is not missing from its page."""
    got = read(page(release, running=2, waiting=3))
    assert got.missing == ()
    assert (got.ranks[0].running, sum(got.ranks[0].waiting.values())) == (2, 3)
    assert (got.ranks[0].block_size, got.ranks[0].null_blocks) == (16, 1)
    assert got.ranks[0].num_blocks == (None if release == "0.8.5" else 101)


@pytest.mark.parametrize("release", OLD)
@pytest.mark.parametrize("used, of_usable", [(0, 0.0), (25, 0.25), (50, 0.5), (100, 1.0)])
def test_the_null_block_is_taken_out_of_older_releases_usage(
    release: str, used: int, of_usable: float
) -> None:
    """Up to 0.10.1 the gauge counts it as used, of all 101 blocks."""
    got = rank(page(release, usage=1.0 - (100 - used) / 101))
    if release == "0.8.5" and used < 100:
        assert got.usage_ratio is None
        assert got.usage_of_all_ratio == pytest.approx((used + 1) / 101)
    else:
        assert got.usage_ratio == pytest.approx(of_usable)
        assert got.usage_of_all_ratio is None


@pytest.mark.parametrize("release", NEW)
@pytest.mark.parametrize("used", [0, 25, 100])
def test_newer_releases_usage_is_taken_as_it_is(release: str, used: int) -> None:
    """From 0.10.2 it is a fraction of the blocks that requests can have."""
    got = rank(page(release, usage=used / 100))
    assert (got.usage_ratio, got.usage_of_all_ratio) == (used / 100, None)


LABEL, SERIES = "{kv_cache_memory_bytes}", "vllm:inter_token_latency_seconds_count"
DENOMINATORS = {
    "both say that the null block counts": (page("0.10.1", usage=1 / 101), 0.0),
    "both say that it does not": (page("0.10.2", usage=1 / 101), 1 / 101),
    "only the label says it does not": (without(page("0.10.2", usage=1 / 101), SERIES), None),
    "only the series says it does not": (without(page("0.10.2", usage=1 / 101), LABEL), None),
    "a later feature decides without them": (
        without(page("0.11.2", usage=1 / 101), SERIES, LABEL), 1 / 101),
    "no configuration on an old page": (without(page("0.10.1", usage=1 / 101), CACHE_CONFIG), None),
    "no configuration on a page of 0.10.2": (without(page("0.10.2", usage=1 / 101), CACHE_CONFIG), None),
    "no configuration on a later page": (without(page("0.20.0", usage=0.5), CACHE_CONFIG), 0.5),
    "less than the null block is used of all": (page("0.10.1", usage=0.0), None),
    "a pool of the null block alone": (page("0.10.1", usage=0.5, labels={"num_gpu_blocks": "1"}), None),
    "full is full by either": (page("0.8.5", usage=1.0), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("situation", DENOMINATORS)
def test_which_denominator_a_page_has_is_certain_or_unknown(situation: str) -> None:
    """Two things that came with the same release must agree, or a later one must stand."""
    text, expected = DENOMINATORS[situation]
    usage = rank(text).usage_ratio
    assert usage == (None if expected is None else pytest.approx(expected))


def test_two_gauges_of_one_usage_are_one() -> None:
    """0.9.2 to 0.10.2 show both names: they are never added, and the newer one is read."""
    text = page("0.10.2", usage=0.5)
    assert text.count("cache_usage_perc{") == 2
    assert rank(text).usage_ratio == 0.5
    assert rank(text.replace(f'{USAGE_BEFORE}{{engine="0",model_name="tiny"}} 0.5', "")).usage_ratio == 0.5
    assert rank(without(page("0.9.2", usage=0.5), USAGE)).usage_ratio == pytest.approx((0.5 * 101 - 1) / 100)


BROUGHT = sorted({name for level in LEVELS for name in level.brings} - {RUNNING, USAGE_BEFORE})


@pytest.mark.parametrize("name", BROUGHT)
def test_whatever_a_level_brought_is_missed_on_the_newest_page(name: str) -> None:
    """Each series and label that is read is named when it is gone."""
    text = page("0.32.0", labels={name.strip("{}"): "None"})
    text = text if name.startswith("{") else without(text, name)
    assert read(text).missing == (f"{CACHE_CONFIG}{name}" if name.startswith("{") else name,)


MISSING = {
    "what the first release has": ("0.8.5", USAGE_BEFORE, USAGE_BEFORE),
    "the gauge that replaced another": ("0.9.2", USAGE, USAGE),
    "the gauge that was replaced": ("0.9.2", USAGE_BEFORE, None),
    "the sleep state, of a page that has what came with it": ("0.11.2", SLEEP_STATE, SLEEP_STATE),
    "a reason for waiting, with nothing else that tells the level": ("0.20.0", WAITING_BY_REASON, None),
    "a reason for waiting, beside a later feature": ("0.24.0", WAITING_BY_REASON, WAITING_BY_REASON),
    "the rank of the configuration": ("0.9.1", "{engine}", None),
}


@pytest.mark.parametrize("situation", MISSING)
def test_what_is_missing_depends_on_what_else_is_there(situation: str) -> None:
    """A page without the only mark of its level is taken for an older one, which lacks nothing."""
    release, gone, expected = MISSING[situation]
    text = page(release)
    text = text.replace(',engine="0"} 1.0', "} 1.0") if gone == "{engine}" else without(text, gone)
    assert read(text).missing == (() if expected is None else (expected,))


def test_a_word_for_the_blocks_is_missing_only_where_a_number_should_be() -> None:
    """0.8.5 never says it; later releases do, unless several API servers show one page."""
    text = page("0.16.0", labels={"num_gpu_blocks": "None"})
    got = read(text)
    assert got.missing == (f"{CACHE_CONFIG}{{num_gpu_blocks}}",)
    assert (got.ranks[0].num_blocks, got.ranks[0].usage_ratio) == (None, 0.01)
    assert read(page("0.8.5")).missing == ()


def test_a_model_without_attention_has_no_capacity_to_state() -> None:
    """Both words are then what the release says, and nothing is missing."""
    labels = {"kv_cache_max_concurrency": "None", "kv_cache_size_tokens": "None"}
    assert len(read(page("0.24.0", labels=labels)).missing) == 2
    assert read(page("0.24.0", labels={**labels, "is_attention_free": "True"})).missing == ()


@pytest.mark.parametrize("release", ["0.9.1", "0.10.1", "0.16.0", "0.32.0"])
def test_equal_ranks_have_the_sums_equal_part(release: str) -> None:
    """Every series repeats the sum of all ranks; the conversion of usage takes a rank's own part."""
    blocks, usage = {"num_gpu_blocks": "303"}, 26 / 101
    got = read(page(release, ranks="012", usage=usage, labels=blocks)).ranks
    assert [(one.rank, one.num_blocks) for one in got] == [("0", 101), ("1", 101), ("2", 101)]
    expected = 0.25 if release in OLD else usage
    assert [one.usage_ratio for one in got] == [pytest.approx(expected)] * 3


def test_a_rank_is_there_before_its_first_step() -> None:
    """With several API servers gauges appear with it: until then requests and usage are unknown, not zero."""
    got = read(capture("dp2-two-api-servers-fresh"))
    assert [(one.rank, one.num_blocks, one.running, one.waiting, one.usage_ratio) for one in got.ranks] == [
        ("0", 100, None, {}, None),
        ("1", 100, None, {}, None),
    ]
    assert [one.preemptions_total for one in got.ranks] == [0, 0]
    assert got.missing == NOT_BEFORE_THE_FIRST_STEP


def test_a_rank_that_has_not_run_yet_still_has_its_part_of_the_blocks() -> None:
    """One rank's gauges stand, the other's do not: the sum is still of two."""
    text = "".join(
        line
        for line in capture("dp2-two-api-servers-preempted").splitlines(keepends=True)
        if not (line.startswith(("vllm:num_requests_", "vllm:kv_cache_")) and 'engine="1"' in line)
    )
    got = read(text)
    assert [(one.rank, one.num_blocks, one.running) for one in got.ranks] == [("0", 100, 6), ("1", 100, None)]


def test_two_api_servers_answer_as_one() -> None:
    """Six of twelve requests of each rank were preempted, and the counters do not say so yet."""
    got = read(capture("dp2-two-api-servers-preempted"))
    assert [(one.running, one.waiting, one.preemptions_total) for one in got.ranks] == [
        (6, {"capacity": 6, "deferred": 0}, 0)
    ] * 2
    assert (got.missing, got.start_timestamp_seconds) == ((), None)


@pytest.mark.parametrize("file", sorted(path.name for path in (CAPTURES / "vllm").glob("0.32.0-*.metrics")))
def test_a_captured_page_lacks_what_it_has_not_had_time_for(file: str) -> None:
    """What the newest level expects is what a real server shows."""
    text = (CAPTURES / "vllm" / file).read_text()
    stepped = f"{RUNNING}{{" in text
    assert read(text.replace("./tiny-llama", MODEL)).missing == (() if stepped else NOT_BEFORE_THE_FIRST_STEP)


def test_ranks_share_a_configuration_that_names_none() -> None:
    """0.8.5 labels everything with the rank but the configuration."""
    got = read(page("0.8.5", ranks="01")).ranks
    assert [(one.rank, one.block_size, one.num_blocks) for one in got] == [("0", 16, None), ("1", 16, None)]
    alone = read(page("0.8.5", ranks="3")).ranks
    assert [(one.rank, one.block_size) for one in alone] == [("3", 16)]


STALE = {
    "recurrent layers, where the engine enlarges blocks by itself": ("0.20.0", "4096", None),
    "recurrent layers, before": ("0.16.0", "4096", 16),
    "recurrent layers, since the page is told": ("0.24.0", "4096", 16),
    "no recurrent layers": ("0.20.0", "None", 16),
}


@pytest.mark.parametrize("situation", STALE)
def test_a_block_size_that_the_engine_may_have_changed_is_unknown(situation: str) -> None:
    """From 0.20.0 to 0.22 the front end was not told; only recurrent layers need larger blocks."""
    release, state_blocks, expected = STALE[situation]
    assert rank(page(release, labels={"mamba_block_size": state_blocks})).block_size == expected


@pytest.mark.parametrize("release", RELEASES[: RELEASES.index("0.24.0")])
def test_no_concurrency_is_stated_before_0_24(release: str) -> None:
    """A hybrid's start-up charge is then known from its model alone."""
    got = rank(page(release))
    assert (got.max_concurrency, got.kv_size_tokens) == (None, None)


@pytest.mark.parametrize("release", RELEASES)
def test_prefix_counters_are_tokens_or_unknown(release: str) -> None:
    """The forerunners counted blocks at first, and no page says when that changed."""
    got = rank(page(release))
    expected = None if release in ("0.8.5", "0.9.1") else 1000
    assert (got.prefix_cache_queries_total, got.prefix_cache_hits_total) == (expected, expected)


@pytest.mark.parametrize("release", RELEASES)
def test_what_requests_wait_for_is_unspecified_until_it_is_said(release: str) -> None:
    """Reasons came with 0.20, sleep states with 0.11.2."""
    got = read(page(release, waiting=3))
    by_reason = RELEASES.index(release) >= RELEASES.index("0.20.0")
    assert got.ranks[0].waiting == ({"capacity": 3, "deferred": 0} if by_reason else {"unspecified": 3})
    assert got.sleeping == (False if RELEASES.index(release) >= RELEASES.index("0.11.2") else None)


def test_the_first_engine_has_no_null_block_and_may_have_swapped_requests() -> None:
    """V0 states its blocks, all of them usable; what was swapped out waits for room."""
    got = read(v0_page(usage=0.25, waiting=2, swapped=3))
    (only,) = got.ranks
    assert (only.num_blocks, only.null_blocks, only.usage_ratio) == (100, 0, 0.25)
    assert only.waiting == {"unspecified": 2, "capacity": 3}
    assert (only.prefix_cache_queries_total, got.sleeping, got.missing) == (None, None, ())
    assert read(v0_page(swapped=None)).ranks[0].waiting == {"unspecified": 0}


def test_an_old_page_that_may_be_of_either_engine_has_no_usage() -> None:
    """Without blocks and without ranks it may be V0's or V1's, and their usages differ by a block."""
    got = rank(v0_page(usage=0.25, blocks="None"))
    assert (got.num_blocks, got.usage_ratio, got.usage_of_all_ratio) == (None, None, 0.25)


def test_a_later_page_whose_rank_label_was_dropped_is_not_the_first_engines() -> None:
    """Relabelling takes labels away; what V0 never had remains."""
    text = page("0.32.0", usage=0.5).replace('engine="0",', "").replace(',engine="0"', "")
    got = rank(text)
    assert (got.null_blocks, got.num_blocks, got.usage_ratio) == (1, 101, 0.5)


@pytest.mark.parametrize("version", ["0.8.5", "0.32.0", "0.1.dev1+g0a1b2c3", "", "latest"])
@pytest.mark.parametrize("release", ["0.8.5", "0.10.1", "0.32.0"])
def test_the_version_changes_nothing_but_itself(release: str, version: str) -> None:
    """A fork calls itself what it likes."""
    got, other = read(page(release), version=version), read(page(release))
    assert (got.ranks, got.missing, got.version) == (other.ranks, other.missing, version)
