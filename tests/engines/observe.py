"""Run kvwatch beside a real engine under load and print what it says, change by change.

    python observe.py vllm-uniform 8100 --requests 24 --prompt 200 --generate 700

Starts the engine (see engines.py), the daemon as its own process, and the load; ends all three.
The figures are kvwatch's own series: running, waiting, usage, how many full-length requests fit.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import engines
from crowd import Crowd, Shape
from watched import watching

OPTIONS = {
    "vllm-uniform": "request_limit: 16, tensor_parallel: 1, max_num_batched_tokens: 2048",
    "vllm-hybrid": "request_limit: 16, tensor_parallel: 1, max_num_batched_tokens: 2048",
    "llama-split": "kv_unified: false",
    "llama-unified": "pool_tokens: 4096",
}
FIGURES = ("kvwatch_engine_max_concurrency", "kvwatch_kv_model_error_ratio", "kvwatch_fit_basis")


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
    model = f", model_config: {options.model_config}" if options.model_config else ""
    engines.start(options.engine, options.port, [], nice=0)
    try:
        with watching(options.port, OPTIONS[options.engine] + model) as watched:
            watched.until(lambda sample: not sample.blind)
            with watched.recording():
                crowd = Crowd(options.port)
                crowd.send(options.requests, Shape(options.prompt, options.generate), gap=0.0)
                outcomes = crowd.outcomes()
            text = watched.text()
    finally:
        engines.stop(options.port)
    print("answers", dict(outcomes))
    for name in FIGURES:
        print(*re.findall(rf"^{name}\{{.*$", text, re.MULTILINE), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
