"""Wheel and sdist: all that kvwatch needs is in them, and a user's first number comes out right."""

from __future__ import annotations

import email
import re
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import zipfile
from typing import TYPE_CHECKING

import pytest

from kvwatch import __version__
from kvwatch.demo.day import CHAT, EMBEDDING
from tests.daemon import parse, value
from tests.packaging.distributions import ROOT, build, environment_with, unpack

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this tree."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist of this tree."""
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a fresh environment; return its folder of programs."""
    return environment_with(wheel, tmp_path_factory.mktemp("user") / "environment")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Every file of kvwatch/, the page's and `py.typed` included, is in the wheel; tests are not."""
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "kvwatch").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    documents = {f"kvwatch/{path.relative_to(ROOT)}" for path in (ROOT / "docs").rglob("*.md")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    monitoring = {name for name in names if name.startswith("kvwatch/monitoring/")}
    assert names - monitoring == package | documents
    assert {"kvwatch/web/index.html", "kvwatch/web/page.css", "kvwatch/py.typed"} <= names


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    """Name, version, Python, dependencies and licence are those of pyproject.toml; it fits every machine."""
    assert wheel.name == f"kvwatch-{__version__}-py3-none-any.whl"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with zipfile.ZipFile(wheel) as archive:
        info = f"kvwatch-{__version__}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert (
            archive.read(f"{info}/entry_points.txt").split()
            == b"[console_scripts] kvwatch = kvwatch.cli:main".split()
        )
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == project["requires-python"]
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert [spelled(line) for line in required] == [
        spelled(line) for line in sorted(project["dependencies"], key=str.lower)
    ]


def spelled(requirement: str) -> tuple[str, frozenset[str]]:
    """Return a requirement's name and its bounds, whatever their order."""
    name, bounds = re.fullmatch(r"([\w.-]+)(.*)", requirement.replace(" ", "")).groups()  # type: ignore[union-attr]
    return name.lower(), frozenset(bounds.split(","))


def test_the_sdist_holds_what_the_repository_teaches(sdist: Path) -> None:
    """Sources, documents, deployment files, tests and scripts are in the sdist; nothing built is."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "docs/install.md",
        "deploy/systemd/kvwatch.service",
        "scripts/test",
        "Dockerfile",
        "LICENSE",
    ):
        assert name in names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", ".git/"))]


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """A wheel made of the sdist is the wheel made of the repository, byte for byte."""
    tree = unpack(sdist, tmp_path / "source")
    assert build("wheel", tree, tmp_path / "wheel").read_bytes() == wheel.read_bytes()


def test_an_installed_kvwatch_says_its_version(programs: Path, tmp_path: Path) -> None:
    """The program that pip makes runs the installed package, whatever folder it is started in."""
    done = subprocess.run(
        [programs / "kvwatch", "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"kvwatch {__version__}\n"), done.stderr


def test_an_installed_kvwatch_brings_its_dashboards_and_rules(programs: Path, tmp_path: Path) -> None:
    """`kvwatch dashboards` of the wheel writes what it writes in the repository."""
    commands = {"wheel": [programs / "kvwatch"], "repository": [sys.executable, "-m", "kvwatch"]}
    written = {}
    for name, command in commands.items():
        out = tmp_path / name
        subprocess.run([*command, "dashboards", "--out", out], cwd=ROOT, check=True, capture_output=True)
        written[name] = {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*.*")}
    assert written["wheel"] == written["repository"]
    assert "dashboards/fleet.json" in written["wheel"]


def test_an_installed_demo_reaches_the_first_right_number(programs: Path, tmp_path: Path) -> None:
    """`kvwatch demo` serves its page, and its two pools hold 11 and 3 requests of full length."""
    with subprocess.Popen(
        [programs / "kvwatch", "demo", "--listen", "127.0.0.1:0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        while (address := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
            line = process.stdout.readline()
            assert line, f"the demo ended: {said}"
            said += line
        # 2,847 blocks of 16 tokens, and 781, for requests of 4,096.
        right = {CHAT: 2847 // 256, EMBEDDING: 781 // 256}
        found: dict[str, float | None] = {}
        deadline = time.monotonic() + 60
        while found != right and time.monotonic() < deadline:
            with urllib.request.urlopen(f"{address[0]}/metrics", timeout=5) as answer:
                series = parse(answer.read().decode())
            found = {
                server: value(series, "full_length_requests_fit_empty", server=server, rank="0")
                for server in right
            }
            time.sleep(0.05)
        with urllib.request.urlopen(f"{address[0]}/", timeout=5) as answer:
            page = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert found == right
    assert "<title>" in page
