"""A real Prometheus scrapes the real daemon over TLS, with a client certificate and a password."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.web.certificates import Authority
from tests.web.serving import PASSWORD, hashed, serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.prometheus]


async def test_a_real_prometheus_scrapes_over_tls(tmp_path: Path) -> None:
    """With certificate and password the job is up; with a wrong password or no certificate it is not."""
    authority = Authority(tmp_path)
    authority.issue("server")
    authority.issue("client", "DNS:prometheus")
    (tmp_path / "password").write_text(PASSWORD)
    file = tmp_path / "web.yml"
    file.write_text(
        "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
        "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n"
        "  client_allowed_sans: [prometheus]\n"
        f"basic_auth_users: {{alice: '{hashed()}'}}\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    async with serving(file) as daemon:
        target = f"scheme: https, static_configs: [{{targets: ['{daemon.url.removeprefix('https://')}']}}]"
        trust = "ca_file: authority.pem"
        own = "cert_file: client.pem, key_file: client.key"
        right = "basic_auth: {username: alice, password_file: password}"
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            "scrape_configs:\n"
            f"- {{job_name: right, tls_config: {{{trust}, {own}}}, {right}, {target}}}\n"
            f"- {{job_name: wrong, tls_config: {{{trust}, {own}}}, "
            f"basic_auth: {{username: alice, password: wrong}}, {target}}}\n"
            f"- {{job_name: anonymous, tls_config: {{{trust}}}, {right}, {target}}}\n"
        )
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={listen}",
            "--log.level=error",
        )
        jobs: dict[str, str] = {}
        try:
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - plain HTTP
                for _ in range(150):
                    with contextlib.suppress(httpx.HTTPError, ValueError):  # it is still starting
                        query = {"query": "up"}
                        answer = (await client.get(f"http://{listen}/api/v1/query", params=query)).json()
                        jobs = {one["metric"]["job"]: one["value"][1] for one in answer["data"]["result"]}
                    if len(jobs) == 3 and jobs["right"] == "1":
                        break
                    await asyncio.sleep(0.1)
        finally:
            process.terminate()
            await process.wait()
    assert jobs == {"right": "1", "wrong": "0", "anonymous": "0"}
