"""The adapters: what they ask of a server, and what they make of its pages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.engines import ADAPTERS, detect, llamacpp, vllm
from kvwatch.readings import EngineReading, Page, RankReading, Reason, Slot, SourceError, SumCount
from tests.replay import CAPTURES, llamacpp_pages, vllm_pages
from tests.snapshots import exported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.engines.adapter import Adapter
    from tests.replay import Answer

Bodies = dict[str, str]


def bodies(answers: Mapping[str, Answer]) -> Bodies:
    """Return captured pages as texts."""
    return {path: answer.body.decode() for path, answer in answers.items()}


def page(path: str, body: str | Reason) -> Page:
    """Return a page, or one that says why there is none."""
    if isinstance(body, Reason):
        return Page(path=path, body=None, reason=body, detail="as the test wants it")
    return Page(path=path, body=body, status=200)


def visit(adapter: Adapter, server: Mapping[str, str | Reason]) -> EngineReading:
    """Ask a server for what the adapter wants, page by page, and read it; others are not found."""
    pages: dict[str, Page] = {}
    while (path := adapter.next_path(pages)) is not None:
        assert path not in pages, f"{path} is asked for again"
        pages[path] = page(path, server.get(path, Reason.NOT_FOUND))
    return adapter.read(pages)


def refused(adapter: Adapter, server: Mapping[str, str | Reason]) -> Reason:
    """Return why a server cannot be read."""
    with pytest.raises(SourceError) as caught:
        visit(adapter, server)
    return caught.value.reason


# Every adapter

SERVERS: dict[str, Bodies] = {
    "vllm": bodies(vllm_pages("draining")),
    "llamacpp": bodies(llamacpp_pages("split", "load2")),
    "sglang": {"/metrics": (CAPTURES / "sglang" / "unified-synthetic.metrics").read_text()},
}
DEEP = "[" * 100_000
JUNK = {
    "empty": "",
    "HTML": "<!DOCTYPE html>\n<html><body>502 Bad Gateway</body></html>\n",
    "series of another program": "# TYPE node_load1 gauge\nnode_load1 0.5\n",
    "binary": "\x00\x01\x02\xfe\x7f\x1b[2J\n",
    "100,000 lines": "".join(f'other_metric{{i="{number}"}} {number}\n' for number in range(100_000)),
    "deep JSON": DEEP,
    "a JSON list": "[]",
    "a JSON number": "5",
    "JSON null": "null",
}


def test_every_adapter_is_tried() -> None:
    """A new engine's file must bring a server for these tests."""
    assert ADAPTERS.keys() == SERVERS.keys()


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("engine", SERVERS)
def test_junk_on_any_page_is_a_reason_or_a_reading_without_it(engine: str, junk: str) -> None:
    """The first page must be an engine's; junk on another never raises anything but a reason."""
    adapter, server = ADAPTERS[engine], SERVERS[engine]
    for path in server:
        changed = {**server, path: JUNK[junk]}
        if path == adapter.first_path:
            assert refused(adapter, changed) in (Reason.PARSE_ERROR, Reason.NO_ENGINE_SERIES)
            assert adapter.recognises(JUNK[junk]) is False
            continue
        try:
            reading = visit(adapter, changed)
        except SourceError as error:
            assert error.reason in (Reason.PARSE_ERROR, Reason.NO_ENGINE_SERIES)  # noqa: PT017
        else:
            assert reading.engine == engine


@pytest.mark.parametrize("engine", SERVERS)
def test_a_page_that_is_missing_gives_its_own_reason(engine: str) -> None:
    """Why the first page is not there is why there is no reading."""
    adapter, server = ADAPTERS[engine], SERVERS[engine]
    for reason in (Reason.LOADING, Reason.TIMEOUT, Reason.UNAUTHORIZED, Reason.NOT_ENABLED):
        assert refused(adapter, {**server, adapter.first_path: reason}) is reason


@pytest.mark.parametrize("engine", SERVERS)
def test_a_page_cut_anywhere_is_never_another_reading(engine: str) -> None:
    """A cut page is refused, or gives what a page without its end gives: no changed number."""
    adapter, server = ADAPTERS[engine], SERVERS[engine]
    whole = visit(adapter, server).ranks[0]
    for path, body in server.items():
        for cut in range(0, len(body), max(1, len(body) // 20)):
            try:
                rank = visit(adapter, {**server, path: body[:cut]}).ranks[0]
            except SourceError:
                continue
            for name in ("num_blocks", "running", "usage_ratio", "preemptions_total", "block_size"):
                assert getattr(rank, name) in (None, getattr(whole, name)), (path, cut, name)


@pytest.mark.parametrize("engine", SERVERS)
def test_unknown_series_and_fields_are_left_alone(engine: str) -> None:
    """A newer engine says more than is read; that changes nothing."""
    adapter, server = ADAPTERS[engine], SERVERS[engine]
    more = {
        path: body + f'{engine}:a_series_of_tomorrow{{engine="0"}} NaN\n' if path == "/metrics" else body
        for path, body in server.items()
    }
    assert visit(adapter, more) == visit(adapter, server)


_ODD = st.sampled_from(
    ["", "0", "-1", "1", "1e308", "1e-320", "None", "nan", "inf", "True", "1_0", "0x10", " 7", "9" * 400]
)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_odd_values_never_raise_anything_but_a_reason(data: st.DataObject) -> None:
    """Any JSON value in any field, and any text in any label, is read, unknown or refused."""
    engine = data.draw(st.sampled_from(sorted(SERVERS)))
    server = dict(SERVERS[engine])
    path = data.draw(st.sampled_from(sorted(server)))
    if server[path].startswith(("{", "[")):
        document = json.loads(server[path])
        spoil(document, data)
        server[path] = json.dumps(document)
    else:
        lines = server[path].split("\n")
        number = data.draw(
            st.sampled_from([n for n, line in enumerate(lines) if "{" in line or "llama" in line])
        )
        name, _, value = lines[number].rpartition(" ")
        label = data.draw(st.sampled_from(name.split('"')[1::2] or [value]))
        lines[number] = lines[number].replace(label, data.draw(_ODD), 1)
        server[path] = "\n".join(lines)
    try:
        reading = visit(ADAPTERS[engine], server)
    except SourceError:
        return
    for text in (reading.model, reading.version, reading.cache_dtype):
        assert text is None or isinstance(text, str)
    for rank in reading.ranks:
        for count in (rank.num_blocks, rank.block_size, rank.running, reading.full_length_tokens):
            assert count is None or (isinstance(count, int) and 0 <= count < 1 << 63)
    assert exported(reading).count("kvwatch_server_info{") == 1


_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, -1, 1 << 80, 0.5, "", "many", [], {}, [[]], {"id": 1}, "\x1b[2J\n"]
)


def spoil(document: Any, data: st.DataObject) -> None:
    """Put an odd value somewhere into a JSON document."""
    while True:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        key = data.draw(st.sampled_from(keys))
        inner = document[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            document[key] = data.draw(_VALUES)
            return
        document = inner


# Which engine it is

VLLM_METRICS, LLAMA_PROPS = SERVERS["vllm"]["/metrics"], SERVERS["llamacpp"]["/props"]
DETECTED: dict[str, tuple[dict[str, str | Reason], str | Reason]] = {
    "nothing asked yet: a page that wakes nobody comes first": ({}, "/props"),
    "llama-server": ({"/props": LLAMA_PROPS}, "llamacpp"),
    "no llama-server": ({"/props": Reason.NOT_FOUND}, "/metrics"),
    "a web page on every path": ({"/props": JUNK["HTML"]}, "/metrics"),
    "vLLM": ({"/props": Reason.NOT_FOUND, "/metrics": VLLM_METRICS}, "vllm"),
    "vLLM in another spelling": (
        {"/props": Reason.NOT_FOUND, "/metrics": VLLM_METRICS.replace("vllm:", "vllm_")}, "vllm"),
    "nobody listens": ({"/props": Reason.UNREACHABLE}, Reason.UNREACHABLE),
    "it does not answer": ({"/props": Reason.TIMEOUT}, Reason.TIMEOUT),
    "it loads": ({"/props": Reason.LOADING, "/metrics": Reason.LOADING}, Reason.LOADING),
    "another program's metrics": (
        {"/props": Reason.NOT_FOUND, "/metrics": "node_load1 1\n"}, Reason.NO_ENGINE_SERIES),
    "no page at all": ({"/props": Reason.NOT_FOUND, "/metrics": Reason.NOT_FOUND}, Reason.NOT_FOUND),
}  # fmt: skip


@pytest.mark.parametrize("situation", DETECTED)
def test_the_engine_is_found_out(situation: str) -> None:
    """Page by page, until one is an engine's or the last one says why not."""
    given_pages, expected = DETECTED[situation]
    pages = {path: page(path, body) for path, body in given_pages.items()}
    if isinstance(expected, Reason):
        with pytest.raises(SourceError) as caught:
            detect(pages)
        assert caught.value.reason is expected
    else:
        found = detect(pages)
        assert (found if isinstance(found, str) else found.name) == expected


# vLLM

LABELS = '{engine="0",model_name="./tiny-llama"}'


def vllm_reading(state: str = "draining", *edits: tuple[str, str], **pages: str | Reason) -> EngineReading:
    """Read a captured vLLM with parts of its /metrics replaced, or whole pages."""
    server: dict[str, str | Reason] = dict(bodies(vllm_pages(state)))
    text = str(server["/metrics"])
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    server["/metrics"] = text
    server.update(
        {{"models": "/v1/models", "version": "/version"}[name]: body for name, body in pages.items()}
    )
    return visit(vllm.ADAPTER, server)


def test_a_vllm_page_is_read_whole() -> None:
    """Each figure of a captured page arrives in its own place."""
    got = vllm_reading()
    assert got.ranks == (
        RankReading(
            rank="0",
            num_blocks=100,
            block_size=32,
            max_concurrency=3.125,
            kv_size_tokens=3200,
            usage_ratio=0.5151515151515151,
            running=2,
            waiting={"capacity": 2, "deferred": 0},
            preemptions_total=42,
            finished_total={"stop": 0, "length": 20, "abort": 0, "error": 0, "repetition": 0},
            finished_prompt_tokens=SumCount(sum=4000, count=20),
            finished_generation_tokens=SumCount(sum=14000, count=20),
            generation_tokens_total=15908,
            prefix_cache_queries_total=4800,
            prefix_cache_hits_total=0,
            queue_seconds=SumCount(sum=165.18573238500062, count=20),
            time_to_first_token_seconds=SumCount(sum=347.5599853992462, count=24),
        ),
    )
    assert (got.model, got.version, got.full_length_tokens, got.sleeping) == (
        "./tiny-llama", "0.32.0", 1024, False,
    )  # fmt: skip
    assert got.start_timestamp_seconds == 1.79606249871e09
    assert got.missing == ()


def with_ranks(text: str, count: int) -> str:
    """Return a page on which every series of engine 0 is there for each of `count` ranks."""
    lines = []
    for line in text.splitlines():
        if 'engine="0"' in line:
            lines += [line.replace('engine="0"', f'engine="{rank}"') for rank in range(count)]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def ranks_reading(blocks: str, count: int = 2) -> EngineReading:
    """Read a server of several ranks whose pools sum up to `blocks`."""
    server = bodies(vllm_pages("draining"))
    server["/metrics"] = with_ranks(server["/metrics"], count).replace(
        'num_gpu_blocks="100"', f'num_gpu_blocks="{blocks}"'
    )
    return visit(vllm.ADAPTER, server)


@pytest.mark.parametrize(
    "blocks, count, each",
    [
        ("200", 2, 100),
        ("400", 4, 100),
        ("201", 2, None),
        ("202", 2, None),
        ("None", 2, None),
        ("100", 1, 100),
    ],
)
def test_the_sum_of_all_ranks_blocks_is_divided(blocks: str, count: int, each: int | None) -> None:
    """Every series repeats the sum; a sum that equal ranks cannot have makes no rank's pool known."""
    got = ranks_reading(blocks, count)
    assert [(rank.rank, rank.num_blocks) for rank in got.ranks] == [(str(n), each) for n in range(count)]
    assert [rank.max_concurrency for rank in got.ranks] == [3.125] * count


def test_a_server_may_expose_one_later_rank_alone() -> None:
    """Behind an external load balancer a page has the one rank that it serves."""
    got = vllm_reading("draining", ('engine="0"', 'engine="3"'))
    assert [(rank.rank, rank.num_blocks) for rank in got.ranks] == [("3", 100)]


@pytest.mark.parametrize("label", ["num_gpu_blocks", "block_size", "kv_cache_max_concurrency"])
def test_a_word_where_a_number_should_be_is_unknown_and_named(label: str) -> None:
    """Python's None prints as a word; what it stands for is reported missing."""
    value = {"num_gpu_blocks": "100", "block_size": "32", "kv_cache_max_concurrency": "3.125"}[label]
    got = vllm_reading("idle", (f'{label}="{value}"', f'{label}="None"'))
    field = {"kv_cache_max_concurrency": "max_concurrency", "num_gpu_blocks": "num_blocks"}.get(label, label)
    assert getattr(got.ranks[0], field) is None
    assert got.missing == (f"vllm:cache_config_info{{{label}}}",)


def without(text: str, name: str) -> str:
    """Return the page without a metric's lines."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(name))


@pytest.mark.parametrize(
    "name, field",
    [
        ("vllm:kv_cache_usage_perc", "usage_ratio"),
        ("vllm:num_preemptions_total", "preemptions_total"),
        ("vllm:request_prompt_tokens_sum", "finished_prompt_tokens"),
        ("vllm:request_queue_time_seconds_count", "queue_seconds"),
        ("vllm:cache_config_info", "num_blocks"),
        ("vllm:generation_tokens_total", "generation_tokens_total"),
    ],
)
def test_a_series_that_is_gone_is_unknown_and_named(name: str, field: str) -> None:
    """Not there is not zero."""
    server = bodies(vllm_pages("draining"))
    server["/metrics"] = without(server["/metrics"], name)
    got = visit(vllm.ADAPTER, server)
    assert getattr(got.ranks[0], field) is None
    assert any(missing.startswith(name) for missing in got.missing)


def test_waiting_without_reasons_is_unspecified_and_none_at_all_unknown() -> None:
    """Before 0.20 the engine does not say for what requests wait."""
    server = bodies(vllm_pages("draining"))
    server["/metrics"] = without(server["/metrics"], "vllm:num_requests_waiting_by_reason")
    assert visit(vllm.ADAPTER, server).ranks[0].waiting == {"unspecified": 2}
    server["/metrics"] = without(server["/metrics"], "vllm:num_requests_waiting")
    assert visit(vllm.ADAPTER, server).ranks[0].waiting == {}


AWAKE = 'vllm:engine_sleep_state{engine="0",model_name="./tiny-llama",sleep_state="awake"} '


def test_sleeping_is_told_by_the_awake_series() -> None:
    """A level-0 pause keeps memory and is no less asleep; without the series it is unknown."""
    assert vllm_reading("idle").sleeping is False
    assert vllm_reading("idle", (AWAKE + "1.0", AWAKE + "0.0")).sleeping is True
    server = bodies(vllm_pages("idle"))
    server["/metrics"] = without(server["/metrics"], "vllm:engine_sleep_state")
    assert visit(vllm.ADAPTER, server).sleeping is None


SIZED: dict[str, tuple[str, str, float | None, int | None]] = {
    "by the share": ("None", "None", 0.92, None),
    "by a pin": ("1073741824", "None", None, 1_073_741_824),
    "by a number of blocks": ("None", "100", None, None),
    "by a number of blocks, beside a pin": ("1073741824", "100", None, 1_073_741_824),
}


@pytest.mark.parametrize("situation", SIZED)
def test_the_share_counts_only_where_nothing_overrides_it(situation: str) -> None:
    """The label keeps its value under a pin and under a number of blocks, and means nothing there."""
    pin, override, share, pin_bytes = SIZED[situation]
    got = vllm_reading(
        "idle",
        ('kv_cache_memory_bytes="1073741824"', f'kv_cache_memory_bytes="{pin}"'),
        ('num_gpu_blocks_override="100"', f'num_gpu_blocks_override="{override}"'),
    )
    assert (got.share_ratio, got.pin_bytes) == (share, pin_bytes)


def models(*cards: tuple[object, object]) -> str:
    """Return /v1/models with these (id, max_model_len)."""
    return json.dumps({"data": [{"id": name, "max_model_len": length} for name, length in cards]})


FULL_LENGTHS = {
    "as captured": (bodies(vllm_pages("idle"))["/v1/models"], 1024),
    "an adapter without a length beside it": (models(("./tiny-llama", 512), ("lora", None)), 512),
    "an alias": (models(("chat", 512), ("chat-2", 512)), 512),
    "two aliases that contradict each other": (models(("chat", 512), ("chat-2", 1024)), None),
    "the served name among others": (models(("other", 9), ("./tiny-llama", 512)), 512),
    "no length": (models(("./tiny-llama", None)), None),
    "a length of nothing": (models(("./tiny-llama", 0)), None),
    "a truth value": (models(("./tiny-llama", True)), None),
    "no integer a server can have": (models(("./tiny-llama", 10**400)), None),
    "another document": ('{"data": {"id": 1}}', None),
    "needs a key": (Reason.UNAUTHORIZED, None),
    "deep JSON": (DEEP, None),
}


@pytest.mark.parametrize("situation", FULL_LENGTHS)
def test_the_longest_request(situation: str) -> None:
    """It is the served model's, and unknown where the page does not say it beyond doubt."""
    body, expected = FULL_LENGTHS[situation]
    got = vllm_reading("idle", models=body)
    assert got.full_length_tokens == expected
    assert ("/v1/models max_model_len" in got.missing) == (expected is None)
    assert dict(got.settings).get("max_model_len") == (None if expected is None else str(expected))
    assert got.ranks[0].running == 0


@pytest.mark.parametrize(
    "body, version", [('{"version":"0.25.1.dev3"}', "0.25.1.dev3"), ("[]", None), (DEEP, None)]
)
def test_the_version_is_what_the_server_says(body: str, version: str | None) -> None:
    """/metrics carries none."""
    assert vllm_reading("idle", version=body).version == version


RUNNING_LINE = f"vllm:num_requests_running{LABELS} 2.0\n"
VLLM_BAD = {
    "statistics are switched off": ((RUNNING_LINE, ""), Reason.NO_ENGINE_SERIES),
    "usage in percent": (("0.5151515151515151", "51.5"), Reason.PARSE_ERROR),
    "a negative usage": (("0.5151515151515151", "-0.1"), Reason.PARSE_ERROR),
    "half a request": ((RUNNING_LINE, RUNNING_LINE.replace("2.0", "2.5")), Reason.PARSE_ERROR),
    "two servers on one page": (
        (RUNNING_LINE, RUNNING_LINE + RUNNING_LINE.replace("tiny", "other")), Reason.AMBIGUOUS),
    "a dead run's configuration beside the present one": (
        ("# TYPE vllm:cache_config_info gauge\n",
         '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{engine="0",num_gpu_blocks="50"} 1.0\n'),
        Reason.AMBIGUOUS),
}  # fmt: skip


@pytest.mark.parametrize("situation", VLLM_BAD)
def test_a_vllm_page_that_cannot_be_trusted_is_refused(situation: str) -> None:
    """Each has its own reason."""
    (old, new), reason = VLLM_BAD[situation]
    server = bodies(vllm_pages("draining"))
    assert old in server["/metrics"]
    server["/metrics"] = server["/metrics"].replace(old, new, 1)
    assert refused(vllm.ADAPTER, server) is reason


def test_the_fingerprints_settings_are_what_somebody_set() -> None:
    """Sizes that the engine derives at each start are no settings."""
    names = {name for name, _ in vllm_reading("idle").settings}
    assert {"block_size", "cache_dtype", "gpu_memory_utilization", "max_model_len"} <= names
    assert not names & {"num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency"}


# llama.cpp


def llama_reading(
    mode: str = "split", state: str = "load2", props: dict[str, Any] | None = None, **pages: str | Reason
) -> EngineReading:
    """Read a captured llama-server with fields of /props replaced, or whole pages."""
    server: dict[str, str | Reason] = dict(bodies(llamacpp_pages(mode, state)))
    server["/props"] = json.dumps({**json.loads(str(server["/props"])), **(props or {})})
    server.update({f"/{name}": body for name, body in pages.items()})
    return visit(llamacpp.ADAPTER, server)


def test_a_llama_servers_pages_are_read_whole() -> None:
    """Slots, queue and counters arrive; what llama-server does not count is unknown."""
    got = llama_reading("unified-q8_0")
    (rank,) = got.ranks
    pool = rank.slots
    assert pool is not None
    assert (pool.total_slots, pool.slot_limit_tokens, pool.busy_slots, pool.longest_tokens) == (
        4,
        4096,
        4,
        900,
    )
    assert pool.slots is not None
    # The first one's prompt is still being read: where it ends is not known.
    assert pool.slots[0] == Slot(limit_tokens=4096, busy=True, resident_tokens=900, remaining_tokens=None)
    assert pool.slots[1] == Slot(limit_tokens=4096, busy=True, resident_tokens=901, remaining_tokens=2999)
    assert (rank.running, rank.waiting) == (4, {"deferred": 2})
    assert (rank.prefix_cache_queries_total, rank.prefix_cache_hits_total) == (2048, 0)
    assert (rank.usage_ratio, rank.num_blocks, rank.preemptions_total) == (None, None, None)
    assert (rank.finished_total, rank.finished_prompt_tokens) == ({}, None)
    assert (got.full_length_tokens, got.sleeping, got.missing) == (4096, False, ())


METRICS_PAGE = bodies(llamacpp_pages("split", "load2"))["/metrics"]
IDLE_PAGE = bodies(llamacpp_pages("split", "idle"))["/metrics"]
DEFERRED_ONLY = IDLE_PAGE.replace("requests_deferred 0", "requests_deferred 1")
ASKED: dict[str, tuple[dict[str, str | Reason], str | None]] = {
    "first what wakes nobody": ({}, "/props"),
    "awake": ({"/props": LLAMA_PROPS}, "/metrics"),
    "asleep: nothing more": (
        {"/props": LLAMA_PROPS.replace('"is_sleeping":false', '"is_sleeping":true')}, None),
    "a router: its list of models": (
        {"/props": '{"role":"router","default_generation_settings":{}}'}, "/models"),
    "a router: nothing more": (
        {"/props": '{"role":"router","default_generation_settings":{}}', "/models": '{"data":[]}'}, None),
    "idle: its slots are left alone": ({"/props": LLAMA_PROPS, "/metrics": IDLE_PAGE}, None),
    "at work": ({"/props": LLAMA_PROPS, "/metrics": METRICS_PAGE}, "/slots"),
    "only a deferred request": ({"/props": LLAMA_PROPS, "/metrics": DEFERRED_ONLY}, "/slots"),
    "at work, slots switched off": (
        {"/props": LLAMA_PROPS.replace('"endpoint_slots":true', '"endpoint_slots":false'),
         "/metrics": METRICS_PAGE}, None),
    "metrics broken: slots are not asked": ({"/props": LLAMA_PROPS, "/metrics": "<html>\n"}, None),
    "no /props": ({"/props": Reason.LOADING}, None),
    "no /metrics": ({"/props": LLAMA_PROPS, "/metrics": Reason.NOT_ENABLED}, None),
    "all asked": ({"/props": LLAMA_PROPS, "/metrics": METRICS_PAGE, "/slots": "[]"}, None),
}  # fmt: skip


@pytest.mark.parametrize("situation", ASKED)
def test_a_llama_server_is_asked_only_what_does_no_harm(situation: str) -> None:
    """/slots keeps an idle server from sleeping and wakes a sleeping one."""
    given_pages, expected = ASKED[situation]
    assert '"is_sleeping":false' in LLAMA_PROPS
    assert DEFERRED_ONLY != IDLE_PAGE
    pages = {path: page(path, body) for path, body in given_pages.items()}
    assert llamacpp.next_path(pages) == expected


def test_a_sleeping_llama_server_says_nothing_about_requests() -> None:
    """What its other pages would say is not asked, and is no zero."""
    got = llama_reading(props={"is_sleeping": True})
    (rank,) = got.ranks
    assert got.sleeping is True
    assert (rank.running, rank.waiting) == (None, {})
    assert rank.slots is not None
    assert (rank.slots.busy_slots, rank.slots.slots) == (None, None)


def test_slots_switched_off_leave_the_number_of_busy_ones() -> None:
    """/metrics counts them; what they hold is unknown."""
    got = llama_reading(slots=Reason.NOT_ENABLED)
    assert got.ranks[0].slots is not None
    assert (got.ranks[0].slots.busy_slots, got.ranks[0].slots.slots) == (4, None)


def test_the_slots_own_limit_is_newer_than_the_properties() -> None:
    """After a wake-up /props may keep the old limit; one server has one longest request."""
    slots = json.dumps([{"id": 0, "n_ctx": 1024, "is_processing": True}] * 4)
    got = llama_reading(slots=slots)
    assert got.ranks[0].slots is not None
    assert got.ranks[0].slots.slot_limit_tokens == 1024
    assert got.full_length_tokens == 1024


SLOT = {"id": 0, "n_ctx": 2048, "is_processing": True, "n_prompt_tokens": 70}
SLOT_FORMS: dict[str, tuple[dict[str, Any], Slot]] = {
    "an array of one token, since 2025": (
        {**SLOT, "next_token": [{"n_remain": 30, "n_decoded": 5}]},
        Slot(limit_tokens=2048, busy=True, resident_tokens=70, remaining_tokens=30)),
    "an object, before": (
        {**SLOT, "next_token": {"n_remain": 30, "n_decoded": 5}},
        Slot(limit_tokens=2048, busy=True, resident_tokens=70, remaining_tokens=30)),
    "unlimited": (
        {**SLOT, "next_token": [{"n_remain": -1, "n_decoded": 5}]},
        Slot(limit_tokens=2048, busy=True, resident_tokens=70, remaining_tokens=None)),
    "it never ran": (
        {"id": 0, "n_ctx": 2048, "is_processing": False},
        Slot(limit_tokens=2048, busy=False, resident_tokens=None, remaining_tokens=None)),
    "it has a limit but no tokens left": (
        {**SLOT, "next_token": [{"n_remain": 0, "n_decoded": 5}]},
        Slot(limit_tokens=2048, busy=True, resident_tokens=70, remaining_tokens=0)),
    "no next token": (
        {**SLOT, "next_token": []},
        Slot(limit_tokens=2048, busy=True, resident_tokens=70, remaining_tokens=None)),
    "words for numbers": (
        {**SLOT, "n_prompt_tokens": "70", "next_token": "soon"},
        Slot(limit_tokens=2048, busy=True, resident_tokens=None, remaining_tokens=None)),
}  # fmt: skip


@pytest.mark.parametrize("situation", SLOT_FORMS)
def test_a_slot(situation: str) -> None:
    """Both forms of the token are read, -1 is unlimited, and what is not said is unknown."""
    form, expected = SLOT_FORMS[situation]
    pool = llama_reading(slots=json.dumps([form])).ranks[0].slots
    assert pool is not None
    assert pool.slots == (expected,)


@pytest.mark.parametrize(
    "model, name",
    [
        ({"model_alias": "chat"}, "chat"),
        ({"model_alias": ""}, "slow.gguf"),
        ({"model_alias": 5}, "slow.gguf"),
        ({"model_alias": ["a"], "model_path": {"b": 1}}, None),
    ],
)
def test_a_name_is_a_text_or_unknown(model: dict[str, Any], name: str | None) -> None:
    """A label of another type would break the whole exposition, other servers' series included."""
    assert llama_reading(props=model).model == name


@pytest.mark.parametrize("version", [None, 5, ["b1"], {"b": 1}])
def test_a_build_is_a_text_or_unknown(version: object) -> None:
    """As its name."""
    assert llama_reading(props={"build_info": version}).version is None


LLAMA_BAD: dict[str, tuple[dict[str, Any], Reason]] = {
    "a router": ({"props": {"role": "router"}}, Reason.NOT_SUPPORTED),
    "no slots": ({"props": {"total_slots": 0}}, Reason.PARSE_ERROR),
    "more slots than a server can have": ({"props": {"total_slots": 1 << 64}}, Reason.PARSE_ERROR),
    "a word for the limit": (
        {"props": {"default_generation_settings": {"n_ctx": "many"}}},
        Reason.PARSE_ERROR,
    ),
    "no limit": ({"props": {"default_generation_settings": {}}}, Reason.PARSE_ERROR),
    "/metrics is switched off": ({"metrics": Reason.NOT_ENABLED}, Reason.NOT_ENABLED),
    "/metrics of another program": ({"metrics": "node_load1 1\n"}, Reason.NO_ENGINE_SERIES),
    "/slots is an error": ({"slots": '{"error": 1}'}, Reason.PARSE_ERROR),
    "/slots is empty": ({"slots": "[]"}, Reason.PARSE_ERROR),
    "a slot without a limit": ({"slots": '[{"is_processing": true}]'}, Reason.PARSE_ERROR),
    "a slot that may be busy or not": (
        {"slots": '[{"n_ctx": 2048, "is_processing": 1}]'},
        Reason.PARSE_ERROR,
    ),
}


@pytest.mark.parametrize("situation", LLAMA_BAD)
def test_a_llama_server_that_cannot_be_trusted_is_refused(situation: str) -> None:
    """Each has its own reason."""
    arguments, reason = LLAMA_BAD[situation]
    with pytest.raises(SourceError) as caught:
        llama_reading(**arguments)
    assert caught.value.reason is reason
