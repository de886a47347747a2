"""Everything that reads foreign bytes, as functions that may raise only when kvwatch is wrong."""

from __future__ import annotations

import io
import json
import math
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC
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
from kvwatch.sources.sockets import listening_sockets
from kvwatch.startup_log.document import log_document
from kvwatch.startup_log.reading import read_log
from kvwatch.startup_log.report import render_log
from kvwatch.top.feed import Feed, Moment
from kvwatch.top.glyphs import UNICODE
from kvwatch.top.keys import State
from kvwatch.top.screen import screen_of
from kvwatch.top.snapshot_view import view_of
from kvwatch.triage.prometheus_series import MatrixError, read_answer
from kvwatch.web_config import WebConfigFile
from tests.daemon import parse
from tests.snapshots import exported

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
_STRING, _UINT32 = (tag.to_bytes(4, "little") for tag in (8, 4))
PAGE_END = b"\n--- next page ---\n"


def engine_pages(engine: str, paths: tuple[str, ...]) -> Callable[[bytes], None]:
    """Return a reader of all pages of a server, joined to one input."""

    def run(data: bytes) -> None:
        bodies = dict(zip(paths, data.split(PAGE_END), strict=False))
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


def web_configuration(data: bytes) -> None:
    """Check a web configuration; the PEM files that it names are not there."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "web.yml"
        file.write_bytes(data)
        with suppress(ConfigError):
            WebConfigFile(file).read()


def socket_tables(data: bytes) -> None:
    """Read /proc/net/tcp and tcp6."""
    with TemporaryDirectory() as folder:
        net = Path(folder) / "self" / "net"
        net.mkdir(parents=True)
        for table in ("tcp", "tcp6"):
            (net / table).write_bytes(data)
        with suppress(SourceError):
            listening_sockets(Path(folder), range(1 << 16))


def snapshot_page(data: bytes) -> None:
    """Draw what another daemon answers to `kvwatch top --url`."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    now = Moment(monotonic=100.0, unix=5000.0, zone=UTC)
    feed = Feed(origin="http://127.0.0.1:9836", refresh_seconds=1.0).with_view(view_of(document), now)
    shown = screen_of(feed, State(), now, UNICODE, cells=80, rows=24)
    assert len(shown.lines) <= 24


def prometheus_answer(data: bytes) -> None:
    """Read what Prometheus' query API answers."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(document, dict):
        with suppress(MatrixError):
            sane(read_answer(document))
