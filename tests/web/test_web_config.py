"""The web configuration file: what it may say, what is refused and with which words."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvwatch.config_models import keys_of
from kvwatch.config_problems import ConfigError
from kvwatch.web_config import WebConfigFile, WebSettings
from kvwatch.web_config_models import SECTIONS
from tests.web.certificates import Authority, Pair

HASH = "$2y$04$B/oT9R4Ux6.SQsNAbfQVbeCeN1x5alQmGtKNfD7zVu3l777T0cFRO"
"""Of `hunter2`."""
VERIFIED = "RequireAndVerifyClientCert"
NOT_ASKED = f"no certificate is asked for; add client_auth_type: {VERIFIED}"
TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
EXAMPLE = Path(__file__).parents[2] / "deploy" / "kvwatch-web.example.yml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, a server's pair, and files that are none."""
    folder = tmp_path_factory.mktemp("pem")
    authority = Authority(folder)
    authority.issue("server")
    authority.issue("other")
    (folder / "ca.pem").symlink_to(authority.cert)
    (folder / "empty.pem").touch()
    (folder / "encrypted.key").write_text(encrypted(folder / "server.key"))
    os.mkfifo(folder / "fifo")
    return folder


def encrypted(key: Path) -> str:
    """Return a key with a passphrase."""
    command = ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:hunter2"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read(folder: Path, text: str) -> WebSettings:
    """Return the settings of a text."""
    file = folder / "web.yml"
    file.write_text(text)
    return WebConfigFile(file).read()


def refused(folder: Path, text: str) -> list[str]:
    """Return what is wrong with a text, without the name of its file."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    place = f"{folder / 'web.yml'}:"
    return [str(problem).removeprefix(place) for problem in caught.value.problems]


REFUSED = {
    "unknown key": (
        "tls_config: {}",
        [
            (
                "1: tls_config: unknown key; did you mean tls_server_config? allowed: "
                "tls_server_config, http_server_config, basic_auth_users, rate_limit"
            )
        ],
    ),
    "unknown key of TLS": (
        f"{TLS}  min_vesion: TLS13",
        [
            (
                "4: tls_server_config.min_vesion: unknown key; did you mean min_version? allowed: "
                "cert, key, client_ca, cert_file, key_file, client_auth_type, client_ca_file, "
                "client_allowed_sans, min_version, max_version, cipher_suites, "
                "prefer_server_cipher_suites, curve_preferences"
            )
        ],
    ),
    "a password in plain text": (
        "basic_auth_users:\n  alice: hunter2",
        [
            (
                "2: basic_auth_users.alice: this is not a bcrypt hash; allowed: a bcrypt hash in "
                "quotes, as `htpasswd -nBC 10 NAME` prints after the colon"
            )
        ],
    ),
    "name and hash changed places": (
        f'basic_auth_users:\n  "{HASH}": alice',
        [
            (
                "2: basic_auth_users.a hash: this is not a bcrypt hash; allowed: a bcrypt hash in "
                "quotes, as `htpasswd -nBC 10 NAME` prints after the colon"
            )
        ],
    ),
    "a name that no client can send": (
        f'basic_auth_users:\n  "a:b": {HASH}',
        [
            (
                "1: basic_auth_users: a name holds a colon or a dollar sign; allowed: a line `NAME: "
                "BCRYPT-HASH` for each user"
            )
        ],
    ),
    "a hash that takes hours": (
        f"basic_auth_users:\n  alice: {HASH.replace('$04$', '$31$')}",
        [("2: basic_auth_users.alice: a check of this hash takes 2^31 rounds; allowed: a cost from 4 to 16")],
    ),
    "users in a list": (
        "basic_auth_users: [alice]",
        [("1: basic_auth_users: this is not a mapping; allowed: a line `NAME: BCRYPT-HASH` for each user")],
    ),
    "no key": (
        "tls_server_config:\n  cert_file: server.pem",
        ["1: tls_server_config: key_file is missing; without certificate and key there is no TLS"],
    ),
    "a section that would encrypt nothing": (
        "tls_server_config:\n  min_version: TLS13",
        [
            "1: tls_server_config: cert_file is missing; without certificate and key there is no TLS",
            "1: tls_server_config: key_file is missing; without certificate and key there is no TLS",
        ],
    ),
    "no such file": (
        TLS.replace("server.pem", "missing.pem"),
        ["2: tls_server_config.cert_file: no such file; allowed: a PEM file"],
    ),
    "no certificate in it": (
        TLS.replace("server.pem", "empty.pem"),
        ["2: tls_server_config.cert_file: there is no certificate in it; allowed: PEM certificates"],
    ),
    "a FIFO": (
        TLS.replace("server.key", "fifo"),
        ["3: tls_server_config.key_file: this is not a regular file; allowed: a PEM file"],
    ),
    "no key in it": (
        TLS.replace("server.key", "server.pem"),
        ["3: tls_server_config.key_file: there is no private key in it; allowed: a PEM private key"],
    ),
    "another certificate's key": (
        TLS.replace("server.key", "other.key"),
        ["3: tls_server_config.key_file: the key belongs to another certificate"],
    ),
    "a key with a passphrase": (
        TLS.replace("server.key", "encrypted.key"),
        ["3: tls_server_config.key_file: the key is encrypted; give one without a passphrase"],
    ),
    "certificate twice": (
        f"{TLS}  cert: |\n    -----BEGIN CERTIFICATE-----",
        ["4: tls_server_config.cert: cert_file is given too; keep one of the two"],
    ),
    "a path where PEM belongs": (
        "tls_server_config:\n  cert: server.pem\n  key_file: server.key",
        [
            (
                "2: tls_server_config.cert: this is no PEM; allowed: the text of a PEM file, as a "
                "block after `|`"
            )
        ],
    ),
    "an authority that nobody is checked against": (
        f"{TLS}  client_ca_file: ca.pem",
        [f"4: tls_server_config.client_ca_file: {NOT_ASKED}"],
    ),
    "certificates of whom": (
        f"{TLS}  client_auth_type: {VERIFIED}",
        [
            (
                "4: tls_server_config.client_auth_type: client_ca_file is missing: whose "
                "certificates are to be believed?"
            )
        ],
    ),
    "certificates that nobody checks": (
        f"{TLS}  client_auth_type: RequireAnyClientCert",
        [
            (
                "4: tls_server_config.client_auth_type: RequireAnyClientCert takes any certificate "
                "unchecked, which proves nothing and which Python's ssl cannot; allowed: "
                "RequireAndVerifyClientCert, VerifyClientCertIfGiven, NoClientCert"
            )
        ],
    ),
    "names of nobody": (
        f"{TLS}  client_allowed_sans: [prometheus]",
        [f"4: tls_server_config.client_allowed_sans: {NOT_ASKED}"],
    ),
    "an old TLS": (
        f"{TLS}  min_version: TLS10",
        [
            (
                "4: tls_server_config.min_version: TLS10 is broken, and OpenSSL 3 speaks it no "
                "longer; allowed: TLS12, TLS13"
            )
        ],
    ),
    "no version left": (
        f"{TLS}  min_version: TLS13\n  max_version: TLS12",
        ["4: tls_server_config.min_version: TLS13 is newer than max_version TLS12"],
    ),
    "a suite that cannot be chosen": (
        f"{TLS}  cipher_suites: [TLS_AES_128_GCM_SHA256]",
        [
            (
                "4: tls_server_config.cipher_suites: TLS_AES_128_GCM_SHA256 is of TLS 1.3, whose "
                "suites Python's ssl cannot choose (all of them are safe); leave it out, or leave "
                "TLS 1.3 out with max_version: TLS12"
            )
        ],
    ),
    "an order of curves": (
        f"{TLS}  curve_preferences: [X25519, CurveP256]",
        [
            (
                "4: tls_server_config.curve_preferences: Python's ssl takes one curve, not an order "
                "of several; give one, or leave the key out"
            )
        ],
    ),
    "HTTP/2": (
        "http_server_config: {http2: true}",
        [
            (
                "1: http_server_config.http2: kvwatch speaks HTTP/1.1 only, as every scraper does "
                "too; write false or leave the key out"
            )
        ],
    ),
    "a header of one's own": (
        "http_server_config:\n  headers: {Server: x}",
        [
            (
                "2: http_server_config.headers: the header 'Server' cannot be configured; allowed: "
                "Content-Security-Policy, X-Frame-Options, X-Content-Type-Options, X-XSS-Protection, "
                "Strict-Transport-Security"
            )
        ],
    ),
    "two headers in one": (
        'http_server_config:\n  headers: {X-XSS-Protection: "0\\r\\nSet-Cookie: a=b"}',
        [
            (
                "2: http_server_config.headers: the value of X-XSS-Protection is not one line of "
                "plain text; put it in quotes"
            )
        ],
    ),
    "a header's value": (
        "http_server_config:\n  headers: {X-Frame-Options: allow}",
        [
            (
                "2: http_server_config.headers: 'allow' is no value of X-Frame-Options; allowed: "
                "deny, sameorigin"
            )
        ],
    ),
    "a limit that refuses everybody": (
        "rate_limit: {interval: 1s}",
        ["1: rate_limit.interval: burst is missing: without one every request would be refused"],
    ),
    "two at once": (
        "rate_limit: {interval: 1}\nhttp_server_config: []",
        [
            "1: rate_limit.interval: 1 has no unit; write 1s for seconds (units: ms, s, m, h, d)",
            "2: http_server_config: a list is not a mapping; allowed: the keys http2, headers",
        ],
    ),
    "no mapping at all": (
        "[]",
        [
            (
                "1: a list is not a mapping; allowed: the keys tls_server_config, "
                "http_server_config, basic_auth_users, rate_limit"
            )
        ],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, folder: Path) -> None:
    """Each mistake is named with its line, its key and the way out; no secret is repeated."""
    text, messages = REFUSED[name]
    assert refused(folder, text) == messages
    assert "hunter2" not in "".join(messages)


def test_a_missing_file(tmp_path: Path) -> None:
    """It is said by name."""
    with pytest.raises(ConfigError, match=r"web\.yml: no such file; give the path of a YAML file"):
        WebConfigFile(tmp_path / "web.yml").read()


@pytest.mark.parametrize("text", ["", "{}", "basic_auth_users: {}"])
def test_nothing_asked(text: str, folder: Path) -> None:
    """An empty file asks for nothing, as the toolkit's."""
    settings = read(folder, text)
    assert (settings.tls, settings.users, settings.headers, settings.interval_seconds) == (None, {}, (), 0)


def test_everything(folder: Path) -> None:
    """What Python can honour is taken; relative paths start at the file's folder."""
    settings = read(
        folder,
        f"{TLS}  client_auth_type: {VERIFIED}\n  client_ca_file: ca.pem\n"
        "  client_allowed_sans: [prometheus, 'spiffe://a/b', '::1']\n"
        "  min_version: TLS12\n  max_version: TLS12\n"
        "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]\n"
        "  prefer_server_cipher_suites: false\n"
        "  curve_preferences: [X25519]\n"
        "http_server_config:\n  http2: false\n  headers:\n    Strict-Transport-Security: max-age=600\n"
        "    Content-Security-Policy: ''\n"
        f"basic_auth_users: {{alice: {HASH}}}\n"
        "rate_limit: {interval: 500ms, burst: 20}\n",
    )
    assert settings.tls is not None
    assert settings.tls.demands_certificates
    assert settings.tls.allowed_sans == {"prometheus", "spiffe://a/b", "::1"}
    suites = [suite["name"] for suite in settings.tls.context.get_ciphers() if suite["protocol"] == "TLSv1.2"]
    assert suites == ["ECDHE-ECDSA-CHACHA20-POLY1305"]
    assert settings.headers == (("Strict-Transport-Security", "max-age=600"),)
    assert settings.users == {"alice": HASH.encode()}
    assert (settings.interval_seconds, settings.burst) == (0.5, 20)
    assert HASH not in repr(settings.tls)


def test_pem_in_the_file_itself(folder: Path) -> None:
    """As the toolkit's inline keys; the key touches no disk on its way to OpenSSL."""

    def block(key: str, file: str) -> str:
        lines = (folder / file).read_text().splitlines()
        return f"  {key}: |\n" + "".join(f"    {line}\n" for line in lines)

    text = f"tls_server_config:\n{block('cert', 'server.pem')}{block('key', 'server.key')}"
    text += block("client_ca", "ca.pem") + "  client_auth_type: VerifyClientCertIfGiven\n"
    tls = read(folder, text).tls
    assert tls is not None
    assert not tls.demands_certificates


CERTIFICATES = {
    "a name": ({"subjectAltName": (("DNS", "a"), ("DNS", "prometheus"))}, True),
    "an address that OpenSSL writes out": ({"subjectAltName": (("IP Address", "0:0:0:0:0:0:0:1"),)}, True),
    "a URI": ({"subjectAltName": (("URI", "spiffe://a/b"),)}, True),
    "another name": ({"subjectAltName": (("DNS", "prometheus.example"),)}, False),
    "a common name only": ({"subject": ((("commonName", "prometheus"),),)}, False),
    "no certificate, which was not demanded": (None, True),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_names_of_a_certificate(name: str, folder: Path) -> None:
    """One allowed name among its alternative names is enough; nothing else counts."""
    certificate, admitted = CERTIFICATES[name]
    tls = read(
        folder,
        f"{TLS}  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.pem\n"
        "  client_allowed_sans: [prometheus, '::1', 'spiffe://a/b']\n",
    ).tls
    assert tls is not None
    assert tls.admits(certificate) is admitted


def test_the_example(folder: Path, tmp_path: Path) -> None:
    """The example in deploy/ is accepted as it stands, where its certificates are."""
    text = EXAMPLE.read_text()
    named = yaml.safe_load(text)["tls_server_config"]
    authority = Authority(tmp_path)
    pair: Pair = authority.issue("server")
    (tmp_path / named["cert_file"]).symlink_to(pair.cert)
    (tmp_path / named["key_file"]).symlink_to(pair.key)
    (tmp_path / named["client_ca_file"]).symlink_to(authority.cert)
    settings = read(tmp_path, text)
    assert settings.tls is not None
    assert settings.tls.demands_certificates
    assert set(settings.users) == {"prometheus"}


def test_every_key_is_documented() -> None:
    """The table of docs/web-configuration.md names every key and no other."""
    text = (Path(__file__).parents[2] / "docs" / "web-configuration.md").read_text()
    rows = [cell for line in text.splitlines() if line.startswith("| `") for cell in line.split("|")[1:2]]
    named = {key for row in rows for key in re.findall(r"`([^`]+)`", row)}
    keys = {f"{section}.{key}" for section, model in SECTIONS.items() for key in keys_of(model)}
    assert named == keys | {"basic_auth_users"}


def test_without_a_web_configuration_nothing_of_it_is_imported() -> None:
    """The daemon has a memory budget, and most daemons have no such file."""
    code = "import sys, kvwatch.app, kvwatch.server; print(list(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = ast.literal_eval(result.stdout)
    assert [name for name in modules if name.startswith(("kvwatch.web_", "bcrypt", "pydantic"))] == []
