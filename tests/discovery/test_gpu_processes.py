"""From a GPU process that no command line explains to a port that answers: asked once, where allowed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason
from kvwatch.target import Target
from kvwatch.wiring import Devices
from tests.daemon import config, reason, running, value
from tests.discovery.stand_ins import (
    LLAMA_PAGES,
    VLLM_PAGES,
    Looker,
    free_port,
    program,
    started,
    vllm,
)
from tests.nvml_standin.build import build, write_scenario

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

NOTHING: dict[str, Path] = {}


def suspects(looker: Looker, *pids: int, **arguments: object) -> list[str]:
    """Return the URLs that may be asked because of GPU processes."""
    return [target.url for target in looker.look(gpu=pids, **arguments).suspects]  # type: ignore[arg-type]


async def test_a_program_of_its_own_around_an_engine_is_found_by_its_page(tmp_path: Path) -> None:
    """Its name is the address, its process that of the port; the memory of its child is its own."""
    scenario = tmp_path / "nvml.scn"
    environment = {"LD_LIBRARY_PATH": str(build()), "KVWATCH_NVML_SCENARIO": str(scenario)}
    with (
        program(tmp_path / "a", "serve.py", VLLM_PAGES, "--port", str(free_port()), FORKS="1") as engine,
        program(tmp_path / "b", "train.py", NOTHING, "--port", str(free_port() + 1000)) as other,
    ):
        write_scenario(
            scenario,
            "gpu 0 uuid=GPU-a total=1000MiB used=700MiB\n"
            f"proc gpu=0 pid={engine.pid} type=C used=500MiB\n"
            f"proc gpu=0 pid={other.pid} type=C used=100MiB\n",
        )
        text = config("", nvml="{enabled: true, deadline: 10s}", discovery=True)
        async with running(text, devices=Devices(environment=environment, host_pids=False)) as daemon:
            name = f"127.0.0.1:{engine.port}"
            series = await daemon.until(
                lambda series: value(series, "requests_running", server=name) is not None
            )
            assert reason(series, "engine", name) is None
            series = await daemon.until(
                lambda series: value(series, "server_device_memory_bytes", server=name) is not None
            )
            assert value(series, "server_device_memory_bytes", server=name) == 500 << 20
            polls = len([line for line in engine.asked if line.endswith("/metrics")])
            await daemon.until(
                lambda _: len([line for line in engine.asked if line.endswith("/metrics")]) > polls + 5
            )
            assert f"127.0.0.1:{other.port}" not in await daemon.text()
        # Every adapter's first page, once, and never again; a 404 is an answer.
        assert other.asked == [f"{other.port} GET /props", f"{other.port} GET /metrics"]


def test_a_port_that_does_not_answer_is_asked_again_with_growing_pauses(tmp_path: Path) -> None:
    """Half a minute, then twice as long; one that answered anything else is never asked again."""
    looker, port = Looker(), free_port()
    with program(tmp_path, "serve.py", NOTHING, "--port", str(port)) as engine:
        (url,) = suspects(looker, engine.pid)
        assert url == f"http://127.0.0.1:{port}"
        silent = {url: Reason.TIMEOUT}
        assert suspects(looker, engine.pid, answers=silent) == []
        looker.clock.now += 29
        assert suspects(looker, engine.pid) == []
        looker.clock.now += 1
        assert suspects(looker, engine.pid) == [url]
        assert suspects(looker, engine.pid, answers=silent) == []
        looker.clock.now += 59
        assert suspects(looker, engine.pid) == []
        looker.clock.now += 1
        assert suspects(looker, engine.pid) == [url]
        assert suspects(looker, engine.pid, answers={url: Reason.NOT_FOUND}) == []
        looker.clock.now += 100_000
        assert suspects(looker, engine.pid) == []


def test_a_port_that_the_kernel_handed_out_is_never_asked(tmp_path: Path) -> None:
    """There NCCL, torch.distributed and ZMQ talk to each other."""
    with program(tmp_path, "train.py", NOTHING) as job:
        assert job.port >= 32_768
        assert suspects(Looker(), job.pid) == []


def test_only_processes_of_one_program_are_family(tmp_path: Path) -> None:
    """What listens above in a supervisor, or beside it under a shell, is nobody's to ask."""
    port = free_port()
    code = (
        "import socket, subprocess, sys\n"
        "server = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, flush=True); sys.stdin.readline()\n"
    )
    with started([sys.executable, "-c", code, str(port)]) as supervisor:
        worker = int(supervisor.read())
        assert suspects(Looker(), worker) == []
        assert suspects(Looker(), supervisor.pid) == [f"http://127.0.0.1:{port}"]


def test_a_worker_that_ray_started_is_not_asked(tmp_path: Path) -> None:
    """Its server is found by the command line of the process that serves."""
    code = (
        "import socket, sys\n"
        "open('/proc/self/comm', 'w').write('ray::RayWorker')\n"
        "server = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "print(flush=True); sys.stdin.readline()\n"
    )
    with started([sys.executable, "-c", code, str(free_port())]) as worker:
        worker.read()
        assert suspects(Looker(), worker.pid) == []


def test_a_process_that_is_explained_is_not_asked(tmp_path: Path) -> None:
    """By a command line above it, or because its server is configured."""
    looker = Looker()
    with vllm(tmp_path / "a", free_port()) as engine:
        assert suspects(looker, engine.pid) == []
    with program(tmp_path / "b", "serve.py", LLAMA_PAGES, "--port", str(free_port())) as engine:
        url = f"http://127.0.0.1:{engine.port}"
        chat = Target(name="chat", url=url, host="127.0.0.1", port=engine.port)
        assert suspects(looker, engine.pid, configured=[chat]) == []
        assert suspects(looker, engine.pid) == [url]


def test_a_server_found_by_its_page_stays_when_the_driver_falls_silent(tmp_path: Path) -> None:
    """A driver that hangs says nothing about the server; the end of its process does."""
    looker = Looker()
    with program(tmp_path, "serve.py", VLLM_PAGES, "--port", str(free_port())) as engine:
        (url,) = suspects(looker, engine.pid)
        answered = {url: None}
        assert looker.find(engine.port, gpu=[engine.pid], answers=answered) is not None
        assert looker.find(engine.port, gpu=[]) is not None
        looker.clock.now += 100
        target = looker.find(engine.port, gpu=[])
        assert target is not None
        assert (target.pid, target.engine) == (engine.pid, None)
    assert looker.find(engine.port) is None
