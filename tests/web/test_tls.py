"""Real handshakes with the real daemon: TLS, client certificates, what each version and suite gets."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.web.certificates import Authority
from tests.web.serving import get, serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.web.certificates import Pair

pytestmark = pytest.mark.anyio

TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
DEMANDED = f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority and a server's pair."""
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    """Return the authority that signed the server's certificate."""
    authority = Authority(folder)
    authority.issue("server")
    return authority


@pytest.fixture(scope="module")
def known(authority: Authority) -> Pair:
    """Return a client's certificate of that authority."""
    return authority.issue("known", "DNS:prometheus")


def written(folder: Path, text: str) -> Path:
    """Return the file with this text."""
    file = folder / "web.yml"
    file.write_text(text)
    return file


async def test_pages_are_encrypted(folder: Path, authority: Authority) -> None:
    """A client that trusts the authority gets every page; plain HTTP on the same port gets none."""
    async with serving(written(folder, TLS)) as daemon:
        assert daemon.url.startswith("https://")
        answer = await get(f"{daemon.url}/metrics", context=authority.context())
        assert answer.status_code == 200
        assert "kvwatch_up 1.0" in answer.text
        with pytest.raises(httpx.HTTPError):
            await get(f"{daemon.url.replace('https', 'http')}/metrics")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await get(f"{daemon.url}/metrics", context=ssl.create_default_context())


async def test_client_certificates_are_demanded(
    folder: Path, authority: Authority, known: Pair, tmp_path: Path
) -> None:
    """One of the authority is let in; none, and one of another authority, end the handshake."""
    stranger = Authority(tmp_path, "stranger").issue("unknown", "DNS:prometheus")
    async with serving(written(folder, DEMANDED)) as daemon:
        url = f"{daemon.url}/-/healthy"
        assert (await get(url, context=authority.context(known))).status_code == 200
        for own in (None, stranger):
            with pytest.raises(httpx.TransportError):
                await get(url, context=authority.context(own))


async def test_names_of_client_certificates(folder: Path, authority: Authority, known: Pair) -> None:
    """A certificate of the authority with another name is hung up on before a request is read."""
    other = authority.issue("other", "DNS:grafana")
    async with serving(written(folder, f"{DEMANDED}  client_allowed_sans: [prometheus]\n")) as daemon:
        url = f"{daemon.url}/-/healthy"
        assert (await get(url, context=authority.context(known))).status_code == 200
        with pytest.raises(httpx.TransportError):
            await get(url, context=authority.context(other))


async def test_a_certificate_if_given(
    folder: Path, authority: Authority, known: Pair, tmp_path: Path
) -> None:
    """No certificate is all right then; a stranger's is not."""
    stranger = Authority(tmp_path, "stranger").issue("unknown")
    text = f"{TLS}  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: authority.pem\n"
    async with serving(written(folder, text)) as daemon:
        url = f"{daemon.url}/-/healthy"
        for own in (None, known):
            assert (await get(url, context=authority.context(own))).status_code == 200
        with pytest.raises(httpx.TransportError):
            await get(url, context=authority.context(stranger))


BOTH_SUITES = """\
  max_version: TLS12
  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]
"""
HANDSHAKES = {
    "TLS 1.3 by default": ("", ("-tls1_3",), "TLSv1.3"),
    "TLS 1.2 by default": ("", ("-tls1_2",), "TLSv1.2"),
    "TLS 1.1, never": ("", ("-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"), None),
    "TLS 1.2 below the least": ("  min_version: TLS13\n", ("-tls1_2",), None),
    "TLS 1.3 above the most": ("  max_version: TLS12\n", ("-tls1_3",), None),
    "the suite chosen": (
        "  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n",
        ("-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"),
        "ECDHE-ECDSA-AES256-GCM-SHA384",
    ),
    "another suite": (
        "  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n",
        ("-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        None,
    ),
    "the server's preference": (
        BOTH_SUITES,
        ("-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"),
        "ECDHE-ECDSA-AES256-GCM-SHA384",
    ),
    "the client's preference": (
        f"{BOTH_SUITES}  prefer_server_cipher_suites: false\n",
        ("-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"),
        "ECDHE-ECDSA-AES128-GCM-SHA256",
    ),
    "the curve chosen": ("  curve_preferences: [CurveP384]\n", ("-groups", "P-384"), "TLSv1.3"),
    "another curve": ("  curve_preferences: [CurveP384]\n", ("-groups", "X25519:P-256"), None),
}


@pytest.mark.parametrize("name", HANDSHAKES)
async def test_what_a_handshake_comes_to(name: str, folder: Path, authority: Authority) -> None:
    """Asked by the openssl program; None: no connection."""
    text, options, expected = HANDSHAKES[name]
    async with serving(written(folder, TLS + text)) as daemon:
        address = daemon.url.removeprefix("https://")
        process = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", address, "-CAfile", str(authority.cert), "-brief", *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = (await process.communicate())[0].decode()
    if expected is None:
        assert process.returncode != 0
        assert "Verification: OK" not in said
    else:
        assert "Verification: OK" in said
        assert expected in said
