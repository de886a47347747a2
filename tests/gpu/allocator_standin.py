"""A CUDA program as a stand-in: takes memory of GPU 0 in the scenario file, and gives it back at its end."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replace the scenario at once."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def main() -> int:
    """Take the MiB of the first argument; LEAK=1 forgets to give them back."""
    path, mib = Path(os.environ["KVWATCH_NVML_SCENARIO"]), int(sys.argv[1])
    text = path.read_text()
    taken = re.sub(r"(gpu 0 .*used=)(\d+)MiB", lambda found: f"{found[1]}{int(found[2]) + mib}MiB", text)
    write(path, f"{taken}proc gpu=0 pid={os.getpid()} type=C used={mib}MiB\n")
    print(f"ready standin {mib << 20}", flush=True)
    sys.stdin.read()
    if "LEAK" not in os.environ:
        write(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
