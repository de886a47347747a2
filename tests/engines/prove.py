"""Run every proof against real engines and print what was found as a table.

    python tests/engines/prove.py                    all of them, in the repository's root
    python tests/engines/prove.py vllm-uniform       only these

Each proof is a program of its own that prints verdict lines (verdict.py); a program that ends in an error
without one counts as failed. Engines run one at a time, and are stopped whatever happens.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import engines
from verdict import FAIL, PASS, Verdict, read_verdicts, summary

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent
PORT = 8140
MOST_SECONDS = 1_500.0

PROOFS = {
    "vllm-uniform": ("vllm_proofs.py", "uniform", str(PORT)),
    "vllm-hybrid": ("vllm_proofs.py", "hybrid", str(PORT)),
    "vllm-manager": ("manager_table.py",),
    "llama": ("llamacpp_care.py",),
    "discovery": ("found.py", str(PORT + 2)),
}
DRIFTING = ("vllm-uniform", "llama-split")


def run(name: str, command: tuple[str, ...]) -> list[Verdict]:
    """Run one program, show what it prints as it comes, and return its verdicts."""
    print(f"\n=== {name}: {' '.join(command)}", flush=True)
    began = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen([sys.executable, "-u", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
            if time.monotonic() - began > MOST_SECONDS:
                process.terminate()
                break
    verdicts = read_verdicts("".join(lines))
    if process.returncode and not any(verdict.outcome == FAIL for verdict in verdicts):
        verdicts.append(Verdict(outcome=FAIL, name=name, seen=f"ended with {process.returncode}"))
    print(f"=== {name}: {time.monotonic() - began:.0f} s", flush=True)
    return verdicts


def drift(engine: str) -> Verdict:
    """Look for every name that kvwatch knows on the pages of a live engine."""
    engines.start(engine, PORT, [], nice=0)
    try:
        command = [sys.executable, "-m", "tests.engines.drift", str(PORT)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        engines.stop(PORT)
    print(answer.stdout, answer.stderr, sep="", end="", flush=True)
    told = [
        line.strip() for line in answer.stdout.splitlines() if "known series" in line or "missing:" in line
    ]
    seen = "; ".join(told) or f"ended with {answer.returncode}"
    return Verdict(outcome=FAIL if answer.returncode else PASS, name=f"{engine}, drift", seen=seen)


def prove(names: list[str]) -> Iterator[Verdict]:
    """Run the named proofs that are there."""
    for name in names:
        if name in PROOFS:
            program, *arguments = PROOFS[name]
            file = FOLDER / program
            if file.exists():
                yield from run(name, (str(file), *arguments))
    if "drift" in names and (FOLDER / "drift.py").exists():
        for engine in DRIFTING:
            verdict = drift(engine)
            print(verdict, flush=True)
            yield verdict


def main() -> int:
    """Run the proofs named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [*PROOFS, "drift"]
    parser.add_argument("proofs", nargs="*", metavar="PROOF", help=f"of {', '.join(every)}")
    names = parser.parse_args().proofs or every
    if strange := sorted(set(names) - set(every)):
        parser.error(f"no such proof: {', '.join(strange)}; there are {', '.join(every)}")
    verdicts = list(prove(names))
    print(f"\n{summary(verdicts)}")
    return int(not verdicts or any(verdict.outcome == FAIL for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
