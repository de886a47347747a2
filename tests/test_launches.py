"""With nothing configured but a URL: flags from the server's command line, bytes from its model's files."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.cost_llamacpp.files import PLAIN, write_gguf
from tests.daemon import config, reason, running, value
from tests.replay import CAPTURES, Answer, replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

# Stands where the engine's own program would: a script of its name that answers with captures.
PROGRAM = """
import http.server, pathlib, sys
pages = {path: pathlib.Path(file).read_bytes() for path, file in PAGES.items()}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = pages.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")
    def log_message(self, *_): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@contextlib.contextmanager
def engine(folder: Path, program: str, pages: dict[str, Path], *arguments: str) -> Iterator[str]:
    """Run a stand-in for an engine with its command line; yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = folder / program
    script.write_text(PROGRAM.replace("PAGES", repr({path: str(file) for path, file in pages.items()})))
    process = subprocess.Popen([sys.executable, str(script), *arguments, "--port", str(port)], cwd=folder)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def vllm(folder: Path, kind: str, *arguments: str) -> contextlib.AbstractContextManager[str]:
    """Run a vLLM stand-in whose model folder is what its /v1/models says."""
    name, state, models = {
        "uniform": ("tiny-llama", "draining", "0.32.0-models.json"),
        "hybrid": ("tiny-gemma3", "hybrid-ten-running", "0.32.0-hybrid-models.json"),
    }[kind]
    captures = CAPTURES / "vllm"
    (folder / name).mkdir()
    (folder / name / "config.json").write_bytes((captures / f"{name}-config.json").read_bytes())
    pages = {
        "/metrics": captures / f"0.32.0-{state}.metrics",
        "/v1/models": captures / models,
        "/version": captures / "0.32.0-version.json",
    }
    return engine(folder, "vllm", pages, "serve", f"./{name}", *arguments)


def llama_server(folder: Path, mode: str, *arguments: str) -> contextlib.AbstractContextManager[str]:
    """Run an idle llama-server stand-in of model slow.gguf."""
    captures = CAPTURES / "llamacpp"
    pages = {
        "/props": captures / f"b11434-{mode}-idle.props.json",
        "/metrics": captures / f"b11434-{mode}-idle.metrics",
    }
    return engine(folder, "llama-server", pages, "-m", "slow.gguf", *arguments, "--metrics")


async def test_a_uniform_vllm_needs_nothing_but_its_url(tmp_path: Path) -> None:
    """max_num_seqs caps the fits, tensor parallel 1 and the model's files give bytes."""
    with vllm(tmp_path, "uniform", "--max-num-seqs", "2") as url:
        async with running(config(f"servers: [{{name: s, url: '{url}'}}]")) as daemon:
            series = await daemon.until(
                lambda series: value(series, "kv_capacity_bytes", server="s") is not None
            )
            assert value(series, "request_limit", server="s") == 2
            assert value(series, "full_length_requests_resident_limit", server="s") == 2
            assert value(series, "kv_capacity_bytes", server="s") == 1024 * 32 * 99
            assert value(series, "worst_case_demand_ratio", server="s") == pytest.approx(2 * 32 / 99)
            assert reason(series, "model", "s") is None


async def test_a_hybrid_vllm_needs_nothing_but_its_url(tmp_path: Path) -> None:
    """The batch of the command line settles the windows' start-up charge: ten are held, not two."""
    with vllm(tmp_path, "hybrid", "--max-num-batched-tokens=2048", "--max-num-seqs", "64") as url:
        async with running(config(f"servers: [{{name: s, url: '{url}'}}]")) as daemon:
            series = await daemon.until(lambda series: value(series, "fit_basis", basis="resident") == 1)
            assert value(series, "full_length_requests_resident_limit", server="s") == 10
            assert value(series, "full_length_requests_headroom", server="s") == 0
            assert value(series, "kv_model_error_ratio", server="s") == 0


async def test_the_batch_that_nobody_states_is_proved_by_the_engines_own_charge(tmp_path: Path) -> None:
    """Of the usual batches one gives the engine's 389 blocks: the windows are known, ten are held."""
    with vllm(tmp_path, "hybrid") as url:
        async with running(config(f"servers: [{{name: s, url: '{url}'}}]")) as daemon:
            series = await daemon.until(lambda series: value(series, "fit_basis", basis="resident") == 1)
            assert value(series, "full_length_requests_resident_limit", server="s") == 10
            assert value(series, "kv_model_error_ratio", server="s") == 0
            assert reason(series, "model", "s") is None


async def test_a_charge_that_no_usual_batch_gives_leaves_the_windows_unknown(tmp_path: Path) -> None:
    """An engine that charges 200 blocks was told otherwise: lower bounds, and the missing flag is named."""
    (tmp_path / "config.json").write_bytes((CAPTURES / "vllm" / "tiny-gemma3-config.json").read_bytes())
    page = CAPTURES / "vllm" / "0.32.0-hybrid-ten-running.metrics"
    text = page.read_text().replace("2.3136246786632393", "4.5")
    pages = {"/metrics": Answer(text.encode())}
    for path in ("/v1/models", "/version"):
        pages[path] = vllm_pages("hybrid-idle")[path]
    model = tmp_path / "config.json"
    async with replaying(pages) as replay:
        text = f"servers: [{{name: s, url: '{replay.url}', model_config: '{model}'}}]"
        async with running(config(text)) as daemon:
            series = await daemon.until(lambda series: value(series, "fit_basis", basis="admission") == 1)
            assert value(series, "full_length_requests_resident_limit", server="s") == 899 // 200
            assert reason(series, "model", "s") == "missing_field"


async def test_the_configuration_wins_over_the_command_line(tmp_path: Path) -> None:
    """A person who says otherwise knows why."""
    with vllm(tmp_path, "uniform", "--max-num-seqs", "2") as url:
        text = f"servers: [{{name: s, url: '{url}', request_limit: 1}}]"
        async with running(config(text)) as daemon:
            series = await daemon.until(lambda series: value(series, "requests_running", server="s") == 2)
            assert value(series, "request_limit", server="s") == 1


async def test_a_llama_servers_pool_is_that_of_its_command_line(tmp_path: Path) -> None:
    """An explicit -np without -kvu splits the pool: idle slots are the answer, with nothing configured."""
    arguments = ("-c", "8192", "-np", "4")
    with llama_server(tmp_path, "split", *arguments) as url:
        async with running(config(f"servers: [{{name: s, url: '{url}'}}]")) as daemon:
            series = await daemon.until(
                lambda series: value(series, "full_length_requests_fit_now", server="s") is not None
            )
            assert value(series, "full_length_requests_fit_now", server="s") == 4
            assert value(series, "full_length_requests_resident_limit", server="s") == 4


async def test_a_llama_server_without_np_shares_one_pool(tmp_path: Path) -> None:
    """Automatic slots share the whole -c: one full-length request, though four slots are idle."""
    with llama_server(tmp_path, "unified-q8_0", "-c", "4096") as url:
        async with running(config(f"servers: [{{name: s, url: '{url}'}}]")) as daemon:
            series = await daemon.until(
                lambda series: value(series, "full_length_requests_fit_now", server="s") is not None
            )
            assert value(series, "full_length_requests_fit_now", server="s") == 1
            assert value(series, "worst_case_demand_ratio", server="s") == 4


async def test_a_llama_servers_bytes_come_from_its_gguf_and_its_flags(tmp_path: Path) -> None:
    """8 layers x 2 heads x (64 + 64) x 2 bytes a token, for 4 slots of 2,048; in q8_0, 34 bytes for 64."""
    write_gguf(tmp_path / "slow.gguf", "llama", PLAIN)
    arguments = ("-c", "8192", "-np", "4")
    with llama_server(tmp_path, "split", *arguments) as url:
        async with running(config(f"servers: [{{name: s, url: '{url}'}}]")) as daemon:
            series = await daemon.until(
                lambda series: value(series, "kv_bytes_per_token", server="s") is not None
            )
            assert value(series, "kv_bytes_per_token", server="s") == 4096
            assert value(series, "kv_capacity_bytes", server="s") == 32 << 20
            assert reason(series, "model", "s") is None
    with llama_server(tmp_path, "split", *arguments, "-ctk", "q8_0", "-ctv", "q8_0") as url:
        async with running(config(f"servers: [{{name: s, url: '{url}'}}]")) as daemon:
            series = await daemon.until(
                lambda series: value(series, "kv_bytes_per_token", server="s") is not None
            )
            assert value(series, "kv_bytes_per_token", server="s") == 4096 * 34 / 64


async def test_a_draft_model_leaves_the_bytes_unknown(tmp_path: Path) -> None:
    """Its cache would come on top; what is not reckoned is absent, with the reason."""
    write_gguf(tmp_path / "slow.gguf", "llama", PLAIN)
    arguments = ("-c", "8192", "-np", "4", "-md", "draft.gguf")
    with llama_server(tmp_path, "split", *arguments) as url:
        async with running(config(f"servers: [{{name: s, url: '{url}'}}]")) as daemon:
            series = await daemon.until(lambda series: value(series, "requests_running", server="s") == 0)
            assert reason(series, "model", "s") == "not_supported"
            assert value(series, "kv_capacity_bytes", server="s") is None
            assert value(series, "full_length_requests_fit_now", server="s") == 4
