"""Basic auth: who gets in, what a check costs, and what a flood of wrong passwords cannot do."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from kvwatch.web_config_passwords import Passwords, TooManyChecksError
from tests.web.serving import PASSWORD, USER, client, get, hashed, serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

PATHS = (
    "/metrics",
    "/",
    "/-/healthy",
    "/-/ready",
    "/api/v1/snapshot",
    "/debug/target",
    "/page.js",
    "/no-such-page",
)
COST = 9
"""About 30 ms."""


def header(user: str, password: str) -> str:
    """Return an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def written(folder: Path, text: str) -> Path:
    """Return a web configuration with this text."""
    file = folder / "web.yml"
    file.write_text(text)
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a web configuration with one user."""
    return written(tmp_path, f"basic_auth_users: {{alice: '{hashed()}'}}\n")


@pytest.mark.parametrize("path", PATHS)
async def test_every_page_asks(path: str, file: Path) -> None:
    """Health and pages that do not exist are no exception, as with every exporter of Prometheus."""
    async with serving(file) as daemon:
        answer = await get(daemon.url + path)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="kvwatch", charset="UTF-8"'
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "kvwatch_" not in answer.text
        assert (await get(daemon.url + path, auth=USER)).status_code not in (401, 403)


REFUSED = {
    "a wrong password": header("alice", "wrong"),
    "no password": header("alice", ""),
    "an unknown user": header("mallory", PASSWORD),
    "the hash itself": header("alice", "$2b$04$"),
    "another scheme": f"Bearer {PASSWORD}",
    "no base64": "Basic ?????",
    "no colon": "Basic " + base64.b64encode(b"alice").decode(),
    "no UTF-8": "Basic " + base64.b64encode(b"\xff:a").decode(),
    "a NUL": header("alice", f"{PASSWORD}\0"),
    "a long one": header("alice", "x" * 4000),
    "nothing": "",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(name: str, file: Path) -> None:
    """Whatever is not a known user with the right password is 401, never an error of the server."""
    async with serving(file) as daemon, client() as own:
        answer = await own.get(f"{daemon.url}/metrics", headers={"Authorization": REFUSED[name]})
    assert answer.status_code == 401


async def test_bytes_beyond_the_72nd_do_not_count() -> None:
    """As for every program that checks bcrypt: the hash was made of the first 72."""
    passwords = Passwords({"alice": hashed("x" * 72).encode()})
    assert await passwords.admits(header("alice", "x" * 80), peer="a")
    assert not await passwords.admits(header("alice", "x" * 71), peer="a")


async def test_an_unknown_user_takes_as_long_as_a_known_one() -> None:
    """Both cost one bcrypt of the same cost the first time, and none the second."""
    passwords = Passwords({"alice": hashed(cost=COST).encode()})

    async def seconds(user: str) -> float:
        """Return the least CPU time of some checks, each of a password of its own."""
        times = []
        for number in range(4):
            started = time.process_time()
            assert not await passwords.admits(header(user, f"wrong {number}"), peer="a")
            times.append(time.process_time() - started)
        return min(times)

    known, unknown = await seconds("alice"), await seconds("mallory")
    assert 0.5 < known / unknown < 2
    assert unknown > 0.005
    started = time.process_time()
    for user in ("alice", "mallory"):
        assert not await passwords.admits(header(user, "wrong 0"), peer="a")
    assert time.process_time() - started < unknown


async def test_costs_that_differ_tell_nobody_apart() -> None:
    """An unknown user costs what one of the known ones does, the same one each time."""
    passwords = Passwords({"a": hashed(cost=4).encode(), "b": hashed(cost=6).encode()})
    costs = {name: passwords._cost(passwords._digest(name.encode())) for name in map(str, range(40))}
    assert set(costs.values()) == {4, 6}
    assert costs == {name: passwords._cost(passwords._digest(name.encode())) for name in costs}


async def test_a_right_password_is_checked_once(tmp_path: Path) -> None:
    """Twenty scrapers at once cost one bcrypt; the event loop answers others meanwhile."""
    users = f"basic_auth_users: {{alice: '{hashed(cost=12)}'}}\n"
    async with serving(written(tmp_path, users)) as daemon:
        started = time.perf_counter()
        checks = [asyncio.create_task(get(f"{daemon.url}/metrics", auth=USER)) for _ in range(20)]
        await asyncio.sleep(0.05)
        before = time.perf_counter()
        assert (await get(f"{daemon.url}/metrics")).status_code == 401
        answered_seconds = time.perf_counter() - before
        answers = await asyncio.gather(*checks)
        took_seconds = time.perf_counter() - started
        before = time.perf_counter()
        assert (await get(f"{daemon.url}/metrics", auth=USER)).status_code == 200
        again_seconds = time.perf_counter() - before
    assert {answer.status_code for answer in answers} == {200}
    assert answered_seconds < took_seconds / 2
    assert again_seconds < took_seconds / 2


async def test_a_flood_of_wrong_passwords_is_bounded() -> None:
    """One peer has four checks waiting at most, all together sixteen; a right one that is known goes on."""
    passwords = Passwords({"alice": hashed(cost=COST).encode()})
    assert await passwords.admits(header(*USER), peer="scraper")

    async def wrong(number: int, peer: str) -> bool | None:
        try:
            return await passwords.admits(header("alice", str(number)), peer=peer)
        except TooManyChecksError:
            return None

    one = await asyncio.gather(*(wrong(number, "mallory") for number in range(10)))
    assert [one.count(outcome) for outcome in (True, False, None)] == [0, 4, 6]
    flood = [asyncio.create_task(wrong(number, f"bot {number}")) for number in range(100, 130)]
    await asyncio.sleep(0)
    started = time.perf_counter()
    assert await passwords.admits(header(*USER), peer="scraper")
    assert time.perf_counter() - started < 0.01
    outcomes = await asyncio.gather(*flood)
    assert [outcomes.count(outcome) for outcome in (True, False, None)] == [0, 16, 14]


async def test_what_is_remembered_is_bounded_and_no_password() -> None:
    """Wrong passwords push out wrong ones only; memory holds digests under a key of this process."""
    passwords = Passwords({"alice": hashed().encode()})
    assert await passwords.admits(header(*USER), peer="a")
    for number in range(150):
        assert not await passwords.admits(header("alice", f"wrong {number}"), peer="a")
    assert (len(passwords._right), len(passwords._wrong)) == (1, 128)
    kept = repr((list(passwords._right), list(passwords._wrong), passwords._waiting_of))
    assert PASSWORD not in kept
    assert Passwords({})._digest(b"x") != passwords._digest(b"x")


async def test_the_password_is_told_nowhere(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the log, the metrics or the debug page; a refused one is logged without its name."""
    caplog.set_level(logging.DEBUG)
    async with serving(file) as daemon:
        for auth in (USER, ("hunter2", "hunter2"), ("alice", "hunter3")):
            await get(f"{daemon.url}/metrics", auth=auth)
        pages = [(await get(daemon.url + path, auth=USER)).text for path in PATHS]
    told = "\n".join([*pages, *(record.getMessage() for record in caplog.records if record.name != "httpx")])
    for secret in (PASSWORD, "hunter2", "hunter3", "$2b$", header(*USER).split()[1]):
        assert secret not in told
    assert "user or password refused: 1 requests, the last from 127.0.0.1" in told
    assert told.count("user or password refused") == 1


async def test_the_rate_limit(tmp_path: Path) -> None:
    """A burst, then 429 with the time to wait, for everybody and before any password is looked at."""
    text = f"basic_auth_users: {{alice: '{hashed()}'}}\nrate_limit: {{interval: 1h, burst: 3}}\n"
    async with serving(written(tmp_path, text)) as daemon:
        codes = [(await get(f"{daemon.url}/metrics", auth=USER)).status_code for _ in range(3)]
        refused = await get(f"{daemon.url}/metrics")
    assert codes == [200, 200, 200]
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "1"


async def test_headers_of_the_file(tmp_path: Path) -> None:
    """They replace kvwatch's own; what the file does not name stays."""
    text = "  headers: {X-Frame-Options: deny, Content-Security-Policy: default-src 'self'}\n"
    async with serving(written(tmp_path, f"http_server_config:\n{text}")) as daemon:
        headers = httpx.Headers((await get(f"{daemon.url}/")).headers)
    assert headers["X-Frame-Options"] == "deny"
    assert headers["Content-Security-Policy"] == "default-src 'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"
