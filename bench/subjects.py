"""What the benchmark starts: the servers, the stand-in driver, the daemon, nvitop-exporter."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
NVITOP = "nvitop-exporter==1.7.2"
DEVICES = 8
HANG = "delay * ms=forever\n"
PATIENCE_SECONDS = 30.0

FORMATS: Mapping[str, Mapping[str, str]] = {
    "plain": {"Accept-Encoding": "identity"},
    "gzip": {"Accept-Encoding": "gzip"},
    "OpenMetrics": {"Accept-Encoding": "gzip", "Accept": "application/openmetrics-text;version=1.0.0"},
}


@dataclass
class Client:
    """One kept connection, as Prometheus keeps one."""

    url: str
    _connection: http.client.HTTPConnection = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the connection; it opens at the first request."""
        self._connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE_SECONDS)

    def get(self, path: str = "/metrics", kind: str = "plain") -> tuple[float, int, bytes]:
        """Return the seconds to the last byte, the status and the body."""
        started = time.perf_counter()
        self._connection.request("GET", path, headers=dict(FORMATS[kind]))
        response = self._connection.getresponse()
        body = response.read()
        return time.perf_counter() - started, response.status, body


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Running servers and the driver's scenario in which their workers hold the devices."""

    servers: list[dict[str, Any]]
    scenario: Path
    environment: Mapping[str, str]

    def polls(self) -> int:
        """Return how often the last server's /metrics was asked: once a poll."""
        try:
            return int(Client(self.servers[-1]["url"]).get("/asked")[2] or b"0")
        except http.client.RemoteDisconnected:  # its short keep-alive ran out just then
            return self.polls()

    def hang(self) -> None:
        """Make the first server hang at /metrics, and every call of the driver."""
        os.kill(self.servers[0]["pid"], signal.SIGUSR1)
        replace(self.scenario, self.scenario.read_text() + HANG)

    def heal(self) -> None:
        """Undo `hang`."""
        os.kill(self.servers[0]["pid"], signal.SIGUSR2)
        replace(self.scenario, self.scenario.read_text().replace(HANG, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A running daemon."""

    pid: int
    url: str
    ready_seconds: float
    ready_cpu_seconds: float
    """Of the daemon until it was ready."""

    @property
    def nvml_child(self) -> int:
        """Return the PID of its NVML child."""
        (child,) = figures.children(self.pid)
        return child


def replace(path: Path, text: str) -> None:
    """Replace a file at once."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


@contextlib.contextmanager
def fleet(
    servers: int, processes: int, library: Path, folder: Path, *, devices: int = DEVICES
) -> Iterator[Fleet]:
    """Run servers whose workers, `processes` in all, hold the devices."""
    command = [sys.executable, str(ROOT / "bench/fleet.py"), str(servers), str(max(1, processes // servers))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101
            running = json.loads(process.stdout.readline())
            workers = [pid for server in running for pid in server["workers"]]
            lines = ["driver 570.172.08"]
            lines += [
                f'gpu {index} name="NVIDIA L40S" total=46068MiB reserved=500MiB used=40GiB'
                for index in range(devices)
            ]
            each = max(1, 36 * devices // len(workers))
            lines += [
                f"proc gpu={number * devices // len(workers)} pid={pid} type=C used={each}GiB"
                for number, pid in enumerate(workers)
            ]
            scenario = folder / "nvml.scenario"
            replace(scenario, "\n".join(lines) + "\n")
            environment = {
                **os.environ,
                "LD_LIBRARY_PATH": str(library),
                "KVWATCH_NVML_SCENARIO": str(scenario),
                "PYTHONPATH": str(ROOT),
            }
            yield Fleet(servers=running, scenario=scenario, environment=environment)
        finally:
            process.kill()


def configuration(watched: Fleet, interval: str) -> str:
    """Return the daemon's configuration file."""
    model = ROOT / "tests/captures/vllm/tiny-llama-config.json"
    history = f"history: {{path: {watched.scenario.with_name('history.db')}}}"
    lines = ["listen: 127.0.0.1:0", f"interval: {interval}", "nvml: {enabled: true}", history, "servers:"]
    lines += [
        f"  - {{name: server-{number}, url: '{server['url']}', engine: vllm, model_config: {model}, "
        "request_limit: 256}"
        for number, server in enumerate(watched.servers)
    ]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def daemon(watched: Fleet, interval: str, folder: Path, python: str) -> Iterator[Daemon]:
    """Run the daemon over a fleet, from its start until the block ends."""
    file, log = folder / "kvwatch.yaml", folder / "kvwatch.log"
    file.write_text(configuration(watched, interval))
    with log.open("w") as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            [python, "-m", "kvwatch", "run", "--config", str(file)],
            stderr=stderr,
            env=dict(watched.environment),
        )
    try:
        url = _url(process, log, started)
        while Client(url).get("/-/ready")[1] != http.client.OK:
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        yield Daemon(
            pid=process.pid,
            url=url,
            ready_seconds=seconds,
            ready_cpu_seconds=figures.cpu_seconds(process.pid),
        )
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _url(process: subprocess.Popen[bytes], log: Path, started: float) -> str:
    while process.poll() is None and time.perf_counter() - started < PATIENCE_SECONDS:
        for line in log.read_text().splitlines():
            if "listens on" in line:
                return line.split()[-1].rstrip("/")
        time.sleep(0.01)
    sys.exit(f"the daemon does not start:\n{log.read_text()}")


def nvitop_program(*, install: bool) -> Path | None:
    """Return nvitop-exporter in an environment of its own, outside the repository; None where it is not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvwatch-bench"
    environment = cache / NVITOP.replace("==", "-")
    program = environment / "bin/nvitop-exporter"
    if install and not program.exists():
        commands = (
            [sys.executable, "-m", "venv", str(environment)],
            [str(environment / "bin/pip"), "install", "--quiet", NVITOP],
        )
        with contextlib.suppress(subprocess.SubprocessError):
            for command in commands:
                subprocess.run(command, check=True, capture_output=True, timeout=90)
    return program if program.exists() else None


@contextlib.contextmanager
def nvitop(program: Path, watched: Fleet, port: int) -> Iterator[str]:
    """Run nvitop-exporter over the same driver, as it comes: one update a second."""
    process = subprocess.Popen(
        [program, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(watched.environment),
    )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                if b"gpu" in Client(url).get()[2]:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
