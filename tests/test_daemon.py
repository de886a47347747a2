"""The daemon's life: start, ready, reload, stale, hang, end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from kvwatch.wiring import Devices
from tests.daemon import config, parse, reason, running, value
from tests.nvml_standin.build import build, write_scenario
from tests.replay import Answer, edited, llamacpp_pages, replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.daemon import Series

    Start = Callable[..., tuple[subprocess.Popen[str], str]]

pytestmark = pytest.mark.anyio


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts `kvwatch run` as its own process and returns it with its URL."""
    processes: list[subprocess.Popen[str]] = []

    def start(
        *arguments: str, environment: dict[str, str] | None = None
    ) -> tuple[subprocess.Popen[str], str]:
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kvwatch",
                    "run",
                    "--no-discovery",
                    "--history",
                    "off",
                    "--listen",
                    "127.0.0.1:0",
                    *arguments,
                ],
                stderr=log,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        processes.append(process)
        for _ in range(500):
            for line in (tmp_path / "log").read_text().splitlines():
                if "listens on" in line:
                    return process, line.split()[-1].rstrip("/")
            if process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError((tmp_path / "log").read_text())

    yield start
    for process in processes:
        process.kill()
        process.wait()


async def get(url: str) -> httpx.Response:
    """Fetch a page of a daemon in another process."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - plain HTTP
        return await client.get(url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly_while_a_server_and_the_driver_hang(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """Within two seconds, exit status 0, and no child left behind."""
    scenario = tmp_path / "nvml.scn"
    write_scenario(scenario, "gpu 0 uuid=GPU-a total=100MiB used=0\ndelay * ms=forever\n")
    async with replaying({"/metrics": Answer(hang=True)}) as replay:
        file = tmp_path / "kvwatch.yaml"
        file.write_text(
            f"nvml: {{enabled: true, deadline: 1m}}\nscrape: {{deadline: 1m}}\n"
            f"servers: [{{name: s, url: '{replay.url}', engine: vllm}}]\n"
        )
        environment = {"LD_LIBRARY_PATH": str(build()), "KVWATCH_NVML_SCENARIO": str(scenario)}
        process, url = start("--config", str(file), environment=environment)
        assert (await get(url + "/-/ready")).status_code == 503
        assert (await get(url + "/-/healthy")).status_code == 200
        children = await asyncio.to_thread(children_of, process.pid)
        assert children
        started = time.monotonic()
        process.send_signal(number)
        assert await asyncio.to_thread(process.wait, 5) == 0
        assert time.monotonic() - started < 2
        await asyncio.sleep(0.5)
        assert [pid for pid in children if is_alive(pid)] == []


def children_of(pid: int) -> list[int]:
    """Wait until a process has children; return their PIDs."""
    for _ in range(100):
        text = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
        )
        if text.stdout.split():
            return [int(word) for word in text.stdout.split()]
        time.sleep(0.02)
    return []


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - short
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_sighup_loads_the_file_again_and_a_bad_one_changes_nothing(
    start: Start, tmp_path: Path
) -> None:
    """A bad file is told by a metric and a log line; the old servers stay watched."""
    file = tmp_path / "kvwatch.yaml"
    async with replaying(vllm_pages("idle")) as one, replaying(vllm_pages("draining")) as two:
        head = "interval: 200ms\nnvml: {enabled: false}\n"
        file.write_text(f"{head}servers: [{{name: one, url: '{one.url}'}}]\n")
        process, url = start("--config", str(file))

        async def until(condition: Callable[[Series], bool]) -> Series:
            for _ in range(200):
                series = parse((await get(url + "/metrics")).text)
                if condition(series):
                    return series
                await asyncio.sleep(0.05)
            raise AssertionError(series)

        await until(lambda series: value(series, "requests_running", server="one") == 0)
        file.write_text(f"{head}servers: [{{name: two, uri: '{two.url}'}}]\n")
        process.send_signal(signal.SIGHUP)
        series = await until(lambda series: value(series, "config_last_reload_successful") == 0)
        assert value(series, "requests_running", server="one") == 0
        assert "kvwatch.yaml:3" in (tmp_path / "log").read_text()
        file.write_text(f"{head}servers: [{{name: two, url: '{two.url}'}}]\n")
        process.send_signal(signal.SIGHUP)
        series = await until(lambda series: value(series, "requests_running", server="two") == 2)
        assert value(series, "config_last_reload_successful") == 1
        await until(lambda series: value(series, "source_up", source="engine", target="one") is None)


async def test_old_data_is_withdrawn_while_health_stays() -> None:
    """When polls stop, after three intervals no figure is shown any more."""
    async with (
        replaying(vllm_pages("idle")) as replay,
        running(config(f"scrape: {{deadline: 1m}}\nservers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        await daemon.until(lambda series: value(series, "requests_running", server="s") == 0)
        replay.pages["/metrics"] = Answer(hang=True)
        series = await daemon.until(lambda series: "kvwatch_requests_running" not in series, seconds=5)
        assert value(series, "up") == 1
        assert value(series, "source_up", source="engine", target="s") == 1
        assert (await daemon.client.get(daemon.url + "/-/ready")).status_code == 200


async def test_a_server_that_becomes_another_engine_is_noticed() -> None:
    """With engine auto, the adapter follows what answers behind the URL."""
    async with (
        replaying(vllm_pages("idle")) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}', kv_unified: false}}]")) as daemon,
    ):
        await daemon.until(lambda series: value(series, "server_info", server="s", engine="vllm") == 1)
        replay.pages = llamacpp_pages("split", "idle")
        await daemon.until(lambda series: value(series, "server_info", server="s", engine="llamacpp") == 1)


async def test_a_changed_setting_changes_the_fingerprint_and_is_dated() -> None:
    """Same URL, other flags: the moment is exported, the version is no part of it."""
    async with (
        replaying(vllm_pages("idle")) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        series = await daemon.until(lambda series: value(series, "server_info", server="s") == 1)
        assert value(series, "server_config_changed_timestamp_seconds", server="s") is None
        replay.pages["/version"] = Answer(b'{"version": "0.33.0"}')
        series = await daemon.until(lambda series: value(series, "server_info", version="0.33.0") == 1)
        assert value(series, "server_config_changed_timestamp_seconds", server="s") is None
        replay.pages["/metrics"] = edited(replay.pages["/metrics"], 'block_size="32"', 'block_size="64"')
        series = await daemon.until(
            lambda series: value(series, "server_config_changed_timestamp_seconds", server="s") is not None
        )
        changed = value(series, "server_config_changed_timestamp_seconds", server="s")
        assert changed is not None
        assert abs(changed - time.time()) < 5


async def test_the_early_signal_sees_preemption_before_the_engine_counts_it() -> None:
    """Six requests stopped running and six began to wait while the engine's counter still says 0."""
    async with (
        replaying(vllm_pages("pool-full")) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        await daemon.until(lambda series: value(series, "requests_running", server="s") == 11)
        replay.pages = vllm_pages("preempted-not-yet-counted")
        series = await daemon.until(lambda series: value(series, "requests_running", server="s") == 5)
        assert value(series, "recompute_suspected_total", server="s") == 6
        assert value(series, "preemptions_total", server="s") == 0


async def test_typical_lengths_are_those_of_what_finished_meanwhile() -> None:
    """Twenty requests of 200 + 700 tokens finish between two polls: 900 tokens are typical."""
    async with (
        replaying(vllm_pages("pool-full")) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        series = await daemon.until(lambda series: value(series, "requests_running", server="s") == 11)
        assert value(series, "typical_request_tokens", server="s", part="prompt") is None
        replay.pages = vllm_pages("draining")
        series = await daemon.until(lambda series: value(series, "requests_running", server="s") == 2)
        assert value(series, "typical_request_tokens", server="s", part="prompt") == 200
        assert value(series, "typical_request_tokens", server="s", part="generation") == 700
        # 29 blocks of 32 hold 900 tokens; 99 / 29 = 3.41
        assert value(series, "typical_requests_fit_empty", server="s") == 3
        assert value(series, "typical_capacity_requests", server="s") == pytest.approx(99 / 29)


async def test_formats_and_compression_are_what_the_scraper_asks_for() -> None:
    """Text by default, OpenMetrics and gzip when accepted, families by name."""
    async with (
        replaying(vllm_pages("idle")) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        await daemon.until(lambda series: "kvwatch_server_info" in series)
        plain = await daemon.client.get(daemon.url + "/metrics", headers={"Accept-Encoding": "identity"})
        assert plain.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        openmetrics = await daemon.client.get(
            daemon.url + "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
        )
        assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text")
        assert openmetrics.text.endswith("# EOF\n")
        assert openmetrics.headers["Content-Encoding"] == "gzip"
        unwanted = await daemon.client.get(
            daemon.url + "/metrics", headers={"Accept-Encoding": "br, gzip;q=0"}
        )
        assert "Content-Encoding" not in unwanted.headers
        some = await daemon.client.get(daemon.url + "/metrics?name[]=kvwatch_up")
        assert set(parse(some.text)) == {"kvwatch_up"}


async def test_the_debug_page_shows_how_a_figure_came_about() -> None:
    """What was fetched, with which status, and how it was read; a wrong name lists the right ones."""
    async with (
        replaying({**vllm_pages("idle"), "/v1/models": Answer(status=401)}) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}'}}]")) as daemon,
    ):
        series = await daemon.until(lambda series: "kvwatch_requests_running" in series)
        assert value(series, "engine_metric_missing", metric="/v1/models max_model_len") == 1
        assert value(series, "full_length_requests_fit_now", server="s") is None
        assert reason(series, "model", "s") == "unauthorized"
        document = (await daemon.client.get(daemon.url + "/debug/target?server=s")).json()
        assert [(page["path"], page["status"], page["reason"]) for page in document["pages"]][-3:] == [
            ("/metrics", 200, None),
            ("/v1/models", 401, "unauthorized"),
            ("/version", 200, None),
        ]
        assert document["reading"]["ranks"][0]["num_blocks"] == 100
        wrong = await daemon.client.get(daemon.url + "/debug/target?server=other")
        assert (wrong.status_code, wrong.json()["servers"]) == (404, ["s"])


async def test_a_bearer_token_is_sent_and_never_shown(tmp_path: Path) -> None:
    """The token goes to the server, not to the exposition, the snapshot or the debug page."""
    token = tmp_path / "token"
    token.write_text("sesame-open\n")
    async with (
        replaying(vllm_pages("idle")) as replay,
        running(config(f"servers: [{{name: s, url: '{replay.url}', bearer_token_file: {token}}}]")) as daemon,
    ):
        await daemon.until(lambda series: "kvwatch_requests_running" in series)
        assert replay.headers[0]["Authorization"] == "Bearer sesame-open"
        token.write_text("changed")
        await daemon.until(lambda _: replay.headers[-1]["Authorization"] == "Bearer changed")
        for path in ("/metrics", "/api/v1/snapshot", "/debug/target?server=s"):
            assert "sesame" not in await daemon.text(path)


def test_an_address_in_use_is_an_error_that_names_it() -> None:
    """The daemon says which address, and exits with 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "kvwatch",
                "run",
                "--no-discovery",
                "--history",
                "off",
                "--listen",
                address,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    assert result.returncode == 1
    assert f"cannot listen on {address}" in result.stderr
    assert "Traceback" not in result.stderr


async def test_devices_alone_can_be_watched(tmp_path: Path) -> None:
    """With no server configured the cards are still there."""
    scenario = tmp_path / "nvml.scn"
    write_scenario(scenario, "gpu 0 uuid=GPU-a total=100MiB used=40MiB\n")
    environment = {"LD_LIBRARY_PATH": str(build()), "KVWATCH_NVML_SCENARIO": str(scenario)}
    async with running(
        config("", nvml="{enabled: true, deadline: 5s}"), devices=Devices(environment=environment)
    ) as daemon:
        await daemon.until(
            lambda series: value(series, "device_memory_free_bytes", device="GPU-a") == 60 << 20
        )
