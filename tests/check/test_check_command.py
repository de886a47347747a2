"""`kvwatch check`: its options, its exit status, and the real daemon behind --from."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from kvwatch.cli import main
from tests.daemon import config, running
from tests.nvml_standin.build import write_scenario
from tests.test_devices import NVML, standin, two_cards

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

SUM_OF_1_5 = """\
services:
  a: {image: vllm/vllm-openai:v0.28.0, gpus: all, command: --model a --gpu-memory-utilization 0.8}
  b: {image: vllm/vllm-openai:v0.28.0, gpus: all, command: --model b --gpu-memory-utilization 0.7}
"""
RACE = SUM_OF_1_5.replace("0.8", "0.5").replace("0.7", "0.4")


def check(*arguments: str) -> int:
    """Run the command."""
    return main(["check", *arguments])


@pytest.mark.parametrize(
    "text,options,status",
    [
        (SUM_OF_1_5, [], 1),
        (RACE, [], 0),
        (RACE, ["--fail-on", "warning"], 1),
        ("vllm serve a\n", ["--fail-on", "warning"], 0),
        ("# kvwatch: ignore=* tried\n\n" + SUM_OF_1_5, ["--fail-on", "warning"], 0),
    ],
    ids=["error", "warning", "warning-counts", "clean", "ignored"],
)
def test_the_exit_status_says_what_was_found(
    tmp_path: Path, text: str, options: list[str], status: int
) -> None:
    """1 where something at or above --fail-on was found and is not ignored."""
    (tmp_path / "file").write_text(text)
    assert check(*options, str(tmp_path / "file")) == status


def test_a_file_that_cannot_be_opened_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are checked all the same, and what was found is printed."""
    (tmp_path / "file").write_text(SUM_OF_1_5)
    assert check("--format", "json", str(tmp_path / "file"), str(tmp_path / "gone")) == 2
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "shares-over-limit" in {finding["rule"] for finding in document["findings"]}
    assert document["problems"][0] == {
        "message": "cannot be read: no such file",
        "file": str(tmp_path / "gone"),
        "line": None,
    }
    assert captured.err == f"kvwatch check: cannot read {tmp_path}/gone\n"


def test_standard_input_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`helm template ... | kvwatch check -`: recognised by its content."""
    (tmp_path / "input").write_text(SUM_OF_1_5)
    with (tmp_path / "input").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert check("-") == 1


WRONG = {
    "no-size": ["--card", "A"],
    "no-unit": ["--card", "A=80GB"],
    "nothing": ["--card", "A=0"],
    "version": ["--engine-version", "latest"],
    "model": ["--model", "chat"],
    "url": ["--from", "localhost:9836"],
    "format": ["--format", "xml"],
    "no-files": [],
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_a_usage_error(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With what is allowed, and status 2."""
    files = ["x"] if options else []
    with pytest.raises(SystemExit) as stopped:
        check(*options, *files)
    assert stopped.value.code == 2
    assert "kvwatch check: error: " in capsys.readouterr().err


def test_no_daemon_behind_from_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it the check would say less than was asked for."""
    (tmp_path / "file").write_text("vllm serve a\n")
    assert check("--from", "http://127.0.0.1:9", str(tmp_path / "file")) == 2
    assert capsys.readouterr().err.startswith("kvwatch check: http://127.0.0.1:9/api/v1/snapshot: ")


async def test_a_running_daemon_gives_the_cards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes of the driver's devices, by index; a UUID in a file is the same card."""
    (tmp_path / "file").write_text("CUDA_VISIBLE_DEVICES=GPU-b vllm serve a --gpu-memory-utilization 0.5\n")
    scenario = tmp_path / "nvml.scn"
    write_scenario(scenario, two_cards())
    async with running(config("servers: []", nvml=NVML), devices=standin(scenario)) as daemon:
        await daemon.until(lambda series: "kvwatch_device_memory_total_bytes" in series)
        status = await asyncio.to_thread(
            check, "--from", daemon.url, "--format", "json", str(tmp_path / "file")
        )
    document = json.loads(capsys.readouterr().out)
    assert status == 0
    assert document["servers"][0]["cards"] == ["1"]
    assert {card["name"]: card["total_bytes"] for card in document["cards"]} == {
        "0": 1000 << 20,
        "1": 1000 << 20,
    }
