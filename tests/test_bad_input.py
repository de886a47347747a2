"""What a server may answer instead of metrics: each has its own reason, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import pytest

from tests.daemon import Running, config, reason, running, value
from tests.replay import CAPTURES, Answer, edited, llamacpp_pages, replaying, vllm_pages

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

METRICS = vllm_pages("idle")["/metrics"]
TEXT = METRICS.body
RUNNING = b'vllm:num_requests_running{engine="0",model_name="./tiny-llama"} 0.0\n'
USAGE = 'vllm:kv_cache_usage_perc{engine="0",model_name="./tiny-llama"}'
LOADING = Answer(b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', status=503)
DATA = (
    "requests_running",
    "kv_usage_ratio",
    "full_length_requests_fit_now",
    "server_info",
    "preemptions_total",
)


def with_running(old: str, new: str) -> Answer:
    """Return the idle page with its line of running requests changed."""
    line = RUNNING.decode()
    assert old in line
    return edited(METRICS, line, line.replace(old, new))


BAD_PAGES = {
    "html": (Answer(b"<!DOCTYPE html>\n<html><body>Bad gateway</body></html>\n"), "parse_error"),
    "empty": (Answer(b""), "parse_error"),
    "half a line": (Answer(TEXT[: TEXT.index(RUNNING) + 40]), "parse_error"),
    "a number cut in two": (Answer(TEXT[: TEXT.index(RUNNING) + len(RUNNING) - 2]), "parse_error"),
    "50 MB": (Answer(TEXT + b"# " + b"x" * 50_000_000 + b"\n"), "too_large"),
    "redirect": (Answer(status=302, headers={"Location": "/elsewhere"}), "redirect"),
    "401": (Answer(b"no", status=401), "unauthorized"),
    "404": (Answer(b"no", status=404), "not_found"),
    "501": (Answer(b"no", status=501), "not_enabled"),
    "503 while loading": (LOADING, "loading"),
    "503 for another reason": (Answer(b"overloaded", status=503), "http_error"),
    "500": (Answer(b"", status=500), "http_error"),
    "a byte a second": (Answer(TEXT, drip_seconds=1.0), "timeout"),
    "no answer": (Answer(hang=True), "timeout"),
    "not UTF-8": (Answer(b"\xff\xfe" + TEXT), "parse_error"),
    "a word for a number": (with_running(" 0.0", " None"), "parse_error"),
    "not a number": (with_running(" 0.0", " NaN"), "parse_error"),
    "infinity": (with_running(" 0.0", " +Inf"), "parse_error"),
    "a negative count": (with_running(" 0.0", " -1"), "parse_error"),
    "half a request": (with_running(" 0.0", " 0.5"), "parse_error"),
    "usage in percent": (edited(METRICS, USAGE + " 0.0", USAGE + " 52"), "parse_error"),
    "an unclosed quote": (with_running('llama"', "llama"), "parse_error"),
    "a line feed in a label": (with_running("tiny", "ti\nny"), "parse_error"),
    "two servers' pages in one": (
        with_running("\n", "\n" + RUNNING.decode().replace("tiny-llama", "other")), "ambiguous"),
    "the same page twice": (Answer(TEXT + TEXT), "ambiguous"),
    "statistics switched off": (Answer(b"# TYPE python_info gauge\npython_info 1\n"), "no_engine_series"),
    "another exporter": (Answer(b"node_load1 0.5\n"), "no_engine_series"),
}  # fmt: skip


@pytest.mark.parametrize("situation", BAD_PAGES)
async def test_a_bad_page_takes_the_servers_data_away_and_says_why(
    situation: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's series go, its neighbour's stay, the change is logged once, and recovery is complete."""
    page, expected = BAD_PAGES[situation]
    caplog.set_level(logging.INFO, "kvwatch.health")
    async with replaying(vllm_pages("idle")) as bad, replaying(vllm_pages("draining")) as good:
        text = (
            "scrape: {deadline: 500ms, max_bytes: 1MiB}\n"
            f"servers: [{{name: bad, url: '{bad.url}', engine: vllm}}, {{name: good, url: '{good.url}'}}]"
        )
        async with running(config(text)) as daemon:
            await daemon.until(lambda series: value(series, "requests_running", server="bad") == 0)
            bad.pages["/metrics"] = page
            series = await daemon.until(lambda series: reason(series, "engine", "bad") is not None)
            assert reason(series, "engine", "bad") == expected
            assert {name: value(series, name, server="bad") for name in DATA} == dict.fromkeys(DATA)
            assert value(series, "requests_running", server="good") == 2
            assert reason(series, "engine", "good") is None
            failures = await failures_of(daemon, at_least=3)
            assert failures.keys() == {expected}
            bad.pages["/metrics"] = METRICS
            await daemon.until(lambda series: value(series, "requests_running", server="bad") == 0)
    engine_lines = [line.getMessage() for line in caplog.records if "engine bad" in line.getMessage()]
    assert len(engine_lines) == 2, engine_lines
    assert expected in engine_lines[0]
    assert "works again" in engine_lines[1]


async def failures_of(daemon: Running, *, at_least: int) -> dict[str, float]:
    """Wait for some failures of server `bad`; return them by reason."""

    def counts(series: dict[str, dict[tuple[tuple[str, str], ...], float]]) -> dict[str, float]:
        return {
            dict(labels)["reason"]: number
            for labels, number in series.get("kvwatch_source_failures_total", {}).items()
            if ("target", "bad") in labels and ("source", "engine") in labels
        }

    return counts(await daemon.until(lambda series: sum(counts(series).values()) >= at_least))


async def test_a_port_where_nobody_listens_is_unreachable() -> None:
    """Connection refused is told apart from a server that answers badly."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with running(config(f"servers: [{{name: bad, url: '{url}'}}]")) as daemon:
            series = await daemon.until(lambda series: "kvwatch_source_up" in series)
            assert reason(series, "engine", "bad") == "unreachable"
            assert value(series, "source_last_success_timestamp_seconds", target="bad") is None


async def test_a_server_that_does_not_speak_http_is_a_parse_error() -> None:
    """A listener of another protocol gives a reason, not an exception."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)  # noqa: FBT003 - its own signature
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with running(config(f"servers: [{{name: bad, url: '{url}', engine: vllm}}]")) as daemon:
            loop = asyncio.get_running_loop()

            async def greet() -> None:
                while True:
                    connection, _ = await loop.sock_accept(listener)
                    await loop.sock_sendall(connection, b"SSH-2.0-OpenSSH_9.2\r\n")
                    connection.close()

            greeter = asyncio.create_task(greet())
            series = await daemon.until(lambda series: "kvwatch_source_up" in series)
            greeter.cancel()
            assert reason(series, "engine", "bad") in ("parse_error", "unreachable")


async def test_quotes_and_line_feeds_in_labels_are_data_not_structure() -> None:
    """An escaped model name reaches our exposition escaped, and nothing else changes."""
    hostile = 'a\\"b\\\\c\\nkvwatch_up 7'
    pages = vllm_pages("idle")
    pages["/metrics"] = edited(pages["/metrics"], "./tiny-llama", hostile)
    async with (
        replaying(pages) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        series = await daemon.until(lambda series: "kvwatch_server_info" in series)
        assert dict(next(iter(series["kvwatch_server_info"])))["model"] == 'a"b\\c\nkvwatch_up 7'
        assert value(series, "full_length_requests_fit_now", server="s") == 3
        assert value(series, "up") == 1


async def test_a_pool_that_prints_none_is_unknown() -> None:
    """A word where the number of blocks should be leaves requests known and every fit absent."""
    pages = vllm_pages("idle")
    pages["/metrics"] = edited(pages["/metrics"], 'num_gpu_blocks="100"', 'num_gpu_blocks="None"')
    async with (
        replaying(pages) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        series = await daemon.until(lambda series: "kvwatch_requests_running" in series)
        assert reason(series, "model", "s") == "unknown_pool"
        assert value(series, "engine_metric_missing", metric="vllm:cache_config_info{num_gpu_blocks}") == 1
        assert [name for name in series if "fit" in name or "blocks" in name] == []


@pytest.mark.parametrize(
    "content, expected",
    [
        ("[1, 2]", "parse_error"),
        ("{", "parse_error"),
        ("[" * 100_000, "parse_error"),
        ('{"architectures": ["NobodyKnowsForCausalLM"]}', "unknown_architecture"),
        ("{}", "missing_field"),
        ('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}', "missing_field"),
        (None, "not_found"),
    ],
)
async def test_a_bad_model_file_costs_only_what_needs_it(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    """A config.json that is a list, cut, unknown or gone has a reason; the engine's own figures stay."""
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    async with replaying(vllm_pages("draining")) as replay:
        text = f"servers: [{{name: s, url: '{replay.url}', model_config: '{file}', tensor_parallel: 1}}]"
        async with running(config(text)) as daemon:
            series = await daemon.until(lambda series: "kvwatch_requests_running" in series)
            assert reason(series, "model", "s") == expected
            assert reason(series, "engine", "s") is None
            assert value(series, "full_length_requests_fit_now", server="s") == 1
            assert value(series, "kv_capacity_bytes", server="s") is None
            file.write_bytes((CAPTURES / "vllm" / "tiny-llama-config.json").read_bytes())
            series = await daemon.until(lambda series: reason(series, "model", "s") is None)
            # 4 layers x 2 heads x (32 + 32) x 2 bytes a token, 32 tokens a block, 99 usable blocks
            assert value(series, "kv_bytes_per_token", server="s") == 1024
            assert value(series, "kv_capacity_bytes", server="s") == 1024 * 32 * 99


@pytest.mark.parametrize(
    "path, answer, expected",
    [
        ("/props", Answer(b"[]"), "parse_error"),
        ("/props", Answer(b'{"role":"router","default_generation_settings":{}}'), "not_supported"),
        (
            "/props",
            Answer(b'{"default_generation_settings":{"n_ctx":"many"},"total_slots":4}'),
            "parse_error",
        ),
        ("/props", LOADING, "loading"),
        ("/props", Answer(status=401), "unauthorized"),
        ("/metrics", Answer(status=501), "not_enabled"),
        ("/metrics", Answer(b"llamacpp:requests_processing many\n"), "parse_error"),
        ("/slots", Answer(b'{"error": 1}'), "parse_error"),
        ("/slots", Answer(b'[{"id":0}]'), "parse_error"),
    ],
)
async def test_a_bad_llama_server_page_has_its_reason(path: str, answer: Answer, expected: str) -> None:
    """Each of the three pages can fail in its own way."""
    pages = {**llamacpp_pages("split", "load2"), path: answer}
    async with replaying(pages) as replay:
        text = f"servers: [{{name: s, url: '{replay.url}', engine: llamacpp, kv_unified: false}}]"
        async with running(config(text)) as daemon:
            series = await daemon.until(lambda series: "kvwatch_source_up" in series)
            assert reason(series, "engine", "s") == expected
            assert "kvwatch_requests_running" not in series


async def test_slots_switched_off_leaves_a_split_pool_known_and_a_unified_one_not() -> None:
    """Idle slots are known without /slots; how full a shared pool is, is not."""
    pages = {**llamacpp_pages("unified-q8_0", "load2"), "/slots": Answer(status=501)}
    async with replaying(pages) as replay:
        text = f"servers: [{{name: s, url: '{replay.url}', kv_unified: true, pool_tokens: 4096}}]"
        async with running(config(text)) as daemon:
            series = await daemon.until(lambda series: "kvwatch_requests_running" in series)
            assert value(series, "full_length_requests_resident_limit", server="s") == 1
            assert value(series, "full_length_requests_fit_now", server="s") is None
            assert value(series, "kv_usage_ratio", server="s") is None
