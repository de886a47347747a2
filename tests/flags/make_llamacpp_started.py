"""Start a real llama-server with some command lines and write the context that it made of each.

python tests/flags/make_llamacpp_started.py LLAMA_SERVER MODEL.gguf > tests/flags/llamacpp-started.json
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

PORT = "18931"
CASES: dict[str, tuple[list[str], dict[str, str]]] = {
    "automatic": (["-c", "4096"], {}),
    "automatic-rounded": (["-c", "1000"], {}),
    "digits-end-the-number": (["-c", "4096abc"], {}),
    "split": (["-c", "4096", "-np", "2"], {}),
    "split-grows": (["-c", "4096", "-np", "3"], {}),
    "split-rounded-twice": (["-c", "1000", "-np", "3"], {}),
    "one-slot": (["-c", "1000", "-np", "1"], {}),
    "shared-by-flag": (["-c", "4096", "-np", "3", "-kvu"], {}),
    "negative-is-automatic": (["-c", "4096", "-np", "-1", "--no-kv-unified"], {}),
    "negated-last": (["-c", "4096", "-np", "2", "-kvu", "-no-kvu"], {}),
    "last-one-wins": (["-c", "2048", "-np", "8", "--parallel", "2", "--ctx_size", "4096"], {}),
    "environment": ([], {"LLAMA_ARG_CTX_SIZE": "2048", "LLAMA_ARG_N_PARALLEL": "2"}),
    "words-over-environment": (["-c", "4096"], {"LLAMA_ARG_CTX_SIZE": "2048", "LLAMA_ARG_N_PARALLEL": "2"}),
    "environment-shares": (["-c", "4096", "-np", "2"], {"LLAMA_ARG_KV_UNIFIED": "true"}),
    "environment-negates": (
        ["-c", "4096", "-np", "2"],
        {"LLAMA_ARG_KV_UNIFIED": "1", "LLAMA_ARG_NO_KV_UNIFIED": "anything"},
    ),
    "words-over-negated-environment": (
        ["-c", "4096", "-np", "2", "-kvu"],
        {"LLAMA_ARG_NO_KV_UNIFIED": "1"},
    ),
    "per-slot-cap": (["-c", "4096", "-np", "2", "--kv-unified-per-slot", "512"], {}),
    "per-slot-alone": (["--kv-unified-per-slot", "512"], {}),
    "explicit-zero": (["-c", "0", "-np", "2"], {}),
    "value-that-looks-like-an-option": (["--alias", "-c", "-c", "4096", "-np", "2"], {}),
}


def started(program: str, model: str, argv: list[str], environ: dict[str, str]) -> dict[str, object]:
    """Start the server, read the last context it logs before it listens, and stop it."""
    command = [program, "-m", model, "--port", PORT, "-lv", "4", "--no-warmup", *argv]
    found: dict[str, object] = {}
    with subprocess.Popen(
        command, env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            match = re.search(r"llama_context: (n_seq_max|n_ctx|n_ctx_seq|kv_unified)\s+= (\w+)", line)
            if match:
                found[match[1]] = match[2] == "true" if match[1] == "kv_unified" else int(match[2])
            if "server is listening" in line or "all slots are idle" in line:
                break
        process.kill()
    return found


def main() -> None:
    """Print the cases, one a line."""
    program, model = sys.argv[1:]
    rows = ",\n".join(
        json.dumps(
            {
                "name": name,
                "argv": argv,
                "environ": environ,
                "context": started(program, model, argv, environ),
            }
        )
        for name, (argv, environ) in CASES.items()
    )
    sys.stdout.write(f"[\n{rows}\n]\n")


if __name__ == "__main__":
    main()
