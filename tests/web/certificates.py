"""Certificates for tests, made by the openssl program: an authority and what it signs."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """Who signs certificates."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._pair = _made(folder, name, "-addext", "basicConstraints=critical,CA:TRUE")

    @property
    def cert(self) -> Path:
        """The certificate that others are checked against."""
        return self._pair.cert

    def issue(self, name: str, sans: str = "IP:127.0.0.1,DNS:localhost") -> Pair:
        """Return a certificate with these subject alternative names."""
        return _made(
            self._folder,
            name,
            *("-CA", str(self._pair.cert), "-CAkey", str(self._pair.key)),
            *("-addext", f"subjectAltName={sans}", "-addext", "basicConstraints=CA:FALSE"),
        )

    def context(self, own: Pair | None = None) -> ssl.SSLContext:
        """Return a client's context that trusts this authority only, with a certificate or none."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if own is not None:
            context.load_cert_chain(own.cert, own.key)
        return context


def _made(folder: Path, name: str, *options: str) -> Pair:
    pair = Pair(cert=folder / f"{name}.pem", key=folder / f"{name}.key")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-subj", f"/CN={name}", "-days", "2", "-keyout", str(pair.key), "-out", str(pair.cert)),
            *options,
        ],
        check=True,
        capture_output=True,
    )
    return pair
