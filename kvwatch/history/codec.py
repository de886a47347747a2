"""Values as JSON in the file, and back; what a newer kvwatch added is passed over. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from typing import Any

from kvwatch.observation import Neighbour, Setup, StartWindow
from kvwatch.snapshot import KvGroup

_DIGEST_BYTES = 16


def setup_text(setup: Setup) -> str:
    """Return a setup as canonical JSON: equal setups are equal texts. What is not known is left out."""
    known = {name: value for name, value in asdict(setup).items() if value not in (None, ())}
    return _json(known)


def setup_digest(text: str) -> bytes:
    """Return what a setup's text is known by."""
    return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]


def setup_from(text: str) -> Setup:
    """Return the setup that a text is of."""
    values = _known(Setup, json.loads(text))
    if "settings" in values:
        values["settings"] = tuple((str(key), str(value)) for key, value in values["settings"])
    if "groups" in values:
        values["groups"] = tuple(KvGroup(**_known(KvGroup, group)) for group in values["groups"])
    if "devices" in values:
        values["devices"] = tuple(values["devices"])
    return Setup(**values)


def window_text(window: StartWindow) -> str:
    """Return a start window as JSON."""
    return _json(asdict(window))


def window_from(text: str) -> StartWindow:
    """Return the start window that a text is of."""
    values = _known(StartWindow, json.loads(text))
    values["neighbours"] = tuple(Neighbour(**_known(Neighbour, one)) for one in values["neighbours"])
    return StartWindow(**values)


def bytes_text(by_device: dict[int, int]) -> str | None:
    """Return bytes by the number that the file has for a device; None where nothing is known."""
    return _json({str(device): used for device, used in sorted(by_device.items())}) if by_device else None


def bytes_from(text: str | None) -> dict[int, int]:
    """Return the bytes by device number."""
    return {} if text is None else {int(device): used for device, used in json.loads(text).items()}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _known(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}
