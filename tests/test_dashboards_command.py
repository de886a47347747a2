"""`kvwatch dashboards`: what belongs to this version, written whole, and nobody's changes lost."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.cli import main

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[1]
ORIGINALS = {
    f"{folder}/{file.name}": file
    for folder, pattern in {
        "dashboards": "dashboards/json/*.json",
        "prometheus": "deploy/prometheus/kvwatch*.rules.yml",
        "alertmanager": "deploy/alertmanager/alertmanager.yml",
        "grafana-alerting": "deploy/grafana/alerting/*.yml",
    }.items()
    for file in ROOT.glob(pattern)
}


def written(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_every_file_is_written_once_and_then_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All dashboards, rules and alerts are there, byte for byte, and a second run changes nothing."""
    out = tmp_path / "new" / "folder"
    assert main(["dashboards", "--out", str(out)]) == 0
    assert written(out) == {name: file.read_bytes() for name, file in ORIGINALS.items()}
    assert capsys.readouterr().out.count("wrote") == len(ORIGINALS)
    assert main(["dashboards", "--out", str(out)]) == 0
    assert capsys.readouterr().out.count("unchanged") == len(ORIGINALS)


def test_a_file_that_was_changed_is_left_until_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that differs stays as it is, is named, and only --force replaces it."""
    changed = tmp_path / "prometheus" / "kvwatch.rules.yml"
    changed.parent.mkdir()
    changed.write_text("mine")
    assert main(["dashboards", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert f"differs   {changed}" in shown.out
    assert "1 files differ and were left; --force replaces them" in shown.err
    assert changed.read_text() == "mine"
    assert main(["dashboards", "--out", str(tmp_path), "--force"]) == 0
    assert changed.read_bytes() == ORIGINALS["prometheus/kvwatch.rules.yml"].read_bytes()


def test_a_folder_that_is_a_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be written is named with the system's reason."""
    (tmp_path / "out").write_text("")
    assert main(["dashboards", "--out", str(tmp_path / "out")]) == 1
    assert "kvwatch dashboards: " in capsys.readouterr().err


def test_the_wheel_holds_what_the_command_writes(tmp_path: Path) -> None:
    """An installation without the source tree writes the same files."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "kvwatch", "dashboards", "--out", tmp_path / "out"],
        cwd=tmp_path / "site",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert written(tmp_path / "out") == {name: file.read_bytes() for name, file in ORIGINALS.items()}
