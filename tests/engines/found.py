"""Prove on a real llama-server and a real vLLM that both are found with nothing configured.

    python found.py 8250        ports from this one on; about two minutes

The daemon runs with no arguments but a free port to serve on and a shorter interval. The llama-server is
there before it, the vLLM starts beside it; a router's child comes and goes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import engines
from llamacpp_care import cards
from load import exchange
from verdict import FAIL, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERVAL_SECONDS = 1.0
PATIENCE_SECONDS = 60.0


class Daemon:
    """A daemon that was told nothing."""

    def __init__(self, url: str, log: Path) -> None:
        self.port, self.log = int(url.rpartition(":")[2]), log

    def document(self) -> dict[str, Any]:
        """Return its snapshot; empty before the first poll."""
        status, body = exchange(self.port, "GET", "/api/v1/snapshot", timeout=5)
        return json.loads(body) if status == http.client.OK else {}

    def server(self, name: str) -> dict[str, Any]:
        """Return what it shows of a server; empty where it shows none."""
        document = self.document()
        servers = {server["target"]["name"]: server for server in document.get("servers", ())}
        reasons = {
            source["target"]: source["reason"]
            for source in document.get("sources", ())
            if source["source"] == "engine"
        }
        found = servers.get(name)
        return {**found, "sequence": document["sequence"], "reason": reasons[name]} if found else {}

    def until(self, condition: Callable[[], object]) -> bool:
        """Wait for a condition; return whether it came true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(INTERVAL_SECONDS / 10)
        return True

    def read(self, name: str) -> dict[str, Any]:
        """Wait until a server is read; return it as in the first snapshot seen with its reading."""
        self.until(lambda: self.server(name).get("reading"))
        return self.server(name)


@contextlib.contextmanager
def daemon() -> Iterator[Daemon]:
    """Run the daemon with discovery and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        line = [
            "run",
            "--listen",
            "127.0.0.1:0",
            "--interval",
            f"{INTERVAL_SECONDS:.0f}s",
            "--history",
            "off",
        ]
        with log.open("w") as output:
            process = subprocess.Popen([sys.executable, "-m", "kvwatch", *line], stderr=output)
        try:
            for _ in range(200):
                if found := re.search(r"listens on (\S+)/", log.read_text()):
                    break
                time.sleep(0.1)
            else:
                raise SystemExit(log.read_text())
            yield Daemon(found.group(1), log)
        finally:
            process.terminate()
            process.wait()


def facts(server: dict[str, Any]) -> str:
    """Say what is shown of a server."""
    if not server.get("reading"):
        return f"not read: {server.get('reason')}"
    target, reading = server["target"], server["reading"]
    empty = [rank["full"] and rank["full"]["empty"] for rank in server["ranks"]]
    return (
        f"{reading['engine']} {reading['version']}, model {reading['model']}, process {target['pid']}, "
        f"full length {server['full_length_tokens']}, requests {target['request_limit']}, fit empty {empty}"
    )


def flags_hold(server: dict[str, Any], engine: str) -> dict[str, bool]:
    """Return what must be known of the engines of engines.py from pages, command line and model file."""
    if not server.get("reading"):
        return {"it was read": False}
    target, reading = server["target"], server["reading"]
    common = {
        "it says that it was found": target["discovered"] is True,
        "its engine is known": reading["engine"] == engine,
        "its fits are known": all(rank["full"] is not None for rank in server["ranks"]),
        "its model file was read": server["model_hash"] is not None,
    }
    if engine == "vllm":
        return common | {
            "its model": reading["model"] == "tiny-uniform",
            "--max-num-seqs=16": target["request_limit"] == 16,
            "--max-model-len=1024": server["full_length_tokens"] == 1024,
        }
    return common | {
        "its model": str(reading["model"]).endswith("tiny.gguf"),
        "-np 4": target["request_limit"] == 4,
        "-c 8192": target["pool_tokens"] == 8192,
        "a split pool": target["kv_unified"] is False,
    }


def prove_both(port: int) -> Iterator[Verdict]:
    """Watch a llama-server that is there, a vLLM that loads, listens and goes, and both with one look."""
    llama, vllm = (f"{engines.HOST}:{number}" for number in (port, port + 1))
    engines.start("llama-split", port, [], nice=0)
    try:
        with daemon() as watch:
            server = watch.read(llama)
            yield judge(
                "a llama-server is found within two polls",
                {"in the second poll": server.get("sequence", 99) <= 2, **flags_hold(server, "llamacpp")},
                f"poll {server.get('sequence')}: {facts(server)}",
            )
            reasons: list[str | None] = []
            ready = threading.Event()
            starting = threading.Thread(target=start_vllm, args=(port + 1, ready))
            starting.start()
            while not ready.wait(INTERVAL_SECONDS / 4):
                reasons.append(watch.server(vllm).get("reason", "not there"))
            before = watch.document()["sequence"]
            server = watch.read(vllm)
            starting.join()
            stages = list(dict.fromkeys(reasons))
            yield judge(
                "a vLLM is found while it loads, and read within two polls after",
                {
                    "it loads": "loading" in stages,
                    "never refused, never misread": set(stages) <= {"not there", "loading", None},
                    # The poll that was under way when it got ready counts as none.
                    "two polls": server.get("sequence", 1 << 60) <= before + 3,
                    **flags_hold(server, "vllm"),
                },
                f"reasons {stages}, poll {server.get('sequence', 0) - before} after: {facts(server)}",
            )
            yield judge_once(llama, vllm)
            engines.stop(port + 1)
            gone = watch.until(lambda: not watch.server(vllm))
            yield judge(
                "a vLLM that ends is gone with its process",
                {"gone": gone, "the other one stays": bool(watch.server(llama).get("reading"))},
                "; ".join(line for line in watch.log.read_text().splitlines() if "server 127" in line)[-300:],
            )
    finally:
        for number in (port, port + 1):
            with contextlib.suppress(engines.EngineError):
                engines.stop(number)


def start_vllm(port: int, ready: threading.Event) -> None:
    """Start a vLLM; say when it answers."""
    try:
        engines.start("vllm-uniform", port, [], nice=0)
    finally:
        ready.set()


def judge_once(llama: str, vllm: str) -> Verdict:
    """Look at both with one command."""
    line = [sys.executable, "-m", "kvwatch", "once", "--json"]
    answer = subprocess.run(line, capture_output=True, text=True, check=False)
    servers = {server["target"]["name"]: server for server in json.loads(answer.stdout)["servers"]}
    found = [(servers.get(llama, {}), "llamacpp"), (servers.get(vllm, {}), "vllm")]
    claims = {
        f"{engine}, {claim}": holds
        for server, engine in found
        for claim, holds in flags_hold(server, engine).items()
    }
    return judge(
        "kvwatch once reads both with no arguments", claims, "; ".join(facts(server) for server, _ in found)
    )


def prove_router(port: int) -> Iterator[Verdict]:
    """Load and unload a router's model: its child is a server while it is there, the router is none."""
    programs, model = engines.CACHE / "llama" / "bin", engines.CACHE / "models" / "tiny.gguf"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "alpha.gguf").symlink_to(model)
        options = ["--models-dir", folder, "--metrics", "--slots", "--threads", "1", "-c", "2048"]
        process = subprocess.Popen(
            [str(programs / "llama-server"), "--host", engines.HOST, "--port", str(port), *options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            with daemon() as watch:
                watch.until(lambda: engines.answers(port) == http.client.OK)
                children: list[str] = []
                gone: list[bool] = []
                for _ in range(2):
                    exchange(port, "POST", "/models/load", {"model": "alpha"}, timeout=60)
                    watch.until(lambda: cards(port)["alpha"]["value"] == "loaded")
                    args = cards(port)["alpha"]["args"]
                    children.append(f"{engines.HOST}:{args[args.index('--port') + 1]}")
                    server = watch.read(children[-1])
                    exchange(port, "POST", "/models/unload", {"model": "alpha"}, timeout=60)
                    gone.append(watch.until(lambda: not watch.server(children[-1])))
                yield judge(
                    "a router's child is found at each load, on its own port",
                    {
                        "it was read": bool(server.get("reading")),
                        "two ports": len(set(children)) == 2,
                        "gone when unloaded": gone == [True, True],
                        "the router is no server": not watch.server(f"{engines.HOST}:{port}"),
                        "nothing loaded it but us": cards(port)["alpha"]["value"] == "unloaded",
                    },
                    f"children {children}: {facts(server)}",
                )
        finally:
            process.terminate()
            process.wait(timeout=30)


def main() -> int:
    """Run the proofs on ports from the one named on."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8250
    verdicts = [*prove_both(port), *prove_router(port + 2)]
    return int(any(verdict.outcome == FAIL for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
