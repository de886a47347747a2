"""What a process is, by its command line and the title that it gave itself."""

from __future__ import annotations

import pytest

from kvwatch.readings import ProcessRole
from kvwatch.sources.roles import role_of

SERVER, LAUNCHER, ENGINE = ProcessRole.SERVER, ProcessRole.LAUNCHER, ProcessRole.ENGINE
ACTOR, OTHER = ProcessRole.ACTOR, ProcessRole.OTHER
MODULE = "vllm.entrypoints.openai.api_server"

# Situation -> comm, words of the command line, role.
CASES: dict[str, tuple[str, str, ProcessRole | None]] = {
    "vllm serve": ("vllm", "/venv/bin/python3 /venv/bin/vllm serve tiny --port 8000", SERVER),
    "vllm as a module": ("python3", f"python3 -m {MODULE} --model tiny", SERVER),
    "vllm behind uv": ("uv", "uv run vllm serve tiny", SERVER),
    "one of several API servers": ("VLLM::APIServer", "VLLM::APIServer_0", SERVER),
    "the coordinator of data-parallel engines": ("VLLM::DPCoordin", "VLLM::DPCoordinator", SERVER),
    "engines for a server on another node": ("vllm", "vllm serve tiny --headless", LAUNCHER),
    "an engine core": ("VLLM::EngineCor", "VLLM::EngineCore", ENGINE),
    "an engine core of 0.10.1": ("VLLM::DPEngineC", "VLLM::DPEngineCore_1", ENGINE),
    "a data-parallel engine core": ("VLLM::EngineCor", "VLLM::EngineCore_DP1", ENGINE),
    "a worker": ("VLLM::Worker_TP", "VLLM::Worker_TP0", ENGINE),
    "a worker alone in its group": ("VLLM::Worker", "VLLM::Worker", ENGINE),
    "an engine core under another prefix": ("our-inference-s", "our-inference-stack::EngineCore", ENGINE),
    "a worker under another prefix": ("PROD::Worker_DP0", "PROD::Worker_DP0_TP1_EP1", ENGINE),
    "a comm that was set without a title": ("VLLM::EngineCor", "python3 -m kvwatch.demo.engine_core", ENGINE),
    "SGLang's scheduler": ("sglang::schedul", "sglang::scheduler_TP0", ENGINE),
    "a Ray actor": ("ray::RayWorkerW", "ray::RayWorkerWrapper.execute_method", ACTOR),
    "llama-server": ("llama-server", "/opt/llama-server -m tiny.gguf --port 8080", SERVER),
    "an untitled child of multiprocessing": (
        "python3", "python3 -c from multiprocessing.spawn import spawn_main; spawn_main()", None),
    "a hidden command line, a zombie, a kernel thread": ("python3", "", None),
    "a training job": ("python3", "python3 train.py --model vllm-tiny", OTHER),
    "a shell": ("bash", "bash", OTHER),
    "a client of the same library": ("python3", "python3 -m vllm.benchmarks.serve", OTHER),
    "docker's proxy": ("docker-proxy", "/usr/bin/docker-proxy -proto tcp -host-port 8000", OTHER),
    "somebody else's title with colons": ("postgres", "postgres::writer", OTHER),
}  # fmt: skip


@pytest.mark.parametrize("situation", CASES)
def test_what_a_process_is(situation: str) -> None:
    """Titles and commands say it; what they do not say is not guessed."""
    name, words, role = CASES[situation]
    title = "::" in words or words.startswith("ray::")
    argv = (words,) if title and " " not in words else tuple(words.split())
    assert role_of(name, argv) is role
