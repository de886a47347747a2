"""TLS as a web configuration describes it: PEM texts become a context for connections to come."""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvwatch.config_yaml import opening_failure
from kvwatch.web_config_values import NO_CLIENT_CERT, VERIFIED, VERIFIED_IF_GIVEN, plain_san

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvwatch.config_yaml import Key
    from kvwatch.web_config_models import TlsServer

_MAX_PEM_BYTES = 1 << 20
_SECTION = "tls_server_config"
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFY_MODES = {
    NO_CLIENT_CERT: ssl.CERT_NONE,
    VERIFIED_IF_GIVEN: ssl.CERT_OPTIONAL,
    VERIFIED: ssl.CERT_REQUIRED,
}


class RefusedKeyError(Exception):
    """A key whose value cannot be used: which, and why."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key: Key = (_SECTION, key)
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPolicy:
    """What a connection must bring; `allowed_sans` None where the certificate's names do not matter."""

    context: ssl.SSLContext = field(compare=False)
    fingerprint: bytes
    """Of the section and of all PEM texts: policies with the same one are the same."""
    allowed_sans: frozenset[str] | None

    @property
    def demands_certificates(self) -> bool:
        """Whether a client without a certificate is refused."""
        return self.context.verify_mode is ssl.CERT_REQUIRED

    def admits(self, certificate: dict[str, Any] | None) -> bool:
        """Tell whether a client's verified certificate, as `getpeercert` gives it, carries an allowed name.

        A client without one, where one is not demanded, is admitted as the toolkit does.
        """
        if self.allowed_sans is None or not certificate:
            return True
        names = (plain_san(name) for _, name in certificate.get("subjectAltName", ()))
        return any(name in self.allowed_sans for name in names)


def contradictions(tls: TlsServer) -> Iterator[tuple[Key, str]]:
    """Yield what is wrong between keys that are right by themselves."""
    for key in ("cert", "key"):
        if getattr(tls, key) is None and getattr(tls, f"{key}_file") is None:
            yield (_SECTION,), f"{key}_file is missing; without certificate and key there is no TLS"
    for key in ("cert", "key", "client_ca"):
        if getattr(tls, key) is not None and getattr(tls, f"{key}_file") is not None:
            yield (_SECTION, key), f"{key}_file is given too; keep one of the two"
    has_ca = tls.client_ca is not None or tls.client_ca_file is not None
    if has_ca and tls.client_auth_type == NO_CLIENT_CERT:
        given = "client_ca" if tls.client_ca is not None else "client_ca_file"
        yield (_SECTION, given), f"no certificate is asked for; add client_auth_type: {VERIFIED}"
    if not has_ca and tls.client_auth_type != NO_CLIENT_CERT:
        # Go would check against the system's authorities, by whom anybody can be certified.
        yield (
            (_SECTION, "client_auth_type"),
            "client_ca_file is missing: whose certificates are to be believed?",
        )
    if tls.client_allowed_sans is not None and tls.client_auth_type == NO_CLIENT_CERT:
        message = f"no certificate is asked for; add client_auth_type: {VERIFIED}"
        yield (_SECTION, "client_allowed_sans"), message
    if tls.min_version > tls.max_version:
        yield (_SECTION, "min_version"), f"{tls.min_version} is newer than max_version {tls.max_version}"


def files_of(tls: TlsServer) -> tuple[Path, ...]:
    """Return the files that a change of which is a change of the policy."""
    return tuple(path for path in (tls.cert_file, tls.key_file, tls.client_ca_file) if path is not None)


def build_policy(tls: TlsServer) -> TlsPolicy:
    """Return the policy; raise `RefusedKeyError`. Each file is read once, so that no change can mix in."""
    certificate = tls.cert or _read(tls.cert_file, "cert_file")
    key = tls.key or _read(tls.key_file, "key_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.maximum_version = _VERSIONS[tls.max_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    if tls.prefer_server_cipher_suites:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if tls.cipher_suites:
        context.set_ciphers(":".join(tls.cipher_suites))
    if tls.curve_preferences:
        context.set_ecdh_curve(tls.curve_preferences[0])
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, certificate, key, in_files=tls.cert is None)
    authorities = b""
    if tls.client_auth_type != NO_CLIENT_CERT:
        given = "client_ca" if tls.client_ca is not None else "client_ca_file"
        authorities = tls.client_ca or _read(tls.client_ca_file, given)
        _check_certificates(authorities, given)
        with _as_file(authorities) as path:
            context.load_verify_locations(cafile=path)
        context.verify_mode = _VERIFY_MODES[tls.client_auth_type]
    section = repr(tls.model_dump(exclude={"client_allowed_sans"})) + repr(
        sorted(tls.client_allowed_sans or ())
    )
    fingerprint = hashlib.blake2b(repr((section, certificate, key, authorities)).encode()).digest()
    return TlsPolicy(context=context, fingerprint=fingerprint, allowed_sans=tls.client_allowed_sans)


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, *, in_files: bool) -> None:
    suffix = "_file" if in_files else ""
    _check_certificates(certificate, f"cert{suffix}")
    key_name = f"key{suffix}"
    try:
        with _as_file(certificate) as certificate_path, _as_file(key) as key_path:
            context.load_cert_chain(certificate_path, key_path, password=_no_passphrase)
    except _PassphraseError:
        raise RefusedKeyError(key_name, "the key is encrypted; give one without a passphrase") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise RefusedKeyError(key_name, "the key belongs to another certificate") from None
        if error.reason is not None and error.reason.startswith(("EE_", "CA_")):
            raise RefusedKeyError(
                f"cert{suffix}", f"OpenSSL refuses it as too weak: {error.reason}"
            ) from None
        raise RefusedKeyError(key_name, "there is no private key in it; allowed: a PEM private key") from None


def _check_certificates(content: bytes, key: str) -> None:
    try:
        with _as_file(content) as path:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise RefusedKeyError(key, "there is no certificate in it; allowed: PEM certificates") from None


class _PassphraseError(Exception):
    """OpenSSL asked for a passphrase; without an answer it would ask the terminal."""


def _no_passphrase() -> str:
    raise _PassphraseError


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path of these bytes, for Python's ssl takes keys from files only. They touch no disk."""
    descriptor = os.memfd_create("kvwatch-pem", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(content)
        yield f"/proc/self/fd/{descriptor}"


def _read(path: Path | None, key: str) -> bytes:
    if path is None:
        raise RefusedKeyError(key, "the key is missing")
    try:
        # Without O_NONBLOCK the open of a FIFO waits for a writer that may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise RefusedKeyError(key, f"{opening_failure(error)}; allowed: a PEM file") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RefusedKeyError(key, "this is not a regular file; allowed: a PEM file")
        content = file.read(_MAX_PEM_BYTES + 1)
    if len(content) > _MAX_PEM_BYTES:
        raise RefusedKeyError(key, "the file is larger than 1 MiB, which no PEM file is")
    return content
