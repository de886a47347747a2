"""The command line as its user meets it: help, errors, exit statuses, one look."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvwatch import __version__
from tests.nvml_standin.build import build, write_scenario
from tests.replay import Answer, replaying, vllm_pages

if TYPE_CHECKING:
    from pathlib import Path


def kvwatch(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    import os  # noqa: PLC0415

    return subprocess.run(
        [sys.executable, "-m", "kvwatch", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, **(environment or {})},
    )


def test_version() -> None:
    """`--version` prints the version and nothing else."""
    result = kvwatch("--version")
    assert (result.returncode, result.stdout) == (0, f"kvwatch {__version__}\n")


@pytest.mark.parametrize("command", [(), ("run",), ("once",), ("demo",)])
def test_help_teaches_and_imports_little(command: tuple[str, ...]) -> None:
    """Help of each command answers without the HTTP server, the HTTP client and pydantic."""
    code = (
        "import sys; from kvwatch.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'aiohttp', 'httpx', 'pydantic', 'prometheus_client'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
    assert "usage: kvwatch" in result.stdout
    assert "tatus" in result.stdout or "SIGHUP" in result.stdout or "scripted day" in result.stdout


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ((), "COMMAND"),
        (("run", "--config", "/nowhere.yaml"), "/nowhere.yaml"),
        (("run", "--listen", "somewhere"), "--listen"),
        (("run", "--interval", "5"), "--interval"),
        (("once", "--server", "ftp://host"), "--server"),
        (("demo", "--speed", "0"), "--speed"),
        (("demo", "--speed", "fast"), "--speed"),
        (("demo", "--from", "25:00"), "--from"),
        (("demo", "--from", "noon"), "--from"),
    ],
)
def test_a_usage_error_names_what_is_wrong(arguments: tuple[str, ...], complaint: str) -> None:
    """Exit status 2, the offending part, no traceback."""
    result = kvwatch(*arguments)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_a_bad_configuration_names_file_line_and_key(tmp_path: Path) -> None:
    """Each problem on a line of its own, exit status 2."""
    file = tmp_path / "kvwatch.yaml"
    file.write_text("interval: 5s\nservers:\n  - urll: http://127.0.0.1:1\n")
    result = kvwatch("run", "--config", str(file))
    assert result.returncode == 2
    assert f"{file}:3: servers[0].urll: " in result.stderr
    assert "did you mean url" in result.stderr


def test_a_full_disk_is_told_in_a_sentence() -> None:
    """Output that cannot be written: exit status 1, the reason, no traceback."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 - short
        result = subprocess.run(
            [sys.executable, "-m", "kvwatch", "cost", "tests/captures/vllm/tiny-llama-config.json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (result.returncode, result.stderr) == (
        1,
        "kvwatch: cannot write the output: No space left on device\n",
    )


@pytest.mark.anyio
async def test_once_shows_servers_devices_and_what_is_not_known(tmp_path: Path) -> None:
    """One look at a good and a bad server and a card: exit status 1, since one was not readable."""
    scenario = tmp_path / "nvml.scn"
    write_scenario(scenario, "gpu 0 uuid=GPU-a name=L40S total=1000MiB reserved=20MiB used=300MiB\n")
    environment = {"LD_LIBRARY_PATH": str(build()), "KVWATCH_NVML_SCENARIO": str(scenario)}
    async with (
        replaying(vllm_pages("draining")) as good,
        replaying({"/metrics": Answer(b"<html>\n")}) as bad,
    ):
        file = tmp_path / "kvwatch.yaml"
        file.write_text(
            "nvml: {deadline: 10s}\ndiscovery: false\n"
            f"servers: [{{name: good, url: '{good.url}'}}, {{name: bad, url: '{bad.url}', engine: vllm}}]"
        )
        result = await asyncio.to_thread(kvwatch, "once", "--config", str(file), environment=environment)
        lines = [line.split() for line in result.stdout.splitlines()]
        assert ["good", "vllm", "1,024", "52%", "2", "2", "1", "0", "3", "3", "-1"] in lines
        assert "Device 0  L40S  GPU-a  1,000 MiB in all" in result.stdout
        assert any(line[:3] == ["engine", "bad", "parse_error"] for line in lines)
        assert result.returncode == 1, result.stderr
        documents = await asyncio.to_thread(
            kvwatch, "once", "--json", "--config", str(file), environment=environment
        )
        document = json.loads(documents.stdout)
        assert document["servers"][0]["ranks"][0]["full"]["now"] == 1
        assert document["servers"][1]["reading"] is None
        assert document["devices"][0]["reading"]["used_bytes"] == 300 << 20


@pytest.mark.anyio
async def test_once_exits_with_0_when_all_is_known_and_3_when_nothing_is() -> None:
    """A machine without a driver is no problem unless the configuration wants one."""
    nowhere = {"LD_LIBRARY_PATH": "/nowhere"}
    async with replaying(vllm_pages("idle")) as replay:
        result = await asyncio.to_thread(
            kvwatch, "once", "--no-discovery", "--server", replay.url, environment=nowhere
        )
        assert (result.returncode, result.stderr) == (0, "")
        replay.pages.clear()
        result = await asyncio.to_thread(
            kvwatch, "once", "--no-discovery", "--server", replay.url, environment=nowhere
        )
        assert result.returncode == 3
        assert "not_found" in result.stdout
