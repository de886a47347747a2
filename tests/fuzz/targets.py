"""Everything that reads foreign bytes, as functions that may raise only when kvwatch is wrong."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kvwatch.check.formats import render
from kvwatch.check.reading.declare import Given, read
from kvwatch.check.rules import check
from kvwatch.config import ConfigError, parse_config
from kvwatch.cost.gguf import read_gguf_header
from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.llamacpp import LlamaOptions, LlamaOptionsError, allocate
from kvwatch.cost.llamacpp_model import LlamaModel
from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.vllm import MissingOptionError, OptionError, VllmOptions, plan_blocks
from kvwatch.cost.weights import read_safetensors_header
from kvwatch.engines import ADAPTERS
from kvwatch.flags.config_file import ConfigFileError, config_words
from kvwatch.pod_list import read_pod_list
from kvwatch.readings import Page, SourceError
from kvwatch.sources.cgroups import parse_cgroup
from kvwatch.sources.model_path import read_config
from kvwatch.sources.nvml_wire import read_line
from kvwatch.sources.processes import parse_stat
from kvwatch.startup_log.document import log_document
from kvwatch.startup_log.reading import read_log
from kvwatch.startup_log.report import render_log
from tests.cost_llamacpp.files import raw_gguf, text
from tests.daemon import parse
from tests.replay import CAPTURES
from tests.snapshots import exported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[2]
_STRING, _UINT32 = (tag.to_bytes(4, "little") for tag in (8, 4))
_PAGE_END = b"\n--- next page ---\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One reader of foreign bytes; `seeds` are real inputs to start from."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def engine_pages(engine: str, paths: tuple[str, ...]) -> Callable[[bytes], None]:
    """Return a reader of all pages of a server, joined to one input."""

    def run(data: bytes) -> None:
        bodies = dict(zip(paths, data.split(_PAGE_END), strict=False))
        adapter, pages = ADAPTERS[engine], dict[str, Page]()
        try:
            adapter.recognises(bodies.get(adapter.first_path, b"").decode("utf-8", "replace"))
            while (path := adapter.next_path(pages)) is not None:
                body = bodies.get(path, b"").decode("utf-8", "replace")
                pages[path] = Page(path=path, body=body, status=200)
            reading = adapter.read(pages)
        except SourceError:
            return
        sane(reading)
        for rows in parse(exported(reading)).values():
            assert all(math.isfinite(value) for value in rows.values())

    return run


def sane(value: Any) -> None:
    """Refuse numbers that nobody measured: not finite, or beyond what any machine holds."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            sane(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            sane(item)
    elif isinstance(value, tuple | list | frozenset | set):
        for item in value:
            sane(item)
    elif isinstance(value, float):
        assert math.isfinite(value), value
    elif isinstance(value, int):
        assert abs(value) < 1 << 64, value


def hf_config(data: bytes) -> None:
    """Read a config.json and let vLLM's cost rules plan it."""
    try:
        spec = read_hf_config(read_config(Path("config.json"), data))
        options = VllmOptions(max_model_len=4096, max_num_batched_tokens=8192)
        plan = plan_blocks(spec, options)
        assert plan.bytes_per_block >= 0
        assert plan.start_blocks >= 0
        assert plan.admission_blocks(2048) >= 0
        assert plan.resident_blocks(2048) >= 0
    except (SourceError, ModelSpecError, OptionError, MissingOptionError):
        return


def gguf(data: bytes) -> None:
    """Read a GGUF header and let llama.cpp's rules allocate its pool."""
    try:
        header = read_gguf_header(io.BytesIO(data))
        pool = allocate(LlamaModel.from_header(header), LlamaOptions(ctx_size=4096))
        assert pool.total_bytes >= 0
    except (SourceError, ModelSpecError, LlamaOptionsError):
        return


def safetensors(data: bytes) -> None:
    """Read the table of a checkpoint's file."""
    try:
        sane(read_safetensors_header(io.BytesIO(data)))
    except ModelSpecError:
        return


def startup_log(data: bytes) -> None:
    """Read a log and make all that the command can make of it."""
    log = read_log(io.BytesIO(data))
    json.dumps(log_document("log", log, [None] * len(log.starts)), allow_nan=False)
    shown = render_log(log, [None] * len(log.starts), [None] * len(log.starts))
    assert all(character.isprintable() or character == "\n" for character in shown)


def own_config(data: bytes) -> None:
    """Check a configuration file of kvwatch."""
    try:
        parse_config(data.decode("utf-8", "replace"), "kvwatch.yaml", ADAPTERS)
    except ConfigError:
        return


def vllm_config(data: bytes) -> None:
    """Turn the file of `vllm serve --config` into words."""
    try:
        assert all(isinstance(word, str) for word in config_words(data.decode("utf-8", "replace")).words)
    except ConfigFileError:
        return


def pod_list(data: bytes) -> None:
    """Read a kubelet's list of pods."""
    try:
        read_pod_list(data.decode("utf-8", "replace"))
    except SourceError:
        return


def nvml_line(data: bytes) -> None:
    """Read a line of the NVML child: what it says is the driver's."""
    try:
        line = read_line(data)
    except SourceError:
        return
    sane(line)


def proc_files(data: bytes) -> None:
    """Read /proc/PID/cgroup and /proc/PID/stat."""
    parse_cgroup(data.decode("utf-8", "replace"))
    parse_stat(data)


def deployment(data: bytes) -> None:
    """Let `kvwatch check` read and judge a file of any kind."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "deployment"
        file.write_bytes(data)
        declaration = read([str(file)], Given()).declaration
    findings = check(declaration)
    for kind in ("text", "json", "github", "sarif"):
        render(declaration, findings, kind)


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
            run=engine_pages("vllm", ("/metrics", "/v1/models", "/version")),
            seeds=tuple(
                _PAGE_END.join([path.read_bytes(), b'{"data": []}', b'{"version": "0.32.0"}'])
                for path in sorted((CAPTURES / "vllm").glob("0.32.0-*.metrics"))[:6]
            ),
        ),
        "llamacpp": Target(
            run=engine_pages("llamacpp", llama),
            seeds=tuple(
                _PAGE_END.join(
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
            run=engine_pages("sglang", ("/metrics", "/model_info", "/server_info")),
            seeds=_files(f"{captures}/sglang/*.metrics"),
        ),
        "hf-config": Target(run=hf_config, seeds=_files(f"{captures}/vllm/*config.json")),
        "gguf": Target(run=gguf, seeds=(_small_gguf(),)),
        "safetensors": Target(
            run=safetensors,
            seeds=(
                (66).to_bytes(8, "little")
                + b'{"a.weight": {"dtype": "BF16", "shape": [2, 4], "data_offsets": [0, 16]}}'[:66],
            ),
        ),
        "startup-log": Target(
            run=startup_log, seeds=_files("tests/startup_log/logs/*.log", f"{captures}/*/*startup.log")
        ),
        "config": Target(run=own_config, seeds=_files("deploy/kvwatch.example.yaml")),
        "vllm-config": Target(
            run=vllm_config,
            seeds=(b"model: m\nmax-model-len: 4096\nenable-lora: true\nlora-modules: [a, b]\n",),
        ),
        "pod-list": Target(run=pod_list, seeds=(b'{"items": [{"metadata": {"name": "p"}, "status": {}}]}',)),
        "nvml-line": Target(
            run=nvml_line,
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
            run=proc_files,
            seeds=(
                b"0::/system.slice/docker-" + b"a" * 64 + b".scope\n",
                b"1 (a b) S 0 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n",
            ),
        ),
        "check": Target(run=deployment, seeds=_files("docker-compose.yml", "deploy/kvwatch.example.yaml")),
    }
