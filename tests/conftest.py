"""What several test files share: options, the event loop, a machine with the stand-in driver."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.browser import chromium
from tests.nvml_standin.machine import Machine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from xdist.remote import Producer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --update-golden."""
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden expositions; read the diff"
    )


@pytest.fixture
def anyio_backend() -> str:
    """Run asynchronous tests on asyncio, as the daemon does."""
    return "asyncio"


@pytest.fixture
async def machine(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Machine]:
    """Return a machine with the stand-in driver, whose NVML sources are closed at the end."""
    machine = Machine(tmp_path)
    yield machine
    await machine.close()


@pytest.fixture(scope="session", autouse=True)
def _state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the history of daemons that are given no place for it out of this machine's own folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATE_DIRECTORY", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one browser for the whole module; yield its address."""
    with chromium(tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Tell whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


_OF_THE_MACHINE = re.compile(
    r"tests/(alerts|discovery|top)/|tests/test_(attribution|cli|commands|custody|dashboards_live|demo_fleet"
    r"|gpu_smoke|homes|hostile|inside|launches|orphans|owners|prometheus)"
)
"""Files whose tests start what looks like an engine, or look for engines among all processes."""


class _Files(LoadScopeScheduling):
    """Keeps a file's tests in one of the parallel runs, and in the same one what meets on the machine."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "machine" if _OF_THE_MACHINE.match(file) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Share the tests out by file."""
    return _Files(config, log)


_PROGRAMS = {
    "prometheus": ("promtool", "prometheus"),
    "alertmanager": ("prometheus-alertmanager",),
    "browser": ("chromium",),
    "tmux": ("tmux",),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose Debian package is missing, or fail it where all must run (KVWATCH_TEST_ALL=1)."""
    for mark, programs in _PROGRAMS.items():
        if item.get_closest_marker(mark) is None:
            continue
        missing = [program for program in programs if shutil.which(program) is None]
        if missing and os.environ.get("KVWATCH_TEST_ALL"):
            pytest.fail(f"{missing[0]} is not installed")
        if missing:
            pytest.skip(f"{missing[0]} is not installed")
