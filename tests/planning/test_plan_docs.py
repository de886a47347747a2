"""docs/plan.md shows what the program prints, and names every key and option."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from kvwatch.cli import main
from kvwatch.planning.keys import KEYS
from tests.planning.models import EMBEDDING
from tests.planning.test_footprints import LLAMA
from tests.startup_log.vllm_prints import v1_log

PAGE = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
COMMANDS = re.findall(r"^    \$ kvwatch (plan .+)$", PAGE, re.MULTILINE)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in the folder that the page's commands are run in."""
    monkeypatch.chdir(tmp_path)
    for name, config in (("embed", EMBEDDING), ("chat-8b", LLAMA)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "chat.log").write_text(v1_log("0.28.0"))
    return tmp_path


def test_the_page_shows_commands() -> None:
    """The known card, more on it, a server that never ran, and one that did."""
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("command", COMMANDS)
def test_output(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The output in the page is the output of its command."""
    assert main(command.split()) in (0, 1)
    out = textwrap.indent(capsys.readouterr().out, "    ")
    assert f"    $ kvwatch {command}\n{out}" in PAGE


def test_the_plan_file_of_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's plan file says what its second command says; the servers stand in the file's order."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (folder / "plan.yaml").write_text(text)
    assert main(["plan", "plan.yaml", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main([*COMMANDS[1].split(), "--json"]) == 0
    words = json.loads(capsys.readouterr().out)
    assert document["servers"] == words["servers"][::-1]
    assert document["cards"][0]["left_bytes"] == words["cards"][0]["left_bytes"]


def test_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Every key of the JSON is in the page, down to rows, headroom and levers."""
    assert main([*COMMANDS[1].split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    card, server = document["cards"][0], document["servers"][0]
    for part in (document, card, card["rows"][0], server, server["headroom"], server["levers"][0]):
        for key in part:
            assert f"`{key}`" in PAGE


def test_every_option_has_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`kvwatch plan --help` names every key as an option."""
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--help"])
    out = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in out for name in KEYS)
