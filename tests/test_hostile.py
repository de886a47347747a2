"""What a compromised engine, a hostile local user and a hostile client can try, against the real daemon."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvwatch.sources.discovery import crowd
from kvwatch.sources.discovery.candidates import Candidate
from kvwatch.sources.discovery.crowd import bounded
from kvwatch.sources.discovery.services import Service
from kvwatch.sources.launches import stated_launch
from tests.daemon import config, parse, reason, running, value
from tests.discovery.stand_ins import Looker, free_port, vllm
from tests.replay import Answer, edited, llamacpp_pages, replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.anyio

PAGES = vllm_pages("idle")
TEXT = PAGES["/metrics"].body.decode()


def many_ranks(count: int) -> bytes:
    """Return a page of this many ranks."""
    lines = []
    for line in TEXT.splitlines(keepends=True):
        lines.append(line)
        if line.startswith(("vllm:num_requests_running", "vllm:num_preemptions_total")):
            lines += [line.replace('engine="0"', f'engine="{rank}"') for rank in range(1, count)]
    return "".join(lines).encode()


def long_rank() -> bytes:
    """Return a page whose rank has a name of 100 kB."""
    return TEXT.replace('engine="0"', f'engine="{"0" * 100_000}"').encode()


HOSTILE = {
    "ranks without end": ({"/metrics": Answer(many_ranks(5_000))}, "too_large"),
    "more ranks than there are": ({"/metrics": Answer(many_ranks(600))}, "too_large"),
    "a rank with a long name": ({"/metrics": Answer(long_rank())}, "too_large"),
    "a document without an end": ({"/v1/models": Answer(b"[" * 500_000)}, None),
    "a number that takes for ever": ({"/v1/models": Answer(b'{"data": ' + b"9" * 500_000 + b"}")}, None),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_page_costs_its_own_server_only(name: str) -> None:
    """It is refused with a reason, or what it says is unknown; its neighbour's figures come as ever."""
    pages, expected = HOSTILE[name]
    async with replaying({**PAGES, **pages}) as bad, replaying(vllm_pages("draining")) as good:
        text = f"servers: [{{name: bad, url: '{bad.url}', engine: vllm}}, {{name: good, url: '{good.url}'}}]"
        async with running(config(text)) as daemon:
            series = await daemon.until(lambda series: value(series, "requests_running", server="good") == 2)
            assert reason(series, "engine", "bad") == expected
            before = time.monotonic()
            assert len(await daemon.text()) < 100_000
            assert time.monotonic() - before < 0.5


async def test_slots_without_end_are_refused() -> None:
    """A list of a million slots makes a million of nothing."""
    pages: Mapping[str, Answer] = llamacpp_pages("capped", "2-running")
    entry = json.loads(pages["/slots"].body)[0]
    async with (
        replaying({**pages, "/slots": Answer(json.dumps([entry] * 5_000).encode())}) as bad,
        running(config(f"servers: [{{name: bad, url: '{bad.url}'}}]")) as daemon,
    ):
        series = await daemon.until(lambda series: "kvwatch_source_up" in series)
        assert reason(series, "engine", "bad") == "too_large"


async def test_a_long_name_is_cut() -> None:
    """A model's name without end would be a label in every scrape and a row in the history."""
    page = edited(PAGES["/metrics"], "./tiny-llama", "x" * 5_000)
    async with (
        replaying({**PAGES, "/metrics": page}) as bad,
        running(config(f"servers: [{{name: s, url: '{bad.url}'}}]")) as daemon,
    ):
        series = await daemon.until(lambda series: "kvwatch_server_info" in series)
        assert dict(next(iter(series["kvwatch_server_info"])))["model"] == "x" * 1_024 + "..."
        assert len(await daemon.text("/api/v1/snapshot")) < 50_000


async def test_a_redirect_is_not_followed() -> None:
    """An engine cannot send kvwatch, with its token, to another address."""
    async with replaying(vllm_pages("draining")) as inner:
        target = Answer(status=302, headers={"Location": f"{inner.url}/metrics"})
        async with replaying({**PAGES, "/metrics": target}) as bad:
            text = f"servers: [{{name: bad, url: '{bad.url}', engine: vllm}}]"
            async with running(config(text)) as daemon:
                series = await daemon.until(lambda series: "kvwatch_source_up" in series)
                assert reason(series, "engine", "bad") == "redirect"
        assert inner.asked == []


async def test_a_process_with_a_hostile_command_line(tmp_path: Path) -> None:
    """Words of a process become no metric's structure, no markup and no line of the log."""
    port = free_port()
    model = 'm"} 1\nkvwatch_up 7\n<img src=x onerror=alert(1)>'
    with vllm(tmp_path, port, "--served-model-name", model):
        command = [sys.executable, "-m", "kvwatch", "once", "--json"]
        result = await asyncio.to_thread(
            lambda: subprocess.run(command, capture_output=True, text=True, check=False)
        )
        async with running(config("", discovery=True)) as daemon:
            server = f"127.0.0.1:{port}"
            series = await daemon.until(
                lambda series: value(series, "requests_running", server=server) is not None
            )
            assert value(series, "up") == 1
            assert parse(await daemon.text()).keys() >= {"kvwatch_up"}
            debug = json.loads(await daemon.text(f"/debug/target?server={server}"))
    assert debug
    assert json.loads(result.stdout)["servers"]
    assert "\nkvwatch_up 7" not in result.stderr


def test_the_hosts_name_of_a_command_line_is_not_asked(tmp_path: Path) -> None:
    """Where a server is asked is decided by its own listening socket, never by what its words say."""
    port = free_port()
    words = ("vllm", "serve", "m", "--host", "169.254.169.254", "--port", str(port))
    script = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(60)"
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o755)
    looker = Looker()
    with subprocess.Popen([str(program), *words[1:]]) as process:
        try:
            for _ in range(200):
                target = looker.find(port)
                if target is not None and target.hindrance is None:
                    break
                time.sleep(0.02)
        finally:
            process.kill()
    assert target is not None
    assert target.url == f"http://127.0.0.1:{port}"


def test_one_user_cannot_fill_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user's servers the oldest are watched; those of others stay, and how many there are is said."""
    monkeypatch.setattr(crowd, "MOST_OF_ONE_USER", 3)
    users = {10: 1000, 11: 1000, 12: 1000, 13: 1000, 14: 1000, 20: 0}
    monkeypatch.setattr(crowd, "read_user", lambda _root, pid: users[pid])
    services = tuple(service(pid) for pid in (20, 14, 13, 12, 11, 10))
    kept, detail = bounded(Path("/proc"), services)
    assert [one.main.pid for one in kept] == [20, 12, 11, 10]
    assert detail == "5 servers of user 1000: only the 3 oldest are watched"
    assert bounded(Path("/proc"), kept[:3]) == (kept[:3], "")


def service(pid: int) -> Service:
    """Return a server that a process's words announce; the higher its number, the later it started."""
    launch = stated_launch(["vllm", "serve", "m"], "vllm")
    main = Candidate(
        pid=pid,
        start_ticks=pid,
        ancestors=(),
        engine="vllm",
        launch=launch,
        readable=True,
        is_launcher=False,
    )
    return Service(main=main, members=frozenset({pid}), host=None, port=8000)


async def test_selections_are_bounded_between_polls() -> None:
    """`name[]` renders so many different answers of one snapshot; the whole page comes always."""
    async with running(config("", interval="1h", typical_window="2h")) as daemon:
        await daemon.until(lambda series: "kvwatch_up" in series)
        codes = []
        for number in range(20):
            url = f"{daemon.url}/metrics?name[]=kvwatch_up&name[]=x{number}"
            codes.append((await daemon.client.get(url)).status_code)
        assert codes == [200] * 16 + [429] * 4
        again = await daemon.client.get(f"{daemon.url}/metrics?name[]=x0&name[]=kvwatch_up")
        assert parse(again.text).keys() == {"kvwatch_up"}
        assert (await daemon.client.get(f"{daemon.url}/metrics")).status_code == 200


async def test_answers_tell_no_versions_and_no_strangers_pages_read_them() -> None:
    """Every answer, errors included, has the same headers; none lets a page of another origin read it."""
    async with running(config("")) as daemon:
        for path in ("/", "/metrics", "/-/healthy", "/api/v1/snapshot", "/debug/target", "/none"):
            headers = (await daemon.client.get(daemon.url + path, headers={"Origin": "http://evil"})).headers
            assert headers["Server"] == "kvwatch"
            assert headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Cache-Control"] == "no-store"
            assert not [name for name in headers if name.lower().startswith("access-control")]


async def test_no_secret_stands_in_the_process_list(tmp_path: Path) -> None:
    """Tokens come from files: neither kvwatch's words nor its environment, nor its child's, hold one."""
    (tmp_path / "token").write_text("sesame-open")
    async with replaying(vllm_pages("idle")) as replay:
        file = tmp_path / "kvwatch.yaml"
        file.write_text(
            f"servers: [{{name: s, url: '{replay.url}', bearer_token_file: token}}]\n"
            "discovery: false\nhistory: off\nlisten: 127.0.0.1:0\nlog: {level: debug}\n"
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvwatch", "run", "--config", str(file)), stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(20):
                while not any("Authorization" in one for one in replay.headers):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            shown = b"".join(
                read(folder / name)
                for folder in family(process.pid)
                for name in ("cmdline", "environ", "comm")
            )
        finally:
            process.terminate()
            _, log = await process.communicate()
    assert b"kvwatch" in shown
    assert b"sesame" not in shown + log


def read(file: Path) -> bytes:
    """Return a file of a process; nothing of a child that has just ended."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def family(pid: int) -> list[Path]:
    """Return /proc of a process and of its children."""
    home = Path("/proc") / str(pid)
    children = (home / "task" / str(pid) / "children").read_text().split()
    return [home, *(Path("/proc") / child for child in children)]
