"""Wheel and sdist as pip would build them, and an environment that holds the wheel as a user's would."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a `wheel` or an `sdist` of a source tree with the build back end itself; return the file."""
    before = set(folder.iterdir()) if folder.exists() else set()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", folder],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (made,) = set(folder.iterdir()) - before
    return made


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist; return its one folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def environment_with(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a fresh environment; return its folder of programs.

    What the wheel depends on is borrowed from the environment that runs the tests, so no registry is asked:
    scripts/check-install does the same with everything fetched.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    install = ["install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # Behind the environment's own packages, and without the .pth file of an editable kvwatch.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin"
