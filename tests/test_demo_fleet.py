"""The built-in fleet: an allocator that loses no block, pages that read like vLLM's, a day with a story."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvwatch.demo.blocks import NULL_BLOCK, blocks_for
from kvwatch.demo.day import CARD, CHAT, DAY, EMBEDDING, HOUR, MIB, OPENING, RESTARTS, SERVERS, plan_of
from kvwatch.demo.engine import Arrival, Engine, EngineSettings
from kvwatch.demo.fleet import Fleet
from kvwatch.demo.lives import life_of, memory_of, num_blocks
from kvwatch.demo.page import PageSource
from kvwatch.demo.simulation import Clients, catch_up, engine_of
from kvwatch.demo.story import next_scene
from kvwatch.demo.traffic import arrivals
from kvwatch.engines.vllm import ADAPTER, METRICS, MODELS, VERSION
from kvwatch.readings import Page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


ROOT = Path(__file__).resolve().parent.parent
CAPTURE = ROOT / "tests" / "captures" / "vllm" / "0.32.0-after-load.metrics"
SPEED = 360.0


# The engine


def engine(*, num_blocks: int = 100, block_size: int = 32, max_num_seqs: int = 16, shared: int = 0) -> Engine:
    """Start a small engine for requests of at most 1,024 tokens."""
    return Engine(
        EngineSettings(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=1024,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=2048,
            step_seconds=0.025,
            prefill_token_seconds=0.0005,
            shared_prefix_tokens=shared,
        )
    )


def arrival(prompt: int, answer: int, *, at: float = 0.0) -> Arrival:
    """Ask for exactly so many tokens."""
    return Arrival(at=at, prompt_tokens=prompt, answer_tokens=answer, max_tokens=answer)


def assert_blocks_conserved(engine: Engine) -> None:
    """Every block but the null block is free or held by one owner."""
    held = [block for request in engine.running for block in request.blocks] + engine.prefix_blocks
    assert NULL_BLOCK not in held
    assert len(set(held)) == len(held)
    assert len(held) + engine.pool.free == engine.pool.usable
    assert not any(request.blocks for request in engine.waiting)


def counters(engine: Engine) -> tuple[float, ...]:
    """Return everything that may only rise."""
    stats = engine.stats
    return (
        stats.preemptions,
        stats.prompt_tokens,
        stats.generation_tokens,
        stats.prefix_queries,
        stats.prefix_hits,
        *stats.finished.values(),
        stats.time_to_first_token.sum,
        stats.time_to_first_token.count,
        stats.e2e_latency.sum,
        stats.request_prompt_tokens.count,
    )


REQUESTS = st.lists(
    st.builds(
        lambda at, prompt, answer: arrival(prompt, answer, at=at),
        st.floats(0, 20),
        st.integers(1, 700),
        st.integers(0, 324),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(
    requests=REQUESTS,
    num_blocks=st.integers(34, 120),
    max_num_seqs=st.integers(1, 16),
    shared=st.sampled_from([0, 32, 128]),
)
def test_no_block_is_lost_and_every_request_finishes(
    requests: list[Arrival], num_blocks: int, max_num_seqs: int, shared: int
) -> None:
    """Whatever arrives, blocks are conserved at all times, counters never fall, and everybody is served."""
    it = engine(num_blocks=num_blocks, max_num_seqs=max_num_seqs, shared=shared)
    stream = Clients(endless(sorted(requests, key=lambda request: request.at)))
    before = counters(it)
    moment = 0.0
    while moment < 21 or it.outstanding:
        moment += 0.5
        catch_up(it, stream, moment, outstanding_limit=len(requests))
        assert_blocks_conserved(it)
        assert len(it.running) <= max_num_seqs
        after = counters(it)
        assert all(new >= old for old, new in zip(before, after, strict=True))
        before = after
        assert moment < 2000
    stats = it.stats
    assert sum(stats.finished.values()) == len(requests)
    assert stats.request_prompt_tokens.sum == sum(request.prompt_tokens for request in requests)
    assert stats.generation_tokens == sum(request.answer_tokens for request in requests)
    assert stats.preemptions == stats.request_preemptions.sum
    assert it.pool.free == it.pool.usable
    assert stats.gauges.usage_ratio == 0


def endless(requests: Iterable[Arrival]) -> Iterator[Arrival]:
    """Send these, and nothing more for ever."""
    yield from requests
    yield arrival(1, 0, at=float("inf"))


@pytest.mark.parametrize(
    "requests, prompt, answer, preemptions",
    [
        pytest.param(3, 24, 1000, range(1), id="three at full length fit"),
        pytest.param(4, 24, 1000, range(1, 2), id="the fourth preempts one"),
        pytest.param(24, 200, 700, range(40, 50), id="24 on a pool for three: 44 were measured"),
    ],
)
def test_preempts_as_often_as_a_real_engine(
    requests: int, prompt: int, answer: int, preemptions: range
) -> None:
    """Loads that were run against vLLM 0.32.0 with 99 usable blocks of 32 give the same preemptions here."""
    it = engine()
    for _ in range(requests):
        it.submit(arrival(prompt, answer))
    while it.outstanding:
        it.step(1)
    assert it.stats.preemptions in preemptions
    assert it.stats.finished["length"] == requests


def test_the_preemption_counter_waits_for_the_victim() -> None:
    """A preempted request is seen at once in running and waiting, and counted only when it speaks again."""
    it = engine(num_blocks=34)
    it.submit(arrival(200, 700))
    it.submit(arrival(200, 700))
    seen = []
    while it.outstanding:
        it.step(0.025)
        gauges = it.stats.gauges
        seen.append((gauges.running, gauges.waiting, it.stats.preemptions))
    changes = [seen[0], *(after for before, after in pairwise(seen) if after != before)]
    assert changes == [(0, 0, 0), (2, 0, 0), (1, 1, 0), (0, 1, 0), (1, 0, 1), (0, 0, 1)]


def test_a_prompt_waits_until_all_of_its_blocks_are_free() -> None:
    """Admission looks at the whole prompt, not at the part that the first step would compute."""
    it = engine(num_blocks=40)
    it.submit(arrival(300, 20))
    it.step(0.3)
    it.submit(arrival(1000, 1))
    it.step(0.1)
    assert (it.stats.gauges.running, it.stats.gauges.waiting) == (1, 1)
    it.step(5)
    assert it.stats.finished["length"] == 2
    assert it.stats.preemptions == 0


def test_a_shared_opening_is_held_once() -> None:
    """Requests with the same opening count its blocks once while any of them runs."""
    apart, together = engine(), engine(shared=128)
    for it in (apart, together):
        for _ in range(3):
            it.submit(arrival(160, 500))
        it.step(0.5)
    assert apart.pool.usable - apart.pool.free == 3 * blocks_for(160, 32) + 3
    assert together.pool.usable - together.pool.free == 4 + 3 * (blocks_for(160, 32) - 4) + 3
    assert (together.stats.prefix_queries, together.stats.prefix_hits) == (480, 256)


def test_a_request_that_can_never_fit_is_refused() -> None:
    """A pool smaller than the longest request does not start, and a longer request is not queued."""
    with pytest.raises(ValueError, match="needs 32 of 31 blocks"):
        engine(num_blocks=32)
    with pytest.raises(ValueError, match="longer than max_model_len"):
        engine().submit(arrival(1000, 25))


# The day


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a scrape would see at one hour of the script."""

    running: int
    waiting: int
    preemptions: int
    pool: int
    fits: int
    """Free blocks over the blocks of one full-length request."""
    finished: int
    prompt_tokens: float
    """Of those that finished since the life began."""


@cache
def day(name: str, seed: int = 1, tick: float = 0.5) -> dict[float, Moment | None]:
    """Play a server's day and look at it every few minutes; None while it is down."""
    plan = plan_of(name)
    clients = Clients(arrivals(plan, opening=OPENING, speed=SPEED, seed=seed))
    seen: dict[float, Moment | None] = {}
    it: Engine | None = None
    for index in range(int(DAY / SPEED / tick)):
        moment = OPENING + index * tick * SPEED
        life = life_of(plan, moment)
        if moment < life.ready_at:
            it = None
            seen[moment / HOUR] = None
            continue
        if it is None:
            ready = max(0.0, (life.ready_at - OPENING) / SPEED)
            clients.lose(ready)
            it = engine_of(plan, num_blocks(plan, life), now=ready)
        catch_up(it, clients, index * tick, outstanding_limit=plan.outstanding_limit)
        gauges = it.stats.gauges
        seen[moment / HOUR] = Moment(
            running=gauges.running,
            waiting=gauges.waiting,
            preemptions=it.stats.preemptions,
            pool=it.pool.num_blocks,
            finished=it.stats.request_prompt_tokens.count,
            prompt_tokens=it.stats.request_prompt_tokens.sum,
            fits=round(it.pool.usable * (1 - gauges.usage_ratio)) // (plan.max_model_len // plan.block_size),
        )
    return seen


def mean_prompt(moments: list[Moment]) -> float:
    """Return the mean prompt, in tokens, of what finished between the first moment and the last."""
    first, last = moments[0], moments[-1]
    return (last.prompt_tokens - first.prompt_tokens) / (last.finished - first.finished)


def between(start: float, end: float, seed: int = 1) -> list[Moment]:
    """Return what is seen of the chat server between two hours while it is up."""
    return [moment for hour, moment in day(CHAT, seed).items() if start <= hour < end and moment]


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_day_tells_its_story(seed: int) -> None:
    """Calm, a rush with queue and preemptions, long prompts, a third of the pool, and fits in the evening."""
    morning = between(9, 12, seed)
    assert max(moment.waiting for moment in morning) <= 1
    assert max(moment.preemptions for moment in morning) == 0
    assert min(moment.fits for moment in morning) >= 6

    rush = between(12.5, 14, seed)
    assert max(moment.waiting for moment in rush) >= 10
    assert rush[-1].preemptions >= 10
    assert min(moment.fits for moment in rush) == 0

    calm = between(15, 16, seed)
    assert calm[-1].waiting == 0
    assert max(moment.fits for moment in calm) >= 6

    long_prompts = between(17, 18, seed)
    assert min(moment.fits for moment in long_prompts) <= 6
    assert mean_prompt(long_prompts) > 1.3 * mean_prompt(morning)

    small_pool = between(19.5, 21, seed)
    assert small_pool[-1].pool < 0.4 * long_prompts[-1].pool
    assert max(moment.waiting for moment in small_pool) >= 3
    assert small_pool[-1].preemptions >= 5
    assert min(moment.fits for moment in small_pool) == 0

    evening = between(22, 30, seed)
    assert {moment.pool for moment in evening} == {morning[0].pool}
    assert evening[-1].preemptions == 0
    assert min(moment.fits for moment in evening) >= 6


def test_the_day_does_not_depend_on_who_looks() -> None:
    """The same seed gives the same day, however often the engine is asked to catch up."""
    coarse, fine = day(CHAT, 1, 2.0), day(CHAT, 1, 0.5)
    assert coarse == {hour: fine[hour] for hour in coarse}


def test_the_embedding_server_is_calm_all_day() -> None:
    """The neighbour is never the one that is short of memory."""
    up = [moment for moment in day(EMBEDDING).values() if moment]
    assert max(moment.preemptions for moment in up) == 0
    assert {moment.pool for moment in up} == {782}


def test_only_starting_together_shrinks_the_pool() -> None:
    """The chat server's pool is 6.26 GiB when it starts alone, and 2.31 when both start at once."""
    plan = plan_of(CHAT)
    gib = [
        num_blocks(plan, life_of(plan, hour * HOUR)) * plan.bytes_per_block / 2**30
        for hour in (8, 19, 22, 43)
    ]
    assert [round(value, 2) for value in gib] == [6.26, 2.31, 6.26, 2.31]


def test_the_card_is_never_overbooked() -> None:
    """What the processes hold fits the card at every minute of two days, and adds up to the plan."""
    assert memory_of(plan_of(CHAT), OPENING) == 26_358 * MIB
    room = CARD.total_bytes - CARD.reserved_bytes
    for minute in range(2 * 24 * 60):
        held = [memory_of(plan, OPENING + minute * 60) or 0 for plan in SERVERS]
        assert sum(held) < room
        assert min(held) >= 0


def test_every_turn_is_told_once() -> None:
    """The story goes round the clock: each phase and restart in its order, again the next day."""
    moment, told = OPENING, []
    for _ in range(8):
        scene = next_scene(moment)
        told.append(str(scene)[:5])
        moment = scene.at
    assert told == ["12:00", "13:30", "16:00", "18:00", "19:00", "21:00", "00:00", "07:00"]
    assert str(next_scene(17.5 * HOUR)) == f"18:00 {' '.join(sorted(r.story for r in RESTARTS[:2]))}"


# The page


def page_source(name: str = CHAT) -> PageSource:
    """Return the pages of a server in the middle of the rush."""
    plan = plan_of(name)
    it = engine_of(plan, 2848 if name == CHAT else 782, now=0.0)
    clients = Clients(arrivals(plan, opening=12 * HOUR, speed=1.0, seed=1))
    catch_up(it, clients, 30.0, outstanding_limit=plan.outstanding_limit)
    return PageSource(plan=plan, engine=it, started_at=1.7e9, model_root="/models/demo")


def shapes(text: str) -> dict[str, tuple[str, set[frozenset[tuple[str, str]]]]]:
    """Return each family's type and its samples' labels; label values only where they are a closed list."""
    closed = {"reason", "finished_reason", "sleep_state"}
    return {
        family.name: (
            family.type,
            {
                frozenset(
                    {("", sample.name)}
                    | {(label, value if label in closed else "") for label, value in sample.labels.items()}
                )
                for sample in family.samples
            },
        )
        for family in text_string_to_metric_families(text)
    }


def test_the_page_has_the_shape_of_a_real_one() -> None:
    """Every family on the page is on vLLM's own, with the same type, samples and labels."""
    real = shapes(CAPTURE.read_text())
    made = shapes(page_source().metrics().decode())
    assert made == {name: real.get(name) for name in made}
    assert {name for name in made if not name.endswith("_created")} >= {
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions",
        "vllm:cache_config_info",
        "process_start_time_seconds",
    }


@pytest.mark.parametrize("name, full_length, blocks", [(CHAT, 4096, 2848), (EMBEDDING, 4096, 782)])
def test_kvwatch_reads_the_pages_like_any_servers(name: str, full_length: int, blocks: int) -> None:
    """The adapter finds every series that it knows, and the engine's own state in them."""
    source = page_source(name)
    bodies = {METRICS: source.metrics().decode(), MODELS: source.models(1.7e9), VERSION: source.version()}
    assert ADAPTER.recognises(bodies[METRICS])
    reading = ADAPTER.read({path: Page(path=path, body=body) for path, body in bodies.items()})
    (rank,) = reading.ranks
    stats = source.engine.stats
    assert reading.missing == ()
    assert (reading.version, reading.full_length_tokens) == ("0.32.0", full_length)
    assert reading.pin_bytes == source.plan.pin_bytes
    assert (rank.num_blocks, rank.block_size) == (blocks, 16)
    assert rank.max_concurrency == blocks / (full_length / 16)
    assert (rank.running, rank.waiting["capacity"]) == (stats.gauges.running, stats.gauges.waiting)
    assert rank.usage_ratio == stats.gauges.usage_ratio
    assert rank.preemptions_total == stats.preemptions
    assert rank.finished_total == stats.finished
    assert rank.finished_prompt_tokens is not None
    assert rank.finished_prompt_tokens.count == sum(stats.finished.values()) > 0


# The processes


def get(url: str) -> str:
    """Fetch a page over HTTP."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def value(text: str, name: str) -> float:
    """Return the value of the only sample of this name."""
    (found,) = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]
    return found


def parent_of(pid: int) -> int:
    """Return a process's parent from /proc."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def short_name(pid: int) -> str:
    """Return what the kernel calls a process."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def alive(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ask_driver(fleet: Fleet) -> dict[str, object]:
    """Poll the simulated driver once through kvwatch's own NVML child."""
    output = subprocess.run(
        fleet.nvml_command,
        env=fleet.nvml_env,
        input='{"poll": 1, "last": [], "skip": []}\n',
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout
    (device,) = [record["device"] for line in output.splitlines() if "device" in (record := json.loads(line))]
    return dict(device)


def test_the_fleet_serves_restarts_and_leaves_nothing() -> None:
    """Ports, parents, children and card agree; a restart refuses, then returns smaller; then all is gone."""

    async def play() -> tuple[list[int], Path]:
        # 1.5 seconds before both servers restart; the chat server is down for two.
        async with Fleet(speed=1000.0, opening=18 * HOUR - 1500.0) as fleet:
            chat, embedding = fleet.servers
            assert (chat.name, embedding.name) == (CHAT, EMBEDDING)
            assert json.loads((chat.model_config / "config.json").read_text())["num_hidden_layers"] == 36
            before: str | None = None
            deadline = time.monotonic() + 10
            refused = False
            while time.monotonic() < deadline:
                try:
                    text = await asyncio.to_thread(get, f"{chat.url}/metrics")
                except OSError as error:
                    # A request that is under way when the server goes is cut off; later ones are refused.
                    refused |= isinstance(getattr(error, "reason", None), ConnectionRefusedError)
                else:
                    if refused:
                        break
                    before = text
                await asyncio.sleep(0.05)
            assert refused
            assert before is not None
            assert 'num_gpu_blocks="2848"' in before
            assert 'num_gpu_blocks="1050"' in text
            started = "process_start_time_seconds"
            assert value(text, started) > value(before, started)
            assert json.loads(get(f"{chat.url}/v1/models"))["data"][0]["max_model_len"] == 4096

            device = await asyncio.to_thread(ask_driver, fleet)
            lists = device["lists"]
            assert isinstance(lists, dict)
            engines = dict(lists["compute"])
            assert device["errors"] == {}
            assert len(engines) == 2
            assert sum(engines.values()) < CARD.total_bytes
            assert {short_name(pid) for pid in engines} == {"VLLM::EngineCor"}
            return [*engines, *(parent_of(pid) for pid in engines)], chat.model_config.parent

    pids, folder = asyncio.run(play())
    assert len(set(pids)) == 4
    assert not any(alive(pid) for pid in pids)
    assert not folder.exists()


def test_the_fleet_dies_with_its_parent(tmp_path: Path) -> None:
    """Even a SIGKILL of the daemon leaves no server and no engine process behind."""
    program = """
import asyncio, json
from kvwatch.demo.fleet import Fleet
async def main():
    async with Fleet() as fleet:
        print(json.dumps([member.process.pid for member in fleet._members]
                         + [member.engine_pid for member in fleet._members]), flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as daemon:
        assert daemon.stdout is not None
        pids = json.loads(daemon.stdout.readline())
        assert len(pids) == 4
        assert all(alive(pid) for pid in pids)
        daemon.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def test_kvwatch_demo_reads_the_fleet_like_any_machine(tmp_path: Path) -> None:
    """The command finds ports, processes, card and model files, and ends on SIGTERM with nothing left."""
    with subprocess.Popen(
        [sys.executable, "-m", "kvwatch", "demo", "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
    ) as daemon:
        try:
            assert daemon.stderr is not None
            address = next(line.split()[-1] for line in daemon.stderr if "/metrics" in line)
            deadline = time.monotonic() + 10
            text = get(address)
            while "kvwatch_device_ledger_bytes{" not in text and time.monotonic() < deadline:
                time.sleep(0.2)
                text = get(address)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=10)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.value for sample in samples if sample.name == "kvwatch_source_up"} == {1.0}
    assert {s.labels["match"] for s in samples if s.name == "kvwatch_process_info"} == {"tree"}
    assert sum(s.value for s in samples if s.name == "kvwatch_device_ledger_bytes") == CARD.total_bytes
    blocks = {s.labels["server"]: s.value for s in samples if s.name == "kvwatch_kv_capacity_blocks"}
    assert blocks == {CHAT: 2847, EMBEDDING: 781}
    assert daemon.returncode == 0
    assert list(tmp_path.iterdir()) == []
