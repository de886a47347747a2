"""kvwatch and its peers, each run over the stand-in driver and read into the same figures."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvwatch-bench"
PACKAGES = {
    "nvitop": "nvitop-exporter==1.7.2",
    "nvitop-exporter": "nvitop-exporter==1.7.2",
    "gpustat": "gpustat==1.1.1",
}
MIB = 1 << 20
PATIENCE_SECONDS = 20.0

NVITOP_READER = """
import json, logging
logging.disable(logging.CRITICAL)
import nvitop

def number(value):
    return value if isinstance(value, int) else None

for device in nvitop.Device.all():
    for one in [device, *(device.mig_devices() if device.is_mig_mode_enabled() else [])]:
        print(json.dumps({
            "uuid": one.uuid(),
            "total": number(one.memory_total()),
            "used": number(one.memory_used()),
            "free": number(one.memory_free()),
            "processes": {pid: number(process.gpu_memory()) for pid, process in one.processes().items()},
        }))
"""
"""nvitop prints rounded sizes: its own library, which its screen shows, says bytes."""


@dataclass(slots=True)
class Figures:
    """One device, in bytes; None is not shown."""

    total: int | None = None
    used: int | None = None
    free: int | None = None
    processes: dict[str, int | None] = field(default_factory=dict)


Shown = dict[str, Figures]
"""By the device's UUID."""


def program(name: str) -> Path | None:
    """Return the folder of a peer's programs, installed on first use; None where that fails."""
    package = PACKAGES[name]
    environment = CACHE / package.replace("==", "-")
    marker = environment / "bin" / package.partition("==")[0]
    if not marker.exists():
        commands = (
            [sys.executable, "-m", "venv", str(environment)],
            [str(environment / "bin/pip"), "install", "--quiet", package],
        )
        with contextlib.suppress(subprocess.SubprocessError):
            for command in commands:
                subprocess.run(command, check=True, capture_output=True, timeout=120)
    return marker.parent if marker.exists() else None


def nvitop(folder: Path, environment: Mapping[str, str]) -> Shown:
    """Return what nvitop's library says."""
    shown: Shown = {}
    for line in _output([str(folder / "python"), "-c", NVITOP_READER], environment).splitlines():
        one = json.loads(line)
        uuid = one.pop("uuid")
        shown[uuid] = Figures(**one)
    return shown


def gpustat(folder: Path, environment: Mapping[str, str]) -> Shown:
    """Return what gpustat prints: whole MiB, never what is free; a card that is lost has no UUID."""
    text = _output([str(folder / "gpustat"), "--json"], environment)
    shown: Shown = {}
    for gpu in json.loads(text)["gpus"] if text else []:
        if "uuid" not in gpu:
            continue
        shown[gpu["uuid"]] = Figures(
            total=_bytes(gpu.get("memory.total")),
            used=_bytes(gpu.get("memory.used")),
            processes={
                str(process["pid"]): _bytes(process["gpu_memory_usage"])
                for process in gpu.get("processes") or []
            },
        )
    return shown


def nvitop_exporter(folder: Path, environment: Mapping[str, str]) -> Shown:
    """Return what nvitop-exporter exports after its first updates: MiB, NaN where it does not know."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shown: Shown = {}
    with _running([str(folder / "nvitop-exporter"), "--port", str(port)], environment):
        text = _settled(f"http://127.0.0.1:{port}/metrics", "gpu_memory_total_MiB{")
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            uuid = sample.labels.get("uuid", "")
            value = None if math.isnan(sample.value) else round(sample.value * MIB)
            figures = shown.setdefault(uuid, Figures()) if uuid else Figures()
            if sample.name == "process_gpu_memory_MiB":
                figures.processes[sample.labels["pid"]] = value
            elif sample.name in ("gpu_memory_total_MiB", "gpu_memory_used_MiB", "gpu_memory_free_MiB"):
                setattr(figures, sample.name.split("_")[2], value)
    return shown


def kvwatch(environment: Mapping[str, str], folder: Path) -> tuple[Shown, dict[str, str]]:
    """Return what the daemon's /metrics says, and the reasons of the devices that it cannot read whole."""
    file = folder / "kvwatch.yaml"
    file.write_text(
        "listen: 127.0.0.1:0\ninterval: 1s\ndiscovery: false\nnvml: {enabled: true, deadline: 5s}\n"
    )
    shown: Shown = {}
    reasons: dict[str, str] = {}
    command = [sys.executable, "-m", "kvwatch", "run", "--config", str(file)]
    with _running(command, {**environment, "PYTHONPATH": str(ROOT)}, folder / "kvwatch.log") as process:
        text = _settled(_address(folder / "kvwatch.log", process) + "metrics", "kvwatch_source_up{")
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            device = sample.labels.get("device", "")
            figures = shown.setdefault(device, Figures()) if device else Figures()
            name = sample.name.removeprefix("kvwatch_")
            if name == "process_info":
                figures.processes.setdefault(sample.labels["pid"], None)
            elif name == "process_memory_bytes":
                figures.processes[sample.labels["pid"]] = int(sample.value)
            elif name.startswith(("device_memory_total", "device_memory_used", "device_memory_free")):
                setattr(figures, name.split("_")[2], int(sample.value))
            elif name == "source_reason":
                reasons[sample.labels["target"]] = sample.labels["reason"]
    return shown, reasons


def _bytes(mebibytes: int | None) -> int | None:
    return None if mebibytes is None else mebibytes * MIB


def _output(command: list[str], environment: Mapping[str, str]) -> str:
    """Return a program's standard output; nothing where it fails, whatever it had printed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        return done.stdout if done.returncode == 0 else ""
    return ""


@contextlib.contextmanager
def _running(
    command: list[str], environment: Mapping[str, str], log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with (log or Path(os.devnull)).open("w") as stderr:
        process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < until:
        for line in log.read_text().splitlines():
            if "listens on" in line:
                return line.split()[-1]
        time.sleep(0.05)
    sys.exit(f"the daemon does not start:\n{log.read_text()}")


def _settled(url: str, mark: str) -> str:
    """Return a page a second and a half after it first had what is waited for."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + PATIENCE_SECONDS
    text = ""
    while mark not in text and time.monotonic() < until:
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            text = opener.open(url, timeout=5).read().decode()
    time.sleep(1.5)
    with contextlib.suppress(OSError):
        text = opener.open(url, timeout=5).read().decode()
    return text
