"""Prove on a real llama-server that watching it does no harm, and that what it promises holds.

    python llamacpp_care.py                    all proofs, half a minute each; exit status 1 when one fails
    python llamacpp_care.py asleep router      only these
    python llamacpp_care.py --captures FOLDER  keeps the pages of the states it went through

The daemon runs as its own process (`python -m kvwatch run`), every 200 ms, and reaches the engine through a
witness that writes down each path it asks for.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import engines
from crowd import Crowd, Shape
from load import exchange
from verdict import FAIL, Verdict, judge
from witnessed import INTERVAL_SECONDS, PATIENCE_SECONDS, watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLLS = 20
SLEEP_SECONDS = 2
PORT = 8330
ROUTER_PORT = 8331


@contextlib.contextmanager
def engine(name: str, *options: str) -> Iterator[int]:
    """Run an engine of engines.py until the block ends."""
    print(f"-- {name} {' '.join(options)}", flush=True)
    engines.start(name, PORT, list(options), nice=0)
    try:
        yield PORT
    finally:
        engines.stop(PORT)


class Keeper:
    """Keeps pages of the engine as captures, without the machine's own paths."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def keep(self, state: str, port: int, *paths: str) -> None:
        """Fetch pages and write each under its state's name."""
        if self.folder is None:
            return
        for path in paths:
            body = exchange(port, "GET", path, timeout=PATIENCE_SECONDS)[1].decode()
            body = re.sub(r'/[^"\s=]*/(?=[^"\s/=]*(?:llama-server|\.gguf))', "", body)
            end = ".metrics" if path == "/metrics" else f"{path.replace('/', '.')}.json"
            (self.folder / f"b11434-{state}{end}").write_text(body)


def asleep(port: int) -> bool:
    """Tell whether the engine sleeps; asking this wakes nobody."""
    return bool(json.loads(exchange(port, "GET", "/props", timeout=5)[1])["is_sleeping"])


def prove_asleep(keeper: Keeper) -> Iterator[Verdict]:
    """Watch an idle server with a sleep timer: it falls asleep meanwhile, and stays asleep."""
    with engine("llama-unified", "--sleep-idle-seconds", str(SLEEP_SECONDS)) as port:
        with watching(port, ", engine: llamacpp, pool_tokens: 4096, kv_unified: true") as daemon:
            crowd = Crowd(port)
            crowd.send(1, Shape(prompt=50, generate=50))
            answered = crowd.outcomes()
            began = time.monotonic()
            fell = daemon.until(lambda: daemon.value("server_sleeping") == 1, seconds=SLEEP_SECONDS + 10)
            seconds = time.monotonic() - began
            asked = Counter(daemon.polls(POLLS))
            yield judge(
                "falls asleep under polling and stays asleep",
                {
                    "answered while awake": set(answered) == {"200"},
                    "fell asleep": fell,
                    "still asleep": asleep(port),
                    "asked nothing but /props while asleep": set(asked) == {"/props"},
                    "requests are unknown, not 0": daemon.value("requests_running") is None,
                    "fits are absent": daemon.value("full_length_requests_fit_now") is None,
                },
                f"asleep {seconds:.1f} s after its last request, {dict(asked)} asked since",
            )
        keeper.keep("asleep", port, "/props", "/metrics")
        with watching(port) as daemon:
            asked = Counter(daemon.polls(POLLS))
            yield judge(
                "a sleeper whose engine must be found out is not woken",
                {
                    "still asleep": asleep(port),
                    "asked nothing but /props": set(asked) == {"/props"},
                    "seen as asleep": daemon.value("server_sleeping") == 1,
                    "recognised": 'engine="llamacpp"' in daemon.text(),
                },
                f"{dict(asked)} asked",
            )


@contextlib.contextmanager
def router() -> Iterator[tuple[int, Path]]:
    """Run a router with two models of which one may be loaded at a time; yields its port and log."""
    programs = engines.CACHE / "llama" / "bin"
    model = engines.CACHE / "models" / "tiny.gguf"
    maker = Path(__file__).with_name("models.py")
    subprocess.run([str(programs / "python"), str(maker), "gguf", str(model)], check=True)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        models.mkdir()
        for name in ("alpha", "beta"):
            (models / f"{name}.gguf").symlink_to(model)
        log = Path(folder) / "log"
        options = ["--models-max", "1", "--metrics", "--slots", "--threads", "1", "-c", "2048"]
        print(f"-- llama-server --models-dir DIR {' '.join(options)}", flush=True)
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(programs / "llama-server"), "--models-dir", str(models), "--host", engines.HOST,
                 "--port", str(ROUTER_PORT), *options],
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            while engines.answers(ROUTER_PORT) != http.client.OK:
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.2)
            yield ROUTER_PORT, log
        finally:
            process.terminate()
            process.wait(timeout=30)


def cards(port: int) -> dict[str, dict[str, Any]]:
    """Return the router's models by name."""
    data = json.loads(exchange(port, "GET", "/models", timeout=5)[1])["data"]
    return {card["id"]: card["status"] for card in data}


def prove_router(keeper: Keeper) -> Iterator[Verdict]:
    """Watching a router loads and evicts nothing; its children are servers of their own."""
    with router() as (port, log):
        with watching(port) as daemon:
            asked = Counter(daemon.polls(POLLS))
            states = {name: status["value"] for name, status in cards(port).items()}
            yield judge(
                "an idle router loads nothing under polling",
                {
                    "both unloaded": states == {"alpha": "unloaded", "beta": "unloaded"},
                    "no child was started": log.read_text().count("spawning server instance with name=") == 0,
                    "asked for no model's page": set(asked) == {"/props", "/models"},
                },
                f"{states}, {dict(asked)} asked",
            )
            exchange(port, "POST", "/models/load", {"model": "alpha"}, timeout=60)
            daemon.until(lambda: cards(port)["alpha"]["value"] == "loaded")
            keeper.keep("router", port, "/props", "/models")
            args = cards(port)["alpha"]["args"]
            child = int(args[args.index("--port") + 1])
            asked = Counter(daemon.polls(POLLS))
            states = {name: status["value"] for name, status in cards(port).items()}
            debug = exchange(int(daemon.url.rpartition(":")[2]), "GET", "/debug/target?server=s", timeout=5)
            detail = json.loads(debug[1])["outcome"]["detail"]
            yield judge(
                "a router evicts nothing under polling and names its children",
                {
                    "alpha stays loaded, beta unloaded": states == {"alpha": "loaded", "beta": "unloaded"},
                    "one child was started": log.read_text().count("spawning server instance with name=")
                    == 1,
                    "asked for no model's page": set(asked) == {"/props", "/models"},
                    "the reason is not_supported": 'reason="not_supported"' in daemon.text(),
                    "the detail names the child": f"alpha at http://127.0.0.1:{child}" in detail,
                },
                f"{states}, {dict(asked)} asked; {detail}",
            )
        with watching(child, ", pool_tokens: 2048, kv_unified: true") as daemon:
            daemon.polls(POLLS)
            states = {name: status["value"] for name, status in cards(port).items()}
            yield judge(
                "a router's child is a server of its own",
                {
                    "its requests are known": daemon.value("requests_running") == 0,
                    "its fits are known": daemon.value("full_length_requests_fit_empty") == 1,
                    "nothing else was loaded": states == {"alpha": "loaded", "beta": "unloaded"},
                },
                f"fit_empty {daemon.value('full_length_requests_fit_empty')}, {states}",
            )


POOL, CAP = 1024, 512
SHARED = ("-c", str(POOL), "--kv-unified-per-slot", str(CAP))
FITS = (
    "full_length_requests_fit_now",
    "full_length_requests_fit_guaranteed",
    "requests_running",
    "kv_usage_ratio",
)

# One series for each name that is read off a live server's pages: a renamed one would be absent.
READ = (
    "requests_running",
    "requests_waiting",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "server_sleeping",
    "request_limit",
    "full_length_tokens",
    "kv_usage_ratio",
)


def prove_unified(keeper: Keeper) -> Iterator[Verdict]:
    """In a shared pool k full-length requests pass; one more kills them all, and the gauge said so before."""
    shape = Shape(prompt=200, generate=CAP - 200 - 2)
    with (
        engine("llama-unified", *SHARED) as port,
        watching(port, f", pool_tokens: {POOL}, kv_unified: true") as daemon,
    ):
        daemon.until(lambda: daemon.value(FITS[0]) is not None)
        k = int(daemon.value(FITS[0]) or 0)
        promised = daemon.value(FITS[1])
        worst = daemon.value("worst_case_demand_ratio")
        missing = re.findall(r"^kvwatch_engine_metric_missing\{.*", daemon.text(), re.MULTILINE)
        keeper.keep("capped-idle", port, "/props", "/slots", "/metrics")
        for more, expected in ((0, "200"), (1, "500")):
            crowd = Crowd(port, seed=more)
            crowd.send(k + more, shape, gap=0.0)
            daemon.until(lambda count=k + more: daemon.value("requests_running") == count)  # type: ignore[misc]
            keeper.keep(f"capped-{k + more}-running", port, "/slots", "/metrics")
            absent = [name for name in READ if daemon.value(name) is None]
            running = crowd.outcomes()
            yield judge(
                f"unified pool, {'k + 1' if more else 'k'} full-length requests",
                {
                    "k is the pool over the cap": k == POOL // CAP,
                    "as many were promised": promised == k,
                    "the worst case was said to be over the pool": (worst or 0) > 1,
                    f"every answer is {expected}": running == Counter({expected: k + more}),
                    "no series is missing": not missing and not absent,
                },
                f"k {k}, promised {promised}, worst case {worst}, {k + more} of {shape} tokens: "
                f"{dict(running)}",
            )
        keeper.keep("capped-after-failure", port, "/slots", "/metrics")


def prove_prompt(keeper: Keeper) -> Iterator[Verdict]:
    """While a long prompt is being read nobody knows where it ends, so a second place is not promised."""
    pool, cap = 3072, 2048
    with (
        engine(
            "llama-unified", "-c", str(pool), "--kv-unified-per-slot", str(cap), "-b", "64", "-ub", "64"
        ) as port,
        watching(port, f", pool_tokens: {pool}, kv_unified: true") as daemon,
    ):
        daemon.until(lambda: daemon.value(FITS[0]) is not None)
        keeper.keep("long-prompt-idle", port, "/props")
        crowd = Crowd(port)
        crowd.send(1, Shape(prompt=1950, generate=60))
        daemon.until(lambda: daemon.value("requests_running") == 1)
        keeper.keep("long-prompt-half-read", port, "/slots", "/metrics")
        samples = daemon.sampled(FITS, lambda: daemon.value("requests_running") == 0)
        # /metrics is read before /slots: at the very end it still counts a request that holds nothing now.
        busy = [sample for sample in samples if sample["requests_running"] and sample["kv_usage_ratio"] != 0]
        now = Counter(sample[FITS[0]] for sample in busy)
        promises = Counter(sample[FITS[1]] for sample in busy)
        yield judge(
            "a half-read prompt claims its whole slot",
            {
                "seen while it ran": len(busy) > 3,
                "nothing more was promised": set(promises) in ({0}, {0, None}),
                "answered": set(crowd.outcomes()) == {"200"},
            },
            f"{len(busy)} samples, fit_now {dict(now)}, fit_guaranteed {dict(promises)}",
        )


def prove_children(keeper: Keeper) -> Iterator[Verdict]:
    """Four completions of one prompt share its cells: their sum may exceed the pool, the usage may not."""
    with (
        engine("llama-unified") as port,
        watching(port, ", pool_tokens: 4096, kv_unified: true") as daemon,
    ):
        daemon.until(lambda: daemon.value(FITS[0]) is not None)
        keeper.keep("shared-prompt-idle", port, "/props")
        body = {"prompt": [7] * 1000, "n_predict": 400, "n_cmpl": 4, "ignore_eos": True}
        answers: list[int] = []
        thread = threading.Thread(
            target=lambda: answers.append(exchange(port, "POST", "/completion", body, timeout=120)[0])
        )
        thread.start()
        sums: list[int] = []
        usages: list[float | None] = []
        while thread.is_alive():
            slots = json.loads(exchange(port, "GET", "/slots", timeout=PATIENCE_SECONDS)[1])
            sums.append(sum(slot.get("n_prompt_tokens", 0) for slot in slots if slot["is_processing"]))
            if sums[-1] > 4096 and max(sums[:-1], default=0) <= 4096:
                keeper.keep("shared-prompt-four", port, "/slots", "/metrics")
            usages.append(daemon.value("kv_usage_ratio"))
            time.sleep(INTERVAL_SECONDS / 2)
        known = [usage for usage in usages if usage is not None]
        yield judge(
            "requests that share a prompt are counted at most as the pool",
            {
                "their sum exceeds the pool": max(sums) > 4096,
                "the usage does not": max(known) == 1,
                "answered": answers == [200],
            },
            f"sum of the slots {max(sums)} of 4096, usage at most {max(known)}",
        )


def prove_split(keeper: Keeper) -> Iterator[Verdict]:
    """Slots with cells of their own: idle slots are what fits, and one more waits instead of failing."""
    with (
        engine("llama-split", "-c", "4096") as port,
        watching(port, ", kv_unified: false") as daemon,
    ):
        daemon.until(lambda: daemon.value(FITS[0]) is not None)
        seen: dict[int, tuple[float | None, ...]] = {0: tuple(daemon.value(name) for name in FITS[:2])}
        keeper.keep("small-split-idle", port, "/props")
        shape = Shape(prompt=100, generate=800)
        crowd = Crowd(port)
        for count in range(1, 6):
            crowd.send(1, shape)
            daemon.until(
                lambda count=count: (
                    (daemon.value("requests_running") or 0) + (daemon.value("requests_waiting") or 0) == count
                )  # type: ignore[misc]
            )
            seen[count] = tuple(daemon.value(name) for name in FITS[:2])
        keeper.keep("small-split-one-waiting", port, "/slots", "/metrics")
        outcomes = crowd.outcomes()
        expected: dict[int, tuple[float | None, ...]] = {
            count: (max(0, 4 - count),) * 2 for count in range(6)
        }
        yield judge(
            "split pool: idle slots are what fits",
            {
                "now and guaranteed are the idle slots": seen == expected,
                "all are answered": outcomes == {"200": 5},
            },
            f"(now, guaranteed) by requests sent {seen}, {dict(outcomes)}",
        )


PROOFS: dict[str, Callable[[Keeper], Iterator[Verdict]]] = {
    "asleep": prove_asleep,
    "router": prove_router,
    "split": prove_split,
    "unified": prove_unified,
    "prompt": prove_prompt,
    "children": prove_children,
}


def main() -> int:
    """Run the proofs that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("proofs", nargs="*", choices=[*PROOFS, []], default=[])
    parser.add_argument("--captures", type=Path, help="keep the pages of each state in this folder")
    arguments = parser.parse_args()
    keeper = Keeper(arguments.captures)
    verdicts = [verdict for name in arguments.proofs or PROOFS for verdict in PROOFS[name](keeper)]
    return int(any(verdict.outcome == FAIL for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
