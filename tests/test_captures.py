"""Captured pages of real engines through the real daemon: the numbers that must come out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.daemon import config, reason, running, value
from tests.replay import Answer, edited, llamacpp_pages, replaying, vllm_pages, vllm_scene

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Expected:
    """A row of the table: full-length requests, and blocks where the engine has blocks."""

    empty: int
    now: int
    guaranteed: int
    headroom: int
    limit: int
    usable: int | None = None
    free: int | None = None
    basis: str | None = None


def row(usable: int, free: int, empty: int, now: int, guaranteed: int, headroom: int) -> Expected:
    """Return the expectation for a uniform vLLM."""
    return Expected(empty, now, guaranteed, headroom, empty, usable, free, "resident")


SPLIT = "kv_unified: false"
UNIFIED = "kv_unified: true, pool_tokens: 4096"
HYBRID_MODEL = "model_config: tests/captures/vllm/tiny-gemma3-config.json, max_num_batched_tokens: 2048"

TABLE = {
    "vllm idle": (vllm_pages("idle"), "", row(99, 99, 3, 3, 3, 3)),
    "vllm pool full": (vllm_pages("pool-full"), "", row(99, 0, 3, 0, 0, -21)),
    "vllm draining": (vllm_pages("draining"), "", row(99, 48, 3, 1, 0, -1)),
    "vllm preempted, not yet counted": (
        vllm_pages("preempted-not-yet-counted"), "", row(99, 4, 3, 0, 0, -21)),
    "vllm, an adapter's two requests and the model's one": (
        vllm_scene("lora-running", "lora"), "", row(99, 63, 3, 1, 0, 0)),
    "vllm, one waits for its grammar": (
        vllm_scene("grammar-one-deferred", "grammar"), "", row(99, 99, 3, 3, 2, 2)),
    "vllm hybrid idle, model unknown": (
        vllm_pages("hybrid-idle"), "", Expected(2, 2, 2, 2, 2, 899, 899, "admission")),
    "vllm hybrid ten running, model unknown": (
        vllm_pages("hybrid-ten-running"), "", Expected(2, 0, 0, -8, 2, 899, 99, "admission")),
    "llama.cpp split idle": (llamacpp_pages("split", "idle"), SPLIT, Expected(4, 4, 4, 4, 4)),
    "llama.cpp split, four running, three deferred": (
        llamacpp_pages("split", "load2"), SPLIT, Expected(4, 0, 0, -3, 4)),
    "llama.cpp unified idle": (llamacpp_pages("unified-q8_0", "idle"), UNIFIED, Expected(1, 1, 1, 1, 1)),
    "llama.cpp unified, four running, two deferred": (
        llamacpp_pages("unified-q8_0", "load2"), UNIFIED, Expected(1, 0, 0, -5, 1)),
}  # fmt: skip


@pytest.mark.parametrize("situation", TABLE)
async def test_a_capture_comes_out_as_these_numbers(situation: str) -> None:
    """Each captured state gives the fits that follow from the engine's own figures."""
    pages, options, expected = TABLE[situation]
    series = await scrape(pages, options)
    assert reason(series, "engine", "s") is None
    fits = {
        name: value(series, f"full_length_requests_{name}", server="s", rank="0")
        for name in ("fit_empty", "fit_now", "fit_guaranteed", "headroom", "resident_limit")
    }
    assert fits == {
        "fit_empty": expected.empty,
        "fit_now": expected.now,
        "fit_guaranteed": expected.guaranteed,
        "headroom": expected.headroom,
        "resident_limit": expected.limit,
    }
    assert value(series, "kv_capacity_blocks", server="s", rank="0") == expected.usable
    assert value(series, "kv_free_blocks", server="s", rank="0") == expected.free
    assert value(series, "fit_basis", server="s") == (1 if expected.basis else None)
    assert value(series, "fit_basis", server="s", basis=expected.basis or "") == (
        1 if expected.basis else None
    )


@pytest.mark.parametrize(
    "state, concurrency, tokens", [("idle", 3.125, 3200), ("hybrid-idle", 900 / 389, 4738)]
)
async def test_the_engines_own_figures_stand_beside_ours(state: str, concurrency: float, tokens: int) -> None:
    """The printed maximum concurrency and cache size are exported as they are."""
    series = await scrape(vllm_pages(state), "")
    assert value(series, "engine_max_concurrency", server="s", rank="0") == pytest.approx(concurrency)
    assert value(series, "engine_kv_tokens", server="s", rank="0") == tokens


@pytest.mark.parametrize(
    "state, run, wait, preempted",
    [
        ("idle", 0, 0, 0),
        ("pool-full", 11, 13, 0),
        ("preempted-not-yet-counted", 5, 19, 0),
        ("preempting", 6, 11, 15),
        ("draining", 2, 2, 42),
        ("after-load", 0, 0, 44),
    ],
)
async def test_requests_and_preemptions_are_as_on_the_page(
    state: str, run: int, wait: int, preempted: int
) -> None:
    """Running fallen while the engine's counter still says 0 is shown as exactly that."""
    series = await scrape(vllm_pages(state), "")
    assert value(series, "requests_running", server="s", rank="0") == run
    assert value(series, "requests_waiting", server="s", rank="0", reason="capacity") == wait
    assert value(series, "requests_waiting", server="s", rank="0", reason="deferred") == 0
    assert value(series, "preemptions_total", server="s", rank="0") == preempted


async def test_a_hybrids_model_file_gives_what_it_really_holds() -> None:
    """With windows known, 10 requests can be held where the start-up charge says 2."""
    series = await scrape(vllm_pages("hybrid-idle"), HYBRID_MODEL)
    assert value(series, "fit_basis", server="s", basis="resident") == 1
    assert value(series, "full_length_requests_resident_limit", server="s", rank="0") == 10
    assert value(series, "full_length_requests_fit_empty", server="s", rank="0") == 6
    assert value(series, "kv_model_error_ratio", server="s") == 0


async def test_without_a_known_pool_nothing_fits_and_nothing_is_free() -> None:
    """A llama-server whose pool nobody stated has no fit series, and a reason."""
    series = await scrape(llamacpp_pages("split", "idle"), "")
    assert value(series, "requests_running", server="s", rank="0") == 0
    assert value(series, "full_length_requests_fit_now", server="s") is None
    assert reason(series, "model", "s") == "unknown_pool"


async def test_an_idle_llama_servers_slots_are_left_alone() -> None:
    """/slots would keep it awake, and a sleeper is asked nothing but /props."""
    async with (
        replaying(llamacpp_pages("split", "idle")) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        await daemon.until(lambda series: value(series, "requests_running", server="s") == 0)
        assert "/slots" not in replay.asked
        replay.pages["/props"] = edited(replay.pages["/props"], '"is_sleeping":false', '"is_sleeping":true')
        series = await daemon.until(lambda series: value(series, "server_sleeping", server="s") == 1)
        assert value(series, "requests_running", server="s") is None
        replay.asked.clear()
        await daemon.until(lambda _: replay.asked.count("/props") > 1)
        assert set(replay.asked) == {"/props"}


async def scrape(
    pages: dict[str, Answer], options: str
) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the exposition of a daemon that watches these pages as server `s`."""
    async with replaying(pages) as replay:
        text = f"servers: [{{name: s, url: '{replay.url}', {options}}}]"
        async with running(config(text)) as daemon:
            return await daemon.until(lambda series: "kvwatch_source_up" in series)
