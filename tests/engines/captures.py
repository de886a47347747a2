"""Capture the pages of a real vLLM in states that are rare, for tests/captures/vllm.

    python captures.py data-parallel-2 8150   prints the command line and what is special, writes the files

Each scene starts one engine with its options, brings it into its states and saves, for each, /metrics as
0.32.0-STATE.metrics; /v1/models goes into 0.32.0-SCENE.models.json.
"""

from __future__ import annotations

import argparse
import http.client
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import engines
from crowd import Crowd, Shape
from load import WATCH_TIMEOUT, exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = Path(__file__).parent.parent / "captures" / "vllm"
PREFIX = "0.32.0"
NICE = 10


@dataclass(frozen=True)
class Scene:
    """An engine with its options, and the states it is brought into: each yields the name of one to save."""

    act: Callable[[int], Iterator[str]]
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    engine: str = "vllm-uniform"


def data_parallel(port: int) -> Iterator[str]:
    """Load two engines behind one address: a series each, and num_gpu_blocks their sum."""
    yield "data-parallel-2-idle"
    with loaded(port, 6, Shape(200, 700)):
        yield "data-parallel-2-six-running"


def shared_prefix(port: int) -> Iterator[str]:
    """Send one prompt four times: its blocks are held once, and read as free afterwards."""
    crowd = Crowd(port)
    prompt = list(range(256)) * 3
    with loaded(port, 0, Shape(1, 1), crowd=crowd):
        for _ in range(4):
            crowd.send_prompt(prompt, 250)
            time.sleep(1.0)
        yield "prefix-shared-two-running"
    time.sleep(1.0)
    yield "prefix-shared-after"


def paused(port: int) -> Iterator[str]:
    """Pause the server, then put it to sleep: at level 0 requests and memory stay, nothing is scheduled.

    Levels 1 and 2 give the memory back and need a GPU.
    """
    with loaded(port, 3, Shape(100, 500)):
        command(port, "/pause?mode=keep")
        yield "paused-three-running"
        command(port, "/resume")
        command(port, "/sleep?level=0&mode=keep")
        yield "asleep-level-0-three-running"
        command(port, "/wake_up")


def command(port: int, path: str, body: object = None) -> None:
    """Post to an endpoint that changes the server."""
    status, answer = exchange(port, "POST", path, body, timeout=60)
    if status != http.client.OK:
        raise SystemExit(f"{path} answers {status}: {answer.decode(errors='replace')}")


def aliases(port: int) -> Iterator[str]:
    """Load a server of two names: the metrics know the first only, /v1/models has a card for each."""
    with loaded(port, 2, Shape(100, 600)):
        yield "aliases-two-running"


def api_servers(port: int) -> Iterator[str]:
    """Load two API servers of one engine: no process series, no _created, sums over the servers' files."""
    yield "api-servers-2-idle"
    with loaded(port, 6, Shape(200, 700)):
        yield "api-servers-2-six-sent"


def waiting(port: int) -> Iterator[str]:
    """Send more requests than there are slots: they wait although the pool has room."""
    with loaded(port, 7, Shape(30, 600)):
        yield "slots-full-four-running-three-waiting"


def adapter(port: int) -> Iterator[str]:
    """Load a model and its LoRA adapter: one series for both, and a card each on /v1/models."""
    make_adapter = Path(__file__).with_name("models.py")
    python = engines.CACHE / "vllm" / "bin" / "python"
    subprocess.run([python, make_adapter, "lora", ADAPTER], check=True)
    command(port, "/v1/load_lora_adapter", {"lora_name": "tiny-tuned", "lora_path": str(ADAPTER)})
    crowd = Crowd(port)
    tuned = Crowd(port, model="tiny-tuned")
    with loaded(port, 1, Shape(100, 600), crowd=crowd), loaded(port, 2, Shape(100, 600), crowd=tuned):
        yield "lora-running"


def grammar(port: int) -> Iterator[str]:
    """Ask for an answer whose grammar takes long to compile: the request waits with reason deferred."""
    crowd = Crowd(port, extra={"structured_outputs": {"regex": SLOW_REGEX}})
    crowd.send(1, Shape(30, 20))
    deadline = time.monotonic() + WATCH_TIMEOUT
    while time.monotonic() < deadline:
        _, body = exchange(port, "GET", "/metrics", timeout=WATCH_TIMEOUT)
        if re.search(rb'reason="deferred"\} [1-9]', body):
            break
    yield "grammar-one-deferred"
    crowd.outcomes()


SLOW_REGEX = "(a|b|c|d|ef|gh|ij){1,4000}(x|y|zz){1,4000}"
ADAPTER = engines.CACHE / "models" / "lora"

SCENES = {
    "data-parallel-2": Scene(data_parallel, ("--data-parallel-size=2",)),
    "prefix-shared": Scene(shared_prefix),
    "paused": Scene(paused, (), {"VLLM_SERVER_DEV_MODE": "1"}),
    "aliases": Scene(aliases, ("--served-model-name", "tiny-first", "tiny-second")),
    "api-servers-2": Scene(api_servers, ("--api-server-count=2",)),
    "slots-full": Scene(waiting, ("--max-num-seqs=4",)),
    "lora": Scene(adapter, ("--enable-lora",), {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}),
    "grammar": Scene(grammar),
}


class loaded:  # noqa: N801 - read as a verb, like a function
    """Keep a load on the engine until the block ends; the block begins when it is under way."""

    def __init__(self, port: int, count: int, shape: Shape, *, crowd: Crowd | None = None) -> None:
        self.crowd = crowd or Crowd(port)
        self.count, self.shape = count, shape

    def __enter__(self) -> None:
        self.crowd.send(self.count, self.shape)
        if self.count:
            time.sleep(3.0)

    def __exit__(self, *_: object) -> None:
        self.crowd.outcomes()


def save(port: int, scene: str, state: str | None) -> None:
    """Save a page of the engine; no state: its models."""
    path = "/v1/models" if state is None else "/metrics"
    _, body = exchange(port, "GET", path, timeout=WATCH_TIMEOUT)
    name = f"{PREFIX}-{scene}.models.json" if state is None else f"{PREFIX}-{state}.metrics"
    body = body.replace(str(engines.CACHE).encode(), b"")  # this machine's own folder
    (FOLDER / name).write_bytes(body)
    shown = [line for line in body.decode().splitlines() if line.startswith(SHOWN)]
    print(name, *shown, sep="\n    ", flush=True)


SHOWN = (
    "vllm:num_requests_",
    "vllm:lora_requests_info",
    "vllm:kv_cache_usage_perc",
    "vllm:engine_sleep_state",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "process_start_time_seconds",
)


def main() -> int:
    """Capture the scene named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("port", type=int)
    arguments = parser.parse_args()
    scene = SCENES[arguments.scene]
    engines.start(scene.engine, arguments.port, list(scene.options), nice=NICE, variables=scene.variables)
    try:
        print(arguments.scene, dict(scene.variables), *scene.options)
        for state in scene.act(arguments.port):
            save(arguments.port, arguments.scene, state)
        save(arguments.port, arguments.scene, None)
    finally:
        engines.stop(arguments.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
