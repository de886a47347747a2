"""docs/startup-log.md shows what the program prints."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvwatch.cli import main
from kvwatch.startup_log.document import log_document
from tests.startup_log.reading import read
from tests.startup_log.vllm_prints import Facts, v0_log, v1_log

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs" / "startup-log.md"
ALONE = v1_log("0.28.0")
BESIDE = v1_log("0.28.0", Facts(non_torch=3.73, kv=6.02, blocks=3082, concurrency=1.5, pin=5_769_828_352))


@pytest.mark.parametrize("logs", [["chat.log"], ["chat.log", "chat-today.log"]], ids=["one log", "two logs"])
def test_output(
    logs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output in the page is the output of these logs."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("chat.log", ALONE), ("chat-today.log", BESIDE)):
        (tmp_path / name).write_text(text)
    assert main(["log", *logs]) == 0
    shown = f"    $ kvwatch log {' '.join(logs)}\n" + textwrap.indent(capsys.readouterr().out, "    ")
    assert shown in PAGE.read_text()


@pytest.mark.parametrize("make", [v1_log, v0_log])
def test_keys(make: Callable[[str], str]) -> None:
    """Every key of the JSON is in the page."""
    page = PAGE.read_text()
    log = read(make("0.10.2"))
    document = log_document("x", log, [None])
    for key in (*document, *document["starts"][0]):
        assert f"`{key}`" in page
