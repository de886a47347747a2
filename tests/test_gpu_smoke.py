"""The GPU smoke test itself, over the stand-in driver: it agrees where it must, and only there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from tests.nvml_standin.build import build, write_scenario

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parent / "gpu"
CARDS = """\
driver 580.1
gpu 0 uuid=GPU-a name="NVIDIA L40S" total=46068MiB reserved=594MiB used=11500MiB
gpu 1 uuid=GPU-b name="NVIDIA L40S" total=46068MiB reserved=594MiB used=0MiB
proc gpu=0 pid=1 type=C used=11154MiB
"""
ALLOCATOR = [sys.executable, str(FOLDER / "allocator_standin.py")]


class Bench:
    """A machine whose driver, nvidia-smi and CUDA are stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.scenario = folder / "nvml.scn"
        self.output = folder / "rows.json"
        self.bin = folder / "bin"
        self.bin.mkdir()
        smi = self.bin / "nvidia-smi"
        smi.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FOLDER / "smi_standin.py"}" "$@"\n')
        smi.chmod(0o755)

    def run(
        self,
        *options: str,
        scenario: str = CARDS,
        allocator: list[str] | None = None,
        python: tuple[str, ...] = (sys.executable,),
        **variables: str,
    ) -> tuple[int, str, Mapping[str, Any]]:
        """Return the exit status, the text, and the rows by what they compare."""
        write_scenario(self.scenario, scenario)
        environment = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(build()),
            "KVWATCH_NVML_SCENARIO": str(self.scenario),
            **variables,
        }
        command = [*python, str(FOLDER / "smoke.py"), "--mib", "512", "--patience", "1"]
        done = subprocess.run(
            [*command, "--output", str(self.output), *options, "--allocator", *(allocator or ALLOCATOR)],
            env=environment, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert not done.stderr, done.stderr
        kept = json.loads(self.output.read_text()) if self.output.exists() else {"rows": []}
        return done.returncode, done.stdout, {row["what"]: row for row in kept["rows"]}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a bench of its own."""
    return Bench(tmp_path)


def test_all_agree_where_both_read_the_same_driver(bench: Bench) -> None:
    """Totals, processes, ledger and an allocation that comes and goes."""
    status, text, rows = bench.run()
    assert status == 0, text
    assert "0 differ" in text
    ours = {
        what: row["verdict"] for what, row in rows.items() if "process" not in what or "process 1" in what
    }
    untold = {what for what, verdict in ours.items() if verdict != "ok"}
    # In a private PID namespace kvwatch attributes nothing.
    assert untold <= {"GPU-a ledger", "the process and its ledger"}
    assert rows["GPU-a used"]["kvwatch"] == 11_500 + 512
    assert rows["GPU-a process 1"]["kvwatch"] == 11_154
    assert rows["GPU-b ledger"]["verdict"] == "ok"
    assert rows["memory in use grew by"]["kvwatch"] == 512
    assert rows["memory in use fell by"]["verdict"] == "ok"


def test_another_figure_on_the_other_side_is_found(bench: Bench, tmp_path: Path) -> None:
    """A total, a process and a used figure that differ are each named, and the exit status is 1."""
    other = tmp_path / "other.scn"
    write_scenario(
        other,
        CARDS.replace("total=46068MiB reserved=594MiB used=0MiB", "total=46069MiB reserved=590MiB used=9MiB")
        + "proc gpu=0 pid=77 type=C used=5MiB\n",
    )
    status, text, rows = bench.run(SMI_SCENARIO=str(other))
    assert status == 1
    assert rows["GPU-b used"]["verdict"] == "DIFFERS"
    assert rows["GPU-b reserved"]["verdict"] == "DIFFERS"
    assert rows["GPU-a process 77"]["verdict"] == "DIFFERS"
    assert rows["GPU-a process 1"]["verdict"] == "ok"
    assert "DIFFERS" in text


def test_memory_that_is_not_given_back_is_found(bench: Bench) -> None:
    """The process ended, and the driver still shows what it held."""
    status, _, rows = bench.run(LEAK="1")
    assert status == 1
    assert rows["memory in use fell by"]["verdict"] == "DIFFERS"


def test_a_process_whose_bytes_are_not_known_is_no_disagreement(bench: Bench) -> None:
    """N/A on both sides; the ledger says what is missing for it."""
    status, text, rows = bench.run(scenario=CARDS.replace("used=11154MiB", "used=na"))
    assert status == 0, text
    assert rows["GPU-a process 1"]["verdict"] == "-"
    assert rows["GPU-a ledger"]["verdict"] == "-"
    assert "unattributed" in rows["GPU-a ledger"]["why"]


@pytest.mark.parametrize(
    "scenario, path, words",
    [
        ("driver 580.1\n", None, "no GPU here: nvidia-smi: No devices were found"),
        (CARDS, "/usr/bin:/bin", "no GPU here: there is no nvidia-smi"),
    ],
    ids=["no device", "no nvidia-smi"],
)
def test_without_a_gpu_it_says_so(bench: Bench, scenario: str, path: str | None, words: str) -> None:
    """Exit status 3, which is neither right nor wrong."""
    variables = {} if path is None else {"PATH": path}
    status, text, _ = bench.run(scenario=scenario, **variables)
    assert (status, text.strip()) == (3, words)


def test_it_needs_the_standard_library_and_nvidia_ml_py_alone(bench: Bench, tmp_path: Path) -> None:
    """A borrowed machine with a GPU has no network and none of kvwatch's other dependencies."""
    bare = (sys.executable, "-S")
    status, text, _ = bench.run(python=bare)
    assert (status, text.split(";")[0]) == (3, "too little to tell: nvidia-ml-py is not installed")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "nvidia_ml_py-13-py3-none-any.whl", "w") as wheel:
        wheel.write(str(pynvml.__file__), "pynvml.py")
    status, text, _ = bench.run("--wheels", str(wheels), python=bare)
    assert status == 0, text


def test_without_cuda_the_figures_at_rest_are_still_compared(bench: Bench) -> None:
    """Too little to tell is 3, and the reason is there."""
    allocate = [sys.executable, str(FOLDER / "allocate.py")]
    status, text, rows = bench.run(allocator=allocate)
    assert status == 3, text
    assert "libcuda" in text
    assert rows["GPU-a used"]["verdict"] == "ok"
