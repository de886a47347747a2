"""The process that holds the memory of one simulated server: it has vLLM's name for it, and sleeps.

vLLM's HTTP server owns nothing on the card, its child does (0.32 with one GPU). So kvwatch has to find its
way from a port to a process to that process's child, as it does in earnest.
"""

from __future__ import annotations

import signal
import sys

from kvwatch.demo.processes import die_with_parent, set_short_name


def main(parent_pid: int) -> None:
    """Exist until killed."""
    set_short_name("VLLM::EngineCore")
    die_with_parent(parent_pid)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]))
