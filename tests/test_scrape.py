"""The scraper's edge: every failure is a page with a reason; sockets are real where they can be."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
import respx

from kvwatch.sources.scrape import Scraper
from tests.replay import Answer, replaying

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kvwatch.readings import Page

pytestmark = pytest.mark.anyio

URL = "http://engine.example:8000"


@pytest.fixture
async def scraper() -> AsyncIterator[Scraper]:
    """Return a scraper that takes pages up to 1,000 bytes."""
    scraper = Scraper(max_bytes=1000)
    yield scraper
    await scraper.close()


async def fetch(scraper: Scraper, url: str, *, token: Path | None = None, seconds: float = 1.0) -> Page:
    """Fetch /metrics."""
    return await scraper.fetch(url, "/metrics", deadline_seconds=seconds, bearer_token_file=token)


async def test_connections_to_servers_that_are_gone_are_let_go() -> None:
    """A found server has another port after each start: whoever was not asked for hours is forgotten."""
    now = 0.0
    scraper = Scraper(max_bytes=100_000, clock=lambda: now)
    async with replaying({"/metrics": Answer(b"x")}) as old, replaying({"/metrics": Answer(b"x")}) as new:
        for _ in range(3):
            await fetch(scraper, old.url)
        now += 3600
        await fetch(scraper, f"{new.url}/one")
        assert len(scraper._clients) == 2
        now += 3601
        await fetch(scraper, f"{new.url}/two")
        assert [url for url, _ in scraper._clients] == [f"{new.url}/one", f"{new.url}/two"]
        assert (await fetch(scraper, old.url)).body == "x"
    await scraper.close()


@pytest.mark.parametrize(
    "error, reason",
    [
        (httpx.ConnectError("refused"), "unreachable"),
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"), "unreachable"),
        (httpx.ReadError("reset by peer"), "unreachable"),
        (httpx.WriteError("broken pipe"), "unreachable"),
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), "unreachable"),
        (httpx.RemoteProtocolError("illegal status line"), "parse_error"),
        (httpx.RemoteProtocolError("peer closed connection without complete body"), "parse_error"),
        (httpx.DecodingError("bad gzip"), "parse_error"),
        (ssl.SSLError("handshake"), "unreachable"),
        (ConnectionResetError("reset"), "unreachable"),
    ],
)
@respx.mock
async def test_an_error_of_the_network_has_its_reason(
    scraper: Scraper, error: Exception, reason: str
) -> None:
    """What the network does to a request becomes a reason, never an exception."""
    respx.get(f"{URL}/metrics").mock(side_effect=error)
    page = await fetch(scraper, URL)
    assert (page.body, page.reason, page.status) == (None, reason, None)
    assert page.detail


@pytest.mark.parametrize(
    "status, reason",
    [
        (204, "http_error"),
        (301, "redirect"),
        (307, "redirect"),
        (401, "unauthorized"),
        (403, "unauthorized"),
        (404, "not_found"),
        (429, "http_error"),
        (500, "http_error"),
        (501, "not_enabled"),
        (503, "http_error"),
    ],
)
@respx.mock
async def test_a_status_that_is_not_200_has_its_reason(scraper: Scraper, status: int, reason: str) -> None:
    """Only a 200 has a body that counts, and a redirect is not followed."""
    respx.get(f"{URL}/metrics").respond(status, headers={"Location": "http://elsewhere.example/"})
    page = await fetch(scraper, URL)
    assert (page.body, page.reason, page.status) == (None, reason, status)


async def test_a_proxy_in_the_environment_is_not_asked(
    scraper: Scraper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead proxy in HTTP_PROXY costs nothing."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with replaying({"/metrics": Answer(b"up 1\n")}) as replay:
        assert (await fetch(scraper, replay.url)).body == "up 1\n"


async def test_a_compressed_answer_that_nobody_asked_for_is_not_unpacked(scraper: Scraper) -> None:
    """A small body that would unpack to a large one stays small, and is no text."""
    bomb = b"\x1f\x8b\x08\x00" + b"\xff" * 100
    async with replaying({"/metrics": Answer(bomb, headers={"Content-Encoding": "gzip"})}) as replay:
        page = await fetch(scraper, replay.url)
        assert replay.headers[0]["Accept-Encoding"] == "identity"
    assert page.reason == "parse_error"


async def test_the_deadline_and_the_cap_hold_over_the_whole_answer(scraper: Scraper) -> None:
    """A body that drips is cut off by time, one that is too large by size."""
    async with replaying({"/metrics": Answer(b"up 1\n", drip_seconds=0.2)}) as replay:
        page = await fetch(scraper, replay.url, seconds=0.3)
        assert page.reason == "timeout"
        assert page.duration_seconds == pytest.approx(0.3, abs=0.2)
        replay.pages["/metrics"] = Answer(b"#" * 1001)
        assert (await fetch(scraper, replay.url)).reason == "too_large"
        replay.pages["/metrics"] = Answer(b"#" * 1000)
        assert (await fetch(scraper, replay.url)).reason is None


@pytest.mark.parametrize(
    "content, reason",
    [
        (None, "not_found"),
        (b"", "not_found"),
        (b"two words", "not_found"),
        (b"a\nb", "not_found"),
        (b"\xff\xfe", "not_found"),
    ],
)
async def test_a_token_file_without_a_token_is_never_sent(
    scraper: Scraper, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    """A missing or odd token file is the reason; no request leaves."""
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    async with replaying({"/metrics": Answer(b"up 1\n")}) as replay:
        page = await fetch(scraper, replay.url, token=token)
        assert replay.asked == []
    assert page.reason == reason
    assert str(token) in page.detail
