"""Put a bounded load on an engine on this machine and count what came back.

    python load.py 8100 --requests 24 --prompt 200 --generate 700 --watch 1

Every request is a prompt of random bytes as token numbers, so its length is exact and none shares
a prefix with another, and generates exactly so many tokens (ignore_eos). The engine behind the
port is recognised: vLLM is asked on /v1/completions, llama-server on /completion.
With --watch the gauges that show the load are printed while it runs. Exits with 1 unless every
request was answered with 200.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import statistics
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"  # the only host there is: nothing but a local test engine gets this load
MOST_REQUESTS = 256
MOST_TOKENS = 32_768
MOST_SECONDS = 1_800.0
WATCH_TIMEOUT = 10.0

WATCHED = re.compile(
    r"^(?:vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|num_preemptions_total)"
    r"|llamacpp:(requests_processing|requests_deferred|n_tokens_max))(?:\{[^}]*\})? (\S+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Answer:
    """What became of one request."""

    outcome: str  # HTTP status, or the name of the exception
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Target:
    """An engine that takes completions."""

    port: int
    model: str
    is_vllm: bool
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Return where this engine takes completions."""
        return "/v1/completions" if self.is_vllm else "/completion"

    def body(self, prompt: list[int], generate: int) -> dict[str, Any]:
        """Return a request for exactly so many tokens in this engine's words."""
        if self.is_vllm:
            return {
                "model": self.model,
                "prompt": prompt,
                "max_tokens": generate,
                "ignore_eos": True,
                **self.extra,
            }
        return {"prompt": prompt, "n_predict": generate, "ignore_eos": True, "cache_prompt": False}


def exchange(port: int, method: str, path: str, body: object = None, *, timeout: float) -> tuple[int, bytes]:
    """Make one HTTP request and return status and body."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def find_target(port: int) -> Target:
    """Ask the engine on a port what it is and which model it serves."""
    _, body = exchange(port, "GET", "/v1/models", timeout=WATCH_TIMEOUT)
    card = json.loads(body)["data"][0]
    return Target(port, card["id"], is_vllm=card["owned_by"] == "vllm")


def ask(target: Target, prompt: list[int], generate: int, deadline: float) -> Answer:
    """Send one completion and wait for its end, but not past the deadline."""
    began = time.monotonic()
    outcome, message = "not sent", ""
    if deadline > began:
        try:
            status, body = exchange(
                target.port, "POST", target.path, target.body(prompt, generate), timeout=deadline - began
            )
        except (OSError, http.client.HTTPException) as error:
            outcome = type(error).__name__
        else:
            outcome = str(status)
            message = "" if status == http.client.OK else body.decode(errors="replace")[:200]
    return Answer(outcome, time.monotonic() - began, message)


def gauges(target: Target) -> str:
    """Return the values of /metrics that show the load, on one line."""
    try:
        _, body = exchange(target.port, "GET", "/metrics", timeout=WATCH_TIMEOUT)
        values = {vllm or llama: float(value) for vllm, llama, value in WATCHED.findall(body.decode())}
        if not target.is_vllm:
            _, body = exchange(target.port, "GET", "/slots", timeout=WATCH_TIMEOUT)
            slots = json.loads(body)
            values["busy_slots"] = sum(slot["is_processing"] for slot in slots)
            values["slot_tokens"] = sum(slot["n_prompt_tokens"] for slot in slots)
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {type(error).__name__}"
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def watch(target: Target, interval: float, over: threading.Event) -> None:
    """Print the gauges until the load is over."""
    began = time.monotonic()
    while not over.wait(interval):
        print(f"{time.monotonic() - began:6.1f} s  {gauges(target)}", flush=True)


def run(target: Target, arguments: argparse.Namespace) -> list[Answer]:
    """Send all requests, so many at a time, and return their answers."""
    generator = random.Random(arguments.seed)  # noqa: S311 - no secret
    prompts = [generator.choices(range(256), k=arguments.prompt) for _ in range(arguments.requests)]
    deadline = time.monotonic() + arguments.timeout
    over = threading.Event()
    watcher = threading.Thread(target=watch, args=(target, arguments.watch, over), daemon=True)
    if arguments.watch:
        watcher.start()
    with ThreadPoolExecutor(arguments.concurrency or arguments.requests) as pool:
        answers = list(pool.map(lambda prompt: ask(target, prompt, arguments.generate, deadline), prompts))
    over.set()
    if arguments.watch:
        watcher.join()
    return answers


def report(answers: list[Answer]) -> str:
    """Return the counts of the outcomes, the durations and one message of each kind of failure."""
    seconds = sorted(answer.seconds for answer in answers)
    counts = Counter(answer.outcome for answer in answers)
    lines = [
        "outcomes  " + "  ".join(f"{outcome}: {count}" for outcome, count in sorted(counts.items())),
        f"seconds   min {seconds[0]:.2f}  median {statistics.median(seconds):.2f}  max {seconds[-1]:.2f}",
    ]
    messages = {answer.outcome: answer.message for answer in answers if answer.message}
    lines += [f"{outcome}       {message}" for outcome, message in sorted(messages.items())]
    return "\n".join(lines)


def up_to(limit: int) -> Callable[[str], int]:
    """Return a parser for whole numbers from 1 to the limit."""

    def parse(text: str) -> int:
        value = int(text)
        if not 1 <= value <= limit:
            raise argparse.ArgumentTypeError(f"must be between 1 and {limit}")
        return value

    return parse


def main() -> int:
    """Run the load described on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=up_to(65_535), help="of an engine on this machine")
    parser.add_argument("--requests", type=up_to(MOST_REQUESTS), default=8, help="how many in all")
    parser.add_argument("--concurrency", type=up_to(MOST_REQUESTS), help="how many at a time (all)")
    parser.add_argument("--prompt", type=up_to(MOST_TOKENS), default=200, help="prompt tokens of each")
    parser.add_argument("--generate", type=up_to(MOST_TOKENS), default=200, help="generated tokens of each")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the whole load")
    parser.add_argument(
        "--watch", type=float, default=0.0, metavar="SECONDS", help="print the gauges this often"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    arguments = parser.parse_args()
    arguments.timeout = min(arguments.timeout, MOST_SECONDS)

    answers = run(find_target(arguments.port), arguments)
    print(report(answers))
    return 0 if all(answer.outcome == str(http.client.OK) for answer in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
