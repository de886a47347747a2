"""SGLang's page: what is read, and what stays unknown because the page does not show it."""

from __future__ import annotations

import json

import pytest

from kvwatch.engines import detect, sglang
from kvwatch.readings import EngineReading, Page, RankReading, Reason, SourceError, SumCount
from tests.daemon import config, running, value
from tests.replay import CAPTURES, Answer, replaying

PAGE = (CAPTURES / "sglang" / "unified-synthetic.metrics").read_text()


def read(text: str = PAGE, models: str | Reason | None = None) -> EngineReading:
    """Read a page, and /v1/models where the adapter asks for it."""
    pages = {"/metrics": Page(path="/metrics", body=text, status=200)}
    while (path := sglang.next_path(pages)) is not None:
        body = models if isinstance(models, str) else None
        reason = models if isinstance(models, Reason) else None if body else Reason.NOT_FOUND
        pages[path] = Page(path=path, body=body, reason=reason)
    return sglang.read(pages)


def edited(*edits: tuple[str, str]) -> str:
    """Return the page with each `old` replaced; it must be there."""
    text = PAGE
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def without(*names: str) -> str:
    """Return the page without the series of these metrics."""
    return "".join(
        line for line in PAGE.splitlines(keepends=True) if not line.startswith(tuple(f"{n}{{" for n in names))
    )


def with_label(text: str, label: str, values: list[str]) -> str:
    """Repeat each scheduler's series with a label of these values."""
    lines: list[str] = []
    for line in text.splitlines():
        if "tp_rank=" in line and not line.startswith("#"):
            lines += [line.replace("{", f'{{{label}="{value}",', 1) for value in values]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def test_a_page_is_read_whole() -> None:
    """Pages stand for blocks, evictable tokens are free, and each counter comes from where it is live."""
    got = read()
    assert got.ranks == (
        RankReading(
            rank="0",
            num_blocks=1024,
            null_blocks=0,
            block_size=16,
            start_blocks=256,
            usage_ratio=0.375,
            running=3,
            waiting={"capacity": 2, "deferred": 1},
            preemptions_total=4,
            finished_total={"unspecified": 37},
            finished_prompt_tokens=SumCount(sum=16000, count=37),
            finished_generation_tokens=SumCount(sum=8000, count=37),
            generation_tokens_total=9100,
            prefix_cache_queries_total=16000,
            prefix_cache_hits_total=4000,
            queue_seconds=SumCount(sum=31.5, count=40),
            time_to_first_token_seconds=SumCount(sum=17, count=37),
        ),
    )
    assert (got.engine, got.model, got.full_length_tokens, got.missing) == ("sglang", "tiny", 4096, ())
    assert got.settings == (("context_len", "4096"), ("page_size", "16"))
    assert (got.version, got.sleeping, got.share_ratio) == (None, None, None)


def test_it_is_told_from_vllm_by_its_page() -> None:
    """Both are asked /metrics first; only one of them answers with these names."""
    pages = {"/props": Page(path="/props", body=None, reason=Reason.NOT_FOUND)}
    assert detect(pages) == "/metrics"
    for text in (PAGE, PAGE.replace("sglang:", "sglang_")):
        found = detect({**pages, "/metrics": Page(path="/metrics", body=text)})
        assert found is sglang.ADAPTER
        assert read(text) == read()


def test_only_harmless_pages_are_asked() -> None:
    """/server_info holds keys; /v1/models is asked only where the page does not state the length."""
    first = {"/metrics": Page(path="/metrics", body=PAGE)}
    assert sglang.next_path({}) == "/metrics"
    assert sglang.next_path(first) is None
    old = {"/metrics": Page(path="/metrics", body=without("sglang:context_len").replace("context_len", ""))}
    assert sglang.next_path(old) == "/v1/models"
    failed = {"/metrics": Page(path="/metrics", body=None, reason=Reason.NOT_FOUND)}
    assert sglang.next_path(failed) is None


WINDOW_TOTAL = next(
    line.replace("max_total_num_tokens", "max_total_num_tokens_swa")
    for line in PAGE.splitlines(keepends=True)
    if line.startswith("sglang:max_total_num_tokens{")
)
POOL_UNKNOWN = {
    "windows: another pool beside it": PAGE + WINDOW_TOTAL,
    "windows, by what is free of theirs": edited(
        ('tp_rank="0"} 0.0\n# HELP sglang:swa_evictable', 'tp_rank="0"} 99.0\n# HELP sglang:swa_evictable')),
    "recurrent states": edited(
        ('tp_rank="0"} 0.0\n# HELP sglang:mamba_evict', 'tp_rank="0"} 99.0\n# HELP sglang:mamba_evict')),
    "an older page, that does not say whether there are others": without(*sglang.POOL_COUNTS),
    "before the first request": without(*sglang.GAUGES, *sglang.POOL_COUNTS),
    "no page size": without("sglang:page_size"),
    "pages and tokens that contradict each other": edited(("} 1024.0", "} 1000.0")),
    "more free than there is": edited(("} 8192.0", "} 81920.0")),
}  # fmt: skip


@pytest.mark.parametrize("situation", POOL_UNKNOWN)
def test_a_pool_that_may_not_be_the_only_one_is_not_counted(situation: str) -> None:
    """max_total_num_tokens is then no promise; the engine's own usage stands where it has one."""
    rank = read(POOL_UNKNOWN[situation]).ranks[0]
    assert rank.num_blocks is None
    assert rank.usage_ratio == (None if situation == "before the first request" else 0.375)


def test_ranks_have_pools_of_their_own_and_share_what_the_tokenizer_counts() -> None:
    """Data-parallel schedulers are ranks; finished requests cannot be told apart by rank."""
    got = read(with_label(PAGE, "dp_rank", ["0", "1"]))
    assert [(rank.rank, rank.num_blocks, rank.running) for rank in got.ranks] == [
        ("0", 1024, 3),
        ("1", 1024, 3),
    ]
    assert all((rank.finished_total, rank.finished_prompt_tokens) == ({}, None) for rank in got.ranks)
    assert [rank.queue_seconds for rank in got.ranks] == [SumCount(sum=31.5, count=40)] * 2


def test_schedulers_that_repeat_one_another_are_one() -> None:
    """Context and tensor ranks show the same requests eight times; they are counted once."""
    eight = with_label(PAGE.replace(',tp_rank="0"', ',tp_rank=""'), "cp", [str(n) for n in range(8)])
    for number in range(8):
        eight = "\n".join(
            line.replace('tp_rank=""', f'tp_rank="{number}"') if f'cp="{number}"' in line else line
            for line in eight.splitlines()
        )
    got = read(eight + "\n")
    assert [(rank.rank, rank.running) for rank in got.ranks] == [("0", 3)]
    assert got.ranks == read().ranks


def test_old_schedulers_that_nothing_tells_apart_are_refused() -> None:
    """Without dp_rank and without the constants, two tp_rank may be two pools or one."""
    text = without(*sglang.CONSTANTS, *sglang.POOL_COUNTS)
    again = "".join(
        line.replace('tp_rank="0"', 'tp_rank="1"') for line in text.splitlines(keepends=True) if "tp_" in line
    )
    with pytest.raises(SourceError) as caught:
        read(text + again)
    assert caught.value.reason is Reason.AMBIGUOUS


def test_with_priorities_the_total_is_read_and_not_its_parts() -> None:
    """The total stands under an empty priority, the parts beside it."""
    total = 'sglang:num_queue_reqs{engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",'
    text = edited((f'{total}tp_rank="0"}}', f'{total}priority="",tp_rank="0"}}'))
    text += f'{total}priority="1",tp_rank="0"}} 2.0\n{total}priority="7",tp_rank="0"}} 0.0\n'
    assert read(text).ranks[0].waiting == {"capacity": 2, "deferred": 1}


def test_queues_of_a_divided_server_are_unknown() -> None:
    """Where prefill and decode are apart, other queues hold requests too."""
    assert read(PAGE.replace('"unified"', '"decode"')).ranks[0].waiting == {}


def test_no_retraction_yet_is_unknown() -> None:
    """The counter appears with the first one; older releases have none, and a page tells neither."""
    assert read(without("sglang:num_retracted_requests_total")).ranks[0].preemptions_total is None


LENGTHS: dict[str, tuple[str, str | Reason | None, int | None]] = {
    "on the page": (PAGE, None, 4096),
    "the pool is smaller": (edited(("} 4096.0", "} 40960.0")), None, 16384),
    "on the card": (
        without(*sglang.CONSTANTS).replace("context_len", ""),
        json.dumps({"data": [{"id": "tiny", "max_model_len": 2048}]}), 2048),
    "the card needs a key": (
        without(*sglang.CONSTANTS).replace("context_len", ""), Reason.UNAUTHORIZED, None),
    "the card is no card": (without(*sglang.CONSTANTS).replace("context_len", ""), '{"data": [5]}', None),
    "a truth value": (
        without(*sglang.CONSTANTS).replace("context_len", ""), '{"data": [{"max_model_len": true}]}', None),
}  # fmt: skip


@pytest.mark.parametrize("situation", LENGTHS)
def test_the_longest_request(situation: str) -> None:
    """It is bounded by the context and by the pool."""
    text, models, expected = LENGTHS[situation]
    got = read(text, models)
    assert got.full_length_tokens == expected
    assert got.full_length_reason is (models if isinstance(models, Reason) else None)


def test_what_is_missing_is_named_by_what_came_with_it() -> None:
    """A page with some of a group should have all of it; an old page lacks nothing of a later group."""
    assert read(without("sglang:num_pages")).missing == ("sglang:num_pages",)
    assert read(without("sglang:kv_evictable_tokens")).missing == ("sglang:kv_evictable_tokens",)
    assert read(without(*sglang.POOL_COUNTS)).missing == ()
    assert read(without("sglang:num_queue_reqs")).missing == ("sglang:num_queue_reqs",)


BAD = {
    "another program's": ("node_load1 1\n", Reason.NO_ENGINE_SERIES),
    "two models": (
        PAGE + 'sglang:num_running_reqs{model_name="other",pp_rank="0",tp_rank="0"} 1.0\n', Reason.AMBIGUOUS),
    "usage in percent": (edited(("} 0.375", "} 37.5"), ("} 1024.0", "} 1.0")), Reason.PARSE_ERROR),
    "cut": (PAGE[:-3], Reason.PARSE_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("situation", BAD)
def test_a_page_that_cannot_be_trusted_is_refused(situation: str) -> None:
    """Each has its own reason."""
    text, reason = BAD[situation]
    with pytest.raises(SourceError) as caught:
        read(text)
    assert caught.value.reason is reason


@pytest.mark.anyio
async def test_the_daemon_shows_what_the_page_says_and_what_fits() -> None:
    """Found out by its page: 256 pages of 16 hold the longest request, 640 are free, and two wait."""
    async with (
        replaying({"/metrics": Answer(PAGE.encode())}) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        series = await daemon.until(lambda series: "kvwatch_source_up" in series)
        assert "/v1/models" not in replay.asked
    expected = {"kv_usage_ratio": 0.375, "kv_capacity_blocks": 1024, "kv_free_blocks": 640}
    assert {name: value(series, name, server="s", rank="0") for name in expected} == expected
    assert value(series, "requests_running", server="s", rank="0") == 3
    assert value(series, "preemptions_total", server="s", rank="0") == 4
    assert value(series, "server_info", server="s", engine="sglang", model="tiny") == 1
    fits = {"fit_empty": 4, "fit_now": 2, "fit_guaranteed": 0, "resident_limit": 4, "headroom": -2}
    assert {name: value(series, f"full_length_requests_{name}", server="s") for name in fits} == fits
    assert value(series, "fit_basis", server="s", basis="resident") == 1
    assert value(series, "engine_max_concurrency", server="s") is None
