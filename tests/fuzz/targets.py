"""The fuzz targets: a reader of foreign bytes, and real inputs to start from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cost_llamacpp.files import raw_gguf, text
from tests.fuzz import readers
from tests.fuzz.readers import PAGE_END
from tests.replay import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[2]
_STRING, _UINT32 = (tag.to_bytes(4, "little") for tag in (8, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One reader of foreign bytes; `seeds` are real inputs to start from."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def _files(*patterns: str) -> tuple[bytes, ...]:
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    assert found, patterns
    return tuple(path.read_bytes() for path in found)


def _small_gguf() -> bytes:
    """Return a header of a small llama: its keys, and no tensor."""
    numbers = {"block_count": 2, "context_length": 4096, "embedding_length": 64, "attention.head_count": 4}
    keys = [text("general.architecture") + _STRING + text("llama")]
    keys += [
        text(f"llama.{name}") + _UINT32 + number.to_bytes(4, "little") for name, number in numbers.items()
    ]
    return raw_gguf(*keys, keys=len(keys)).getvalue()


@cache
def targets() -> Mapping[str, Target]:
    """Return every target by its name."""
    captures = "tests/captures"
    llama = ("/props", "/metrics", "/slots")
    return {
        "vllm": Target(
            run=readers.engine_pages("vllm", ("/metrics", "/v1/models", "/version")),
            seeds=tuple(
                PAGE_END.join([path.read_bytes(), b'{"data": []}', b'{"version": "0.32.0"}'])
                for path in sorted((CAPTURES / "vllm").glob("0.32.0-*.metrics"))[:6]
            ),
        ),
        "llamacpp": Target(
            run=readers.engine_pages("llamacpp", llama),
            seeds=tuple(
                PAGE_END.join(
                    (CAPTURES / "llamacpp" / f"b11434-{state}{end}").read_bytes()
                    for state, end in zip(states, (".props.json", ".metrics", ".slots.json"), strict=True)
                )
                for states in (
                    ("split-idle", "split-load2", "split-load2"),
                    ("unified-q8_0-idle", "unified-q8_0-load2", "unified-q8_0-load2"),
                )
            ),
        ),
        "sglang": Target(
            run=readers.engine_pages("sglang", ("/metrics", "/model_info", "/server_info")),
            seeds=_files(f"{captures}/sglang/*.metrics"),
        ),
        "hf-config": Target(run=readers.hf_config, seeds=_files(f"{captures}/vllm/*config.json")),
        "gguf": Target(run=readers.gguf, seeds=(_small_gguf(),)),
        "safetensors": Target(
            run=readers.safetensors,
            seeds=(
                (66).to_bytes(8, "little")
                + b'{"a.weight": {"dtype": "BF16", "shape": [2, 4], "data_offsets": [0, 16]}}'[:66],
            ),
        ),
        "startup-log": Target(
            run=readers.startup_log,
            seeds=_files("tests/startup_log/logs/*.log", f"{captures}/*/*startup.log"),
        ),
        "config": Target(run=readers.own_config, seeds=_files("deploy/kvwatch.example.yaml")),
        "vllm-config": Target(
            run=readers.vllm_config,
            seeds=(b"model: m\nmax-model-len: 4096\nenable-lora: true\nlora-modules: [a, b]\n",),
        ),
        "pod-list": Target(
            run=readers.pod_list, seeds=(b'{"items": [{"metadata": {"name": "p"}, "status": {}}]}',)
        ),
        "nvml-line": Target(
            run=readers.nvml_line,
            seeds=(
                (
                    b'{"poll": 1, "device": {"index": 0, "uuid": "GPU-1", "name": "L40S", "seconds": 0.01, '
                    b'"errors": {}, "memory": {"version": 2, "total": 48305799168, "reserved": 524288000, '
                    b'"free": 15569256448, "used": 32212254720}, "lists": {"compute": [[7, 1024]], '
                    b'"graphics": [], "mps": []}}}'
                ),
                b'{"poll": 1, "driver": {"version": "570.172.08", "count": 1, "errors": {}}}',
            ),
        ),
        "proc": Target(
            run=readers.proc_files,
            seeds=(
                b"0::/system.slice/docker-" + b"a" * 64 + b".scope\n",
                b"1 (a b) S 0 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n",
            ),
        ),
        "web-config": Target(run=readers.web_configuration, seeds=_files("deploy/kvwatch-web.example.yml")),
        "proc-net": Target(
            run=readers.socket_tables,
            seeds=(
                (
                    b"  sl  local_address rem_address   st tx rx tr tm->when retrnsmt   uid  timeout inode\n"
                    b"   0: 0100007F:1F40 00000000:0000 0A 0:0 00:0 0  0 0 4242 1 0 0 0\n"
                ),
            ),
        ),
        "snapshot": Target(run=readers.snapshot_page, seeds=_files("tests/top/documents/*.json")),
        "prometheus": Target(
            run=readers.prometheus_answer,
            seeds=(
                (
                    b'{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, '
                    b'"values": [[1.5, "2"], [3, "NaN"]]}]}}'
                ),
                (
                    b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, '
                    b'"value": [1.5, "2"]}]}, "warnings": ["w"]}'
                ),
            ),
        ),
        "check": Target(
            run=readers.deployment, seeds=_files("docker-compose.yml", "deploy/kvwatch.example.yaml")
        ),
    }
