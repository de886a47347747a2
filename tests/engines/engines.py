"""Start and stop the real engines that install.sh set up, one per loopback port.

    python engines.py start vllm-uniform 8100              ready when the command returns
    python engines.py start llama-split 8200 -- -np 2      later options win over the usual ones
    python engines.py list
    python engines.py stop 8100 8200

An engine runs in a session of its own, so that stopping it can find every process it left behind.
Its pid and log are PORT.pid and PORT.log in the folder run/ of the cache folder. That folder may
be shared, so engines are stopped by their ports, never all at once.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = Path(os.environ.get("KVWATCH_ENGINES_DIR") or Path.home() / ".cache" / "kvwatch-engines")
RUN = CACHE / "run"
HOST = "127.0.0.1"
START_SECONDS = 240.0
STOP_SECONDS = 20.0


class EngineError(Exception):
    """An engine could not be started or stopped."""


@dataclass(frozen=True)
class Engine:
    """How one kind of engine is made and started."""

    environment: str  # folder of the virtual environment
    model_kind: str  # for models.py
    model: str  # file or folder in models/
    command: tuple[str, ...]  # the program and what comes before the model
    options: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)


VLLM_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def vllm(model: str, *, max_model_len: int, blocks: int) -> Engine:
    """Describe a vLLM with a KV pool of so many blocks of 32 tokens, small enough to overflow."""
    options = (
        f"--served-model-name=tiny-{model}",
        f"--max-model-len={max_model_len}",
        "--max-num-seqs=16",
        "--block-size=32",
        f"--num-gpu-blocks-override={blocks}",
        "--enforce-eager",
    )
    return Engine("vllm", model, model, ("vllm", "serve"), options, VLLM_VARIABLES)


def llama(*options: str) -> Engine:
    """Describe a llama-server with its metrics and slots open.

    One thread: two that wait for each other come to a crawl when something else wants the cores.
    """
    usual = ("--metrics", "--slots", "--threads", "1", "-lv", "4")
    return Engine("llama", "gguf", "tiny.gguf", ("llama-server", "-m"), (*usual, *options))


ENGINES = {
    "vllm-uniform": vllm("uniform", max_model_len=1024, blocks=100),
    "vllm-hybrid": vllm("hybrid", max_model_len=2048, blocks=900),
    "llama-split": llama("-c", "8192", "-np", "4"),
    "llama-unified": llama("-c", "4096"),
}


def start(
    name: str, port: int, extra: list[str], *, nice: int, variables: dict[str, str] | None = None
) -> int:
    """Start one engine, with more variables in its environment, wait until it answers, return its pid."""
    engine = ENGINES[name]
    programs = CACHE / engine.environment / "bin"
    if not (programs / engine.command[0]).exists():
        raise EngineError(f"{name} is not installed: run install.sh")
    if read_pid_file(port) is not None:
        raise EngineError(f"an engine was started on port {port} already: stop it first")
    if answers(port) is not None:
        raise EngineError(f"port {port} is taken")

    model = CACHE / "models" / engine.model
    models = Path(__file__).with_name("models.py")
    making = subprocess.run(
        [programs / "python", models, engine.model_kind, model], capture_output=True, check=False
    )
    if making.returncode != 0:
        raise EngineError(f"{name} has no model: {making.stderr.decode(errors='replace')}")

    program, *before_model = engine.command
    address = ["--host", HOST, "--port", str(port)]
    command = [str(programs / program), *before_model, str(model), *address, *engine.options, *extra]
    RUN.mkdir(parents=True, exist_ok=True)
    log = RUN / f"{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                **engine.variables,
                **(variables or {}),
                "PATH": f"{programs}:{os.environ['PATH']}",
            },
            start_new_session=True,
        )
    os.setpriority(os.PRIO_PROCESS, process.pid, nice)
    pid_file(port).write_text(f"{process.pid} {start_time(process.pid)} {name}\n")

    deadline = time.monotonic() + START_SECONDS
    while answers(port) != http.client.OK:
        if process.poll() is not None or time.monotonic() > deadline:
            ended = process.returncode
            if read_pid_file(port) is not None:  # somebody else may have stopped it meanwhile
                stop(port)
            reason = "was not ready in time" if ended is None else f"ended with {ended}"
            raise EngineError(f"{name} {reason}, see {log}")
        time.sleep(0.5)
    return process.pid


def stop(port: int) -> None:
    """Stop the engine of a port with every process of its session."""
    recorded = read_pid_file(port)
    if recorded is None:
        raise EngineError(f"no engine was started on port {port}")
    pid, started, _ = recorded
    # A leader with another start time is a stranger that was given the same pid later.
    if start_time(pid) in (started, None):
        if start_time(pid) is not None:
            os.kill(pid, signal.SIGTERM)  # the leader first: it takes its children along
            wait_until_empty(pid)
        for member in session_members(pid):
            os.kill(member, signal.SIGKILL)
        if not wait_until_empty(pid):
            raise EngineError(
                f"processes of the engine on port {port} are left: {list(session_members(pid))}"
            )
    pid_file(port).unlink()


def running() -> Iterator[tuple[int, int, str]]:
    """Yield port, pid and name of the engines that were started and not stopped."""
    for file in sorted(RUN.glob("*.pid")):
        recorded = read_pid_file(int(file.stem))
        if recorded is not None:
            yield int(file.stem), recorded[0], recorded[2]


def pid_file(port: int) -> Path:
    """Return where the pid of a port's engine is kept."""
    return RUN / f"{port}.pid"


def read_pid_file(port: int) -> tuple[int, int, str] | None:
    """Return pid, start time and name of a port's engine, None when there is none."""
    try:
        pid, started, name = pid_file(port).read_text().split()
    except FileNotFoundError:
        return None
    return int(pid), int(started), name


def answers(port: int) -> int | None:
    """Return the status of GET /health, None when nobody listens."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def stat_fields(pid: int) -> list[str] | None:
    """Return /proc/PID/stat from the state on, None for a process that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields


def start_time(pid: int) -> int | None:
    """Return when a living process started, in clock ticks since boot."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[19])


def session_members(session: int) -> Iterator[int]:
    """Yield the living processes of a session."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            fields = stat_fields(int(entry.name))
            if fields is not None and int(fields[3]) == session:
                yield int(entry.name)


def wait_until_empty(session: int) -> bool:
    """Wait for the last process of a session to end; return whether it did in time."""
    deadline = time.monotonic() + STOP_SECONDS
    while any(session_members(session)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    start_parser = commands.add_parser("start", help="start an engine and wait until it is ready")
    start_parser.add_argument("name", choices=ENGINES)
    start_parser.add_argument("port", type=int)
    start_parser.add_argument("--nice", type=int, default=0, help="give way to others")
    start_parser.add_argument("extra", nargs="*", help="more options for the engine, after --")
    stop_parser = commands.add_parser("stop", help="stop engines and everything they started")
    stop_parser.add_argument("ports", nargs="+", type=int, metavar="port")
    commands.add_parser("list", help="show the engines that were started and not stopped")
    return parser.parse_args()


def main() -> None:
    """Run the command named on the command line."""
    arguments = parse()
    if arguments.command == "start":
        began = time.monotonic()
        pid = start(arguments.name, arguments.port, arguments.extra, nice=arguments.nice)
        seconds = time.monotonic() - began
        print(f"{arguments.name} is ready on {HOST}:{arguments.port} after {seconds:.0f} s, pid {pid}")
    elif arguments.command == "stop":
        for port in arguments.ports:
            stop(port)
            print(f"stopped {port}")
    else:
        for port, pid, name in running():
            print(f"{port} {name} pid {pid} health {answers(port)}")


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(f"engines: {error}")
