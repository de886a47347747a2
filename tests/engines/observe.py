"""Run kvwatch beside a real engine under load and print what it says, poll by poll.

    python observe.py vllm-uniform 8100 --requests 24 --prompt 200 --generate 700

Starts the engine (see engines.py), the daemon as its own process, and the load (see load.py); ends all three.
The figures are kvwatch's own series: running, waiting, usage, how many full-length requests fit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).parent
SHOWN = {
    "run": "kvwatch_requests_running",
    "wait": "kvwatch_requests_waiting",
    "usage": "kvwatch_kv_usage_ratio",
    "now": "kvwatch_full_length_requests_fit_now",
    "sure": "kvwatch_full_length_requests_fit_guaranteed",
    "empty": "kvwatch_full_length_requests_fit_empty",
    "held": "kvwatch_full_length_requests_resident_limit",
    "headroom": "kvwatch_full_length_requests_headroom",
    "suspect": "kvwatch_recompute_suspected_total",
    "preempt": "kvwatch_preemptions_total",
}
OPTIONS = {
    "vllm-uniform": "request_limit: 16, tensor_parallel: 1, max_num_batched_tokens: 2048",
    "vllm-hybrid": "request_limit: 16, tensor_parallel: 1, max_num_batched_tokens: 2048",
    "llama-split": "kv_unified: false",
    "llama-unified": "pool_tokens: 4096",
}
QUIET_SECONDS = 4.0


def main() -> int:
    """Observe one load."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=OPTIONS)
    parser.add_argument("port", type=int)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--generate", type=int, default=700)
    parser.add_argument(
        "--model-config", type=Path, help="the model's folder, where its bytes shall be known"
    )
    options = parser.parse_args()
    engines = [sys.executable, str(FOLDER / "engines.py")]
    subprocess.run([*engines, "start", options.engine, str(options.port)], check=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            observe(options, Path(folder))
    finally:
        subprocess.run([*engines, "stop", str(options.port)], check=True)
    return 0


def observe(options: argparse.Namespace, folder: Path) -> None:
    """Start the daemon and the load, print a line whenever what is shown has changed."""
    file = folder / "kvwatch.yaml"
    model = f", model_config: {options.model_config}" if options.model_config else ""
    file.write_text(
        "listen: 127.0.0.1:0\ninterval: 200ms\nnvml: {enabled: false}\n"
        f"servers: [{{name: s, url: 'http://127.0.0.1:{options.port}', {OPTIONS[options.engine]}{model}}}]\n"
    )
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen([sys.executable, "-m", "kvwatch", "run", "--config", str(file)], stderr=log)
    load = None
    try:
        url = address(folder / "log")
        print("second  " + "  ".join(f"{name:>8}" for name in SHOWN))
        started, last, quiet_since = time.monotonic(), "", time.monotonic()
        while load is None or load.poll() is None or time.monotonic() - quiet_since < QUIET_SECONDS:
            line = figures(url)
            now = time.monotonic()
            if line != last:
                print(f"{now - started:6.1f}  {line}", flush=True)
                last = line
            if load is None or load.poll() is None:
                quiet_since = now
            if load is None and now - started > QUIET_SECONDS:
                load = subprocess.Popen(
                    [sys.executable, str(FOLDER / "load.py"), str(options.port),
                     "--requests", str(options.requests), "--prompt", str(options.prompt),
                     "--generate", str(options.generate)]
                )  # fmt: skip
            time.sleep(0.2)
        for name in ("kvwatch_engine_max_concurrency", "kvwatch_kv_model_error_ratio", "kvwatch_fit_basis"):
            print(*re.findall(rf"^{name}\{{.*$", fetch(url), re.MULTILINE), sep="\n")
    finally:
        daemon.terminate()
        if load is not None:
            load.kill()
        daemon.wait()


def address(log: Path) -> str:
    """Wait for the daemon's URL."""
    for _ in range(200):
        found = re.search(r"listens on (\S+)/", log.read_text())
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise SystemExit(log.read_text())


def fetch(url: str) -> str:
    """Return the exposition, empty while there is none."""
    try:
        with urllib.request.urlopen(url + "/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.URLError:
        return ""


def figures(url: str) -> str:
    """Return the shown series as columns; a series that is absent is a question mark."""
    text = fetch(url)
    columns = []
    for name in SHOWN.values():
        values = [float(value) for value in re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)]
        columns.append(f"{sum(values):>8.4g}" if values else f"{'?':>8}")
    return "  ".join(columns)


if __name__ == "__main__":
    sys.exit(main())
