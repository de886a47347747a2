"""`make soak`: faults by chance against the real daemon, as long as you like; 1 if something was wrong."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.soak.faults import faults
from tests.soak.run import soak


def main() -> int:
    """Run a soak and print what it found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="of the order of faults (default: by chance)")
    parser.add_argument("--only", default="", help="only faults whose name holds this")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    chosen = [fault for fault in faults() if options.only in fault.name]
    print(f"seed {seed}, {len(chosen)} faults, {options.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(
            soak(
                Path(folder),
                chosen,
                random.Random(seed),  # noqa: S311
                seconds=options.minutes * 60,
                say=lambda line: print(line, flush=True),
            )
        )
    first, last = report.resident_mib[0], report.resident_mib[-1]
    print(f"\n{len(report.faults)} faults; memory {first:.1f} to {last:.1f} MiB")
    for name, seconds in sorted(report.slowest.items(), key=lambda item: -item[1])[:5]:
        print(f"  as before after {seconds:.1f} s: {name}")
    for complaint in report.complaints:
        print(f"  WRONG {complaint}")
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
