"""Each capture's whole exposition, byte for byte, and what promtool says to it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.daemon import config, running
from tests.replay import Answer, llamacpp_pages, replaying, vllm_pages, vllm_scene

pytestmark = pytest.mark.anyio


GOLDEN = Path(__file__).parent / "golden"
MODELS = "tests/captures/vllm"
CASES: dict[str, tuple[dict[str, Answer], str]] = {
    **{
        f"vllm-0.32.0-{state}": (vllm_pages(state), "request_limit: 16")
        for state in (
            "idle",
            "pool-full",
            "preempted-not-yet-counted",
            "preempting",
            "draining",
            "after-load",
            "hybrid-idle",
            "hybrid-ten-running",
        )
    },
    **{
        f"vllm-0.32.0-{state}": (pages, "request_limit: 16")
        for state, pages in (
            (state, vllm_scene(state, models))
            for state, models in (
                ("data-parallel-2-idle", "data-parallel-2"),
                ("data-parallel-2-six-running", "data-parallel-2"),
                ("api-servers-2-six-sent", "api-servers-2"),
                ("aliases-two-running", "aliases"),
                ("prefix-shared-two-running", "prefix-shared"),
                ("asleep-level-0-three-running", "paused"),
                ("lora-running", "lora"),
                ("grammar-one-deferred", "grammar"),
            )
        )
    },
    "vllm-0.32.0-slots-full": (
        vllm_scene("slots-full-four-running-three-waiting", "slots-full"),
        "request_limit: 4",
    ),
    "vllm-0.32.0-draining-model-known": (
        vllm_pages("draining"),
        f"model_config: {MODELS}/tiny-llama-config.json, tensor_parallel: 1, max_num_batched_tokens: 2048",
    ),
    "vllm-0.32.0-hybrid-ten-running-model-known": (
        vllm_pages("hybrid-ten-running"),
        f"model_config: {MODELS}/tiny-gemma3-config.json, tensor_parallel: 1, max_num_batched_tokens: 2048",
    ),
    **{
        f"llamacpp-b11434-split-{state}": (llamacpp_pages("split", state), "kv_unified: false")
        for state in ("idle", "load2")
    },
    **{
        f"llamacpp-b11434-unified-{state}": (llamacpp_pages("unified-q8_0", state), "pool_tokens: 4096")
        for state in ("idle", "load2")
    },
}
# What tells the time, and not the state.
_VOLATILE = re.compile(
    r"^kvwatch_(source_duration_seconds|source_last_success_timestamp_seconds"
    r"|config_last_reload_timestamp_seconds|server_start_timestamp_seconds|build_info)\b"
)


@pytest.mark.parametrize("case", CASES)
async def test_the_exposition_of_a_capture(case: str, update_golden: bool) -> None:  # noqa: FBT001 - a fixture
    """The daemon's text for a captured state is exactly the golden file."""
    pages, options = CASES[case]
    async with replaying(pages) as replay:
        text = f"servers: [{{name: demo, url: '{replay.url}', {options}}}]"
        # One poll only: counters of kvwatch itself would tell how many there were.
        async with running(config(text, interval="1h", typical_window="1d")) as daemon:
            await daemon.until(lambda series: "kvwatch_source_up" in series)
            exposition = without_volatile(await daemon.text(), replay.url)
    golden = GOLDEN / f"{case}.prom"
    if update_golden:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(exposition)
    assert exposition == golden.read_text(), (
        f"read the change; if it is right: pytest --update-golden ({golden})"
    )


def without_volatile(exposition: str, url: str) -> str:
    """Drop the samples that tell the time, and name the server's port."""
    lines = [line for line in exposition.splitlines() if not _VOLATILE.match(line)]
    return "\n".join(lines).replace(url, "http://127.0.0.1:8000") + "\n"


@pytest.mark.prometheus
@pytest.mark.parametrize("case", CASES)
def test_promtool_finds_nothing_to_say(case: str) -> None:
    """Names, types and help of every golden exposition pass Prometheus' own check in silence."""
    result = subprocess.run(
        ["promtool", "check", "metrics"],
        input=(GOLDEN / f"{case}.prom").read_bytes(),
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_every_golden_file_has_its_case() -> None:
    """A golden file that nothing compares is refused."""
    assert {file.stem for file in GOLDEN.glob("*.prom")} == set(CASES)
