"""`make fuzz`: every reader of foreign bytes, on inputs bred by what they reach; 1 when one breaks.

python -m tests.fuzz [--seconds N] [TARGET...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

MAX_BYTES = 200_000
MAX_SECONDS_AN_INPUT = 10
MAX_MIB = 1500


def main() -> int:
    """Fuzz each target in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: every one")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"), help="inputs that were worth keeping")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return _fuzz(options.targets[0], options.corpus, options.seconds)
    from tests.fuzz.targets import targets  # noqa: PLC0415

    broken = []
    for name in options.targets or targets():
        command = [sys.executable, "-m", "tests.fuzz", "--inside", name]
        command += ["--seconds", str(options.seconds), "--corpus", str(options.corpus)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = done.stderr.splitlines()
        last = next((line for line in reversed(lines) if line.startswith(("#", "Done"))), "nothing was run")
        print(f"{name:<12} {'well' if done.returncode == 0 else 'BROKEN'}  {last}", flush=True)
        if done.returncode:
            broken.append(name)
            print("\n".join(lines[-30:]), flush=True)
    return 1 if broken else 0


def _fuzz(name: str, corpus: Path, seconds: int) -> int:
    import atheris  # noqa: PLC0415 - a tool of its own, installed by make fuzz

    with atheris.instrument_imports(include=["kvwatch"]):
        from tests.fuzz.targets import targets  # noqa: PLC0415
    target, folder = targets()[name], corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number}").write_bytes(seed[:MAX_BYTES])
    limits = [f"-max_len={MAX_BYTES}", f"-timeout={MAX_SECONDS_AN_INPUT}", f"-rss_limit_mb={MAX_MIB}"]
    arguments = [sys.argv[0], str(folder), f"-artifact_prefix={corpus}/{name}-", *limits]
    atheris.Setup([*arguments, f"-max_total_time={seconds}"], target.run)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
