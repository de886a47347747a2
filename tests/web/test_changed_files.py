"""The web configuration is read again when it changes: certificates, users, and files that are bad."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.daemon import parse, value
from tests.web.certificates import Authority
from tests.web.serving import PASSWORD, USER, client, get, hashed, serving

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.daemon import Running

pytestmark = pytest.mark.anyio

TLS = "tls_server_config:\n  cert_file: now.pem\n  key_file: now.key\n"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for changes ten times as often."""
    monkeypatch.setattr("kvwatch.web_config_watch._LOOK_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("kvwatch.connections._OLD_POLICY_SECONDS", 0.2)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds, five seconds at most."""
    async with asyncio.timeout(5):
        while not await condition():  # noqa: ASYNC110 - it asks a server
            await asyncio.sleep(0.02)


async def reload_successful(daemon: Running, **how: object) -> float | None:
    """Return whether the daemon says that its configuration is loaded."""
    text = (await get(f"{daemon.url}/metrics", **how)).text  # type: ignore[arg-type]
    return value(parse(text), "config_last_reload_successful")


def turn(folder: Path, name: str) -> None:
    """Let the server's files be those of `name`, each in one step as Kubernetes turns its links."""
    for suffix in ("key", "pem"):
        link = folder / f"link.{suffix}"
        link.symlink_to(folder / f"{name}.{suffix}")
        link.rename(folder / f"now.{suffix}")


async def test_certificates_rotate(tmp_path: Path) -> None:
    """New connections get the new certificate without a restart, and old ones end within moments."""
    old, new = Authority(tmp_path, "old-authority"), Authority(tmp_path, "new-authority")
    old.issue("old")
    new.issue("new")
    turn(tmp_path, "old")
    (tmp_path / "web.yml").write_text(TLS)

    async def trusted(context: ssl.SSLContext) -> bool:
        try:
            return (await get(f"{daemon.url}/-/healthy", context=context)).status_code == 200
        except httpx.ConnectError:
            return False

    async with serving(tmp_path / "web.yml") as daemon:
        assert await trusted(old.context())
        assert not await trusted(new.context())
        host, port = daemon.url.removeprefix("https://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=old.context())
        turn(tmp_path, "new")
        await until(lambda: trusted(new.context()))
        assert not await trusted(old.context())
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        writer.close()


async def test_a_slow_handshake_does_not_outlive_its_certificate(tmp_path: Path) -> None:
    """Who connected before a change and shakes hands after it is hung up on."""
    old, new = Authority(tmp_path, "old-authority"), Authority(tmp_path, "new-authority")
    old.issue("old")
    new.issue("new")
    turn(tmp_path, "old")
    (tmp_path / "web.yml").write_text(TLS)
    async with serving(tmp_path / "web.yml") as daemon:
        host, port = daemon.url.removeprefix("https://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        turn(tmp_path, "new")
        await asyncio.sleep(0.6)
        with contextlib.suppress(ConnectionError):
            await writer.start_tls(old.context(), server_hostname=host)
            writer.write(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n")
            async with asyncio.timeout(2):
                assert await reader.read() == b""
        writer.close()


async def test_half_a_rotation_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While the certificate is new and the key old, the old pair serves; said once, and in a metric."""
    authority = Authority(tmp_path)
    for name in ("old", "new"):
        authority.issue(name)
    turn(tmp_path, "old")
    (tmp_path / "web.yml").write_text(TLS)
    context = authority.context()
    async with serving(tmp_path / "web.yml") as daemon:
        assert await reload_successful(daemon, context=context) == 1

        async def says(expected: float) -> bool:
            return await reload_successful(daemon, context=context) == expected

        (tmp_path / "now.pem").unlink()
        (tmp_path / "now.pem").symlink_to("new.pem")
        await until(lambda: says(0))
        await asyncio.sleep(0.2)
        turn(tmp_path, "new")
        await until(lambda: says(1))
    said = [record.getMessage() for record in caplog.records if "stays in force" in record.getMessage()]
    place = f"{tmp_path / 'web.yml'}:3: tls_server_config.key_file"
    assert (
        f"the old web configuration stays in force: {place}: the key belongs to another certificate" in said
    )
    assert len(said) == len(set(said))


async def test_users_come_and_go(tmp_path: Path) -> None:
    """A new user is let in, and one who is gone refused, on the connections that are open already."""
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users: {{alice: '{hashed()}'}}\n")
    async with serving(file) as daemon, client() as kept:

        async def status(user: str) -> int:
            return (await kept.get(f"{daemon.url}/-/healthy", auth=(user, PASSWORD))).status_code

        async def bob_is_in() -> bool:
            return await status("bob") == 200

        assert (await status("alice"), await status("bob")) == (200, 401)
        file.write_text(f"basic_auth_users: {{bob: '{hashed()}'}}\n")
        await until(bob_is_in)
        assert await status("alice") == 401


TAKEN_AWAY = {
    "every user": ("", "every user"),
    "an unknown key": ("basic_auth: {}", "1: basic_auth: unknown key"),
    "no YAML": ("basic_auth_users: {", "not YAML"),
    "no file": (None, "no such file"),
}


@pytest.mark.parametrize("name", TAKEN_AWAY)
async def test_a_bad_file_opens_no_door(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The old users stay, the log says why, and the metric is 0 until the file is good again."""
    text, words = TAKEN_AWAY[name]
    file = tmp_path / "web.yml"
    good = f"basic_auth_users: {{alice: '{hashed()}'}}\n"
    file.write_text(good)
    async with serving(file) as daemon:

        async def says(expected: float) -> bool:
            return await reload_successful(daemon, auth=USER) == expected

        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        await until(lambda: says(0))
        assert (await get(f"{daemon.url}/metrics")).status_code == 401
        file.write_text(good)
        await until(lambda: says(1))
    assert words in caplog.text


async def test_what_protects_is_not_taken_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An emptied file keeps TLS and the demand for certificates; a restart would take it as it is."""
    authority = Authority(tmp_path)
    own = authority.issue("client")
    authority.issue("old")
    turn(tmp_path, "old")
    file = tmp_path / "web.yml"
    demanded = f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n"
    file.write_text(f"{demanded}  client_allowed_sans: [localhost]\n")
    context = authority.context(own)
    async with serving(file) as daemon:
        for text, words in (
            ("", "would take away TLS;"),
            (TLS, "would take away the demand for client certificates;"),
            (demanded, "would take away the list of allowed names;"),
        ):
            file.write_text(text)

            async def said(words: str = words) -> bool:
                return words in caplog.text

            await until(said)
            assert (await get(f"{daemon.url}/-/healthy", context=context)).status_code == 200
            with pytest.raises(httpx.TransportError):
                await get(f"{daemon.url}/-/healthy", context=authority.context())


async def test_encryption_can_be_switched_on(tmp_path: Path) -> None:
    """A running daemon takes TLS up, and ends the connections that were plain."""
    authority = Authority(tmp_path)
    authority.issue("old")
    turn(tmp_path, "old")
    file = tmp_path / "web.yml"
    file.write_text("")
    async with serving(file) as daemon:
        host, port = daemon.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        file.write_text(TLS)
        async with asyncio.timeout(3):
            await reader.read()
        writer.close()
        url = daemon.url.replace("http:", "https:")
        assert (await get(f"{url}/-/healthy", context=authority.context())).status_code == 200


async def test_the_command_line(tmp_path: Path) -> None:
    """A bad file ends the start with status 2; a good one is announced as https and read again at SIGHUP."""
    authority = Authority(tmp_path)
    authority.issue("old")
    turn(tmp_path, "old")
    file = tmp_path / "web.yml"
    file.write_text("tls: {}")
    command = [sys.executable, "-m", "kvwatch", "run", "--no-discovery", "--history", "off"]
    command += ["--listen", "127.0.0.1:0", "--web.config.file", str(file)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)  # noqa: ASYNC221
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"{file}:1: tls: unknown key;")
    file.write_text(TLS)
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(20):
            while "listens on" not in (line := (await process.stderr.readline()).decode()):
                assert line
            url = line.split()[-1]
            assert url.startswith("https://")
            assert (await get(f"{url}metrics", context=authority.context())).status_code == 200
            os.kill(process.pid, signal.SIGHUP)
            while "web configuration loaded: TLS on, 0 users" not in (
                line := (await process.stderr.readline()).decode()
            ):
                assert line
    finally:
        process.terminate()
        before = time.monotonic()
        await process.communicate()
    assert process.returncode == 0
    assert time.monotonic() - before < 2
