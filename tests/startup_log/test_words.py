"""Lines without any of the words are not looked at: no line that matters is among them."""

from __future__ import annotations

import pytest

from kvwatch.startup_log import reading as whole
from tests.replay import CAPTURES
from tests.startup_log.public_cases import CASES
from tests.startup_log.reading import LOGS, read
from tests.startup_log.vllm_prints import VERSIONS, v0_log, v1_log

TEXTS = {
    **{f"V1 {version}": v1_log(version, debug=True) for version in VERSIONS},
    **{f"V0 {version}": v0_log(version) for version in ("0.6.3", "0.6.5", "0.8.5")},
    **{name: case.log for name, case in CASES.items()},
    **{path.name: path.read_text() for path in sorted(LOGS.glob("*.log"))},
    **{path.name: path.read_text() for path in sorted(CAPTURES.glob("*/*startup.log"))},
}


@pytest.mark.parametrize("name", TEXTS)
def test_every_line_looked_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at every line finds the same starts."""
    found = read(TEXTS[name])
    monkeypatch.setattr(whole, "_WORDS", ("",))
    assert read(TEXTS[name]) == found
