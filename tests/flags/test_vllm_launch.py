"""`vllm serve` where no single real parser shows the way: commands, releases, files that fail, doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvwatch.flags import llamacpp, vllm
from kvwatch.flags.command import Command
from kvwatch.flags.launch import Launch, Origin
from kvwatch.readings import Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS = {
    "plain": "vllm serve org/model",
    "full-path": "/opt/venv/bin/vllm serve org/model",
    "script-by-its-interpreter": "/usr/bin/python3.12 /usr/local/bin/vllm serve org/model",
    "module": "python -m vllm.entrypoints.openai.api_server --model org/model",
    "module-with-interpreter-options": (
        "python3 -u -X dev -Wignore -m vllm.entrypoints.openai.api_server --model org/model"
    ),
    "module-in-one-word": "python3 -mvllm.entrypoints.openai.api_server --model org/model",
    "module-bundled": "python3 -um vllm.entrypoints.cli.main serve org/model",
    "package": "python3 -m vllm serve org/model",
    "file": "python /src/vllm/entrypoints/openai/api_server.py --model org/model",
    "uv-run": "uv run --with vllm --python 3.12 vllm serve org/model",
    "uv-run-module": "uv run python -m vllm.entrypoints.openai.api_server --model org/model",
    "uvx": "uvx vllm serve org/model",
    "numactl": "numactl --cpunodebind=0 --membind 0 vllm serve org/model",
    "tini": "/usr/bin/tini -- python3 -m vllm.entrypoints.openai.api_server --model org/model",
    "assignments": "CUDA_VISIBLE_DEVICES=0 OMP_NUM_THREADS=4 vllm serve org/model",
}

OTHERS = {
    "engine-core": ["VLLM::EngineCore"],
    "worker": ["VLLM::Worker_TP0"],
    "api-server-child": ["VLLM::APIServer_0"],
    "other-subcommand": ["vllm", "bench", "serve", "--model", "m"],
    "chat-client": ["vllm", "chat"],
    "spawned-child": [
        "python3",
        "-c",
        "from multiprocessing.spawn import spawn_main",
        "--multiprocessing-fork",
    ],
    "resource-tracker": ["python", "-c", "import vllm; serve"],
    "shell": ["sh", "-c", "vllm serve org/model"],
    "editor": ["vim", "vllm", "serve"],
    "other-module": ["python", "-m", "vllm.entrypoints.openai.run_batch", "-i", "x"],
    "module-missing": ["python", "-m"],
    "interpreter-alone": ["python3"],
    "launcher-alone": ["uv"],
    "assignment-alone": ["A=1"],
    "empty-word": [""],
    "empty": [],
}


def read(
    *argv: str,
    version: tuple[int, ...] | None = (0, 32, 0),
    config_text: Callable[[str], str] | None = None,
    **environ: str,
) -> Launch:
    """Parse what follows `vllm serve`."""
    command = Command(argv=("vllm", "serve", *argv), environ=environ)
    return vllm.parse(command, version=version, config_text=config_text)


@pytest.mark.parametrize("line", SERVERS.values(), ids=SERVERS)
def test_recognises_a_server_and_its_model(line: str) -> None:
    """A server is recognised behind paths, interpreters and launchers, and its own words are found."""
    command = Command(argv=tuple(line.split()))
    assert vllm.recognises(command)
    assert vllm.parse(command, version=None, config_text=None).model == "org/model"
    assert not llamacpp.recognises(command)


@pytest.mark.parametrize("argv", OTHERS.values(), ids=OTHERS)
def test_recognises_nothing_else(argv: list[str]) -> None:
    """Titles, other subcommands, shells and clients are no servers, and parsing them is refused."""
    command = Command(argv=tuple(argv))
    assert not vllm.recognises(command)
    assert not llamacpp.recognises(command)
    with pytest.raises(ValueError, match="not the command"):
        vllm.parse(command, version=None, config_text=None)


@pytest.mark.parametrize(
    "line",
    [
        "llama-server -m m.gguf",
        "/app/llama-server --host 0.0.0.0 -m m.gguf",
        "llama serve -m m.gguf",
        "numactl -N 0 ./build/bin/llama-server -m m.gguf",
        "python3 /venv/bin/llama-server -m m.gguf",
    ],
)
def test_recognises_a_llama_server(line: str) -> None:
    """A llama-server is recognised by any path and as a subcommand."""
    command = Command(argv=tuple(line.split()))
    assert llamacpp.recognises(command)
    assert llamacpp.parse(command, version=None).model == "m.gguf"
    assert not vllm.recognises(command)


@pytest.mark.parametrize(
    "version, ratio",
    [
        ((0, 8, 5), 0.9),
        ((0, 19, 1), 0.9),
        ((0, 20, 0), 0.92),
        ((0, 32, 0), 0.92),
        ((0, 33, 0), None),
        ((0, 1), None),
        (None, None),
    ],
)
def test_share_by_release(version: tuple[int, ...] | None, ratio: float | None) -> None:
    """The share's default moved at 0.20.0; of a release that was not read it is unknown."""
    launch = read("m", version=version)
    assert launch.share_ratio == ratio
    assert launch.origin("share_ratio") is (Origin.DEFAULT if ratio else Origin.UNKNOWN)


def test_a_default_that_is_off_differs_from_unknown() -> None:
    """No pin by default is known to be none; an automatic length was stated; a block size is unknown."""
    launch = read("m", "--max-model-len", "auto")
    assert (launch.pin_bytes, launch.full_length_tokens, launch.block_size) == (None, None, None)
    assert launch.origin("pin_bytes") is Origin.DEFAULT
    assert launch.origin("full_length_tokens") is Origin.STATED
    assert launch.origin("block_size") is Origin.UNKNOWN


def failing(error: Exception) -> Callable[[str], str]:
    """Make a reader of files that fails."""

    def config_text(_: str) -> str:
        raise error

    return config_text


@pytest.mark.parametrize(
    "config_text",
    [
        pytest.param(None, id="nobody-reads"),
        pytest.param(failing(SourceError(Reason.PERMISSION)), id="permission"),
        pytest.param(failing(FileNotFoundError()), id="missing"),
        pytest.param(failing(UnicodeDecodeError("utf-8", b"", 0, 1, "")), id="not-text"),
        pytest.param(lambda _: "a: [", id="not-yaml"),
        pytest.param(lambda _: "just words", id="not-a-mapping"),
        pytest.param(lambda _: "", id="empty"),
        pytest.param(lambda _: "a: &x [1]\nb: *x\n", id="aliases"),
    ],
)
def test_an_unread_file_leaves_no_default_standing(config_text: Callable[[str], str] | None) -> None:
    """What the file may have set is unknown; what the command line says still holds."""
    launch = read("--config", "f.yaml", "--port", "9000", config_text=config_text)
    assert launch.port == 9000
    assert launch.model is None
    assert launch.share_ratio is None
    assert launch.tensor_parallel is None
    assert launch.origin("pin_bytes") is Origin.UNKNOWN
    assert launch.notes[0].startswith("--config: ")


@pytest.mark.parametrize(
    "version, prefix_caching, origin",
    [
        ((0, 32, 0), False, Origin.STATED),
        ((0, 28, 0), False, Origin.STATED),
        ((0, 27, 0), None, Origin.UNKNOWN),
        (None, None, Origin.UNKNOWN),
    ],
)
def test_false_in_the_file_by_release(
    version: tuple[int, ...] | None,
    prefix_caching: bool | None,  # noqa: FBT001 -- a row of the table
    origin: Origin,
) -> None:
    """The module reads it as `--no-...` from 0.28 on; before, what holds is the engine's own choice."""
    argv = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m", "--config", "f.yaml")
    launch = vllm.parse(
        Command(argv=argv), version=version, config_text=lambda _: "enable-prefix-caching: false"
    )
    assert launch.prefix_caching is prefix_caching
    assert launch.origin("prefix_caching") is origin


def test_serve_passes_over_false_in_the_file() -> None:
    """`vllm serve` reads the file before it knows its own options, so false is nothing at all (0.32.0)."""
    launch = read("m", "--config", "f.yaml", config_text=lambda _: "enable-prefix-caching: false")
    assert launch.origin("prefix_caching") is Origin.UNKNOWN


@pytest.mark.parametrize(
    "argv, model",
    [
        pytest.param(["--new-option", "value", "--port", "9000"], None, id="value-or-model"),
        pytest.param(["org/model", "--new-option", "value"], "org/model", id="model-first"),
        pytest.param(["--new-option=value", "org/model"], "org/model", id="value-attached"),
        pytest.param(["--new-flag", "--port", "9000", "org/model"], "org/model", id="unknown-flag"),
        pytest.param(
            ["--new-option", "value", "--port", "9000", "org/model"], "org/model", id="model-elsewhere"
        ),
        pytest.param(["one", "--port", "9000", "two"], None, id="two-models"),
        pytest.param(["--port", "9000"], None, id="none"),
    ],
)
def test_a_model_is_told_from_the_values_of_unknown_options(argv: list[str], model: str | None) -> None:
    """A word that may be either is taken for neither."""
    launch = read(*argv)
    assert launch.model == model
    assert launch.served_names == (None if model is None else (model,))


def test_an_ambiguous_beginning_leaves_all_it_may_mean_unknown() -> None:
    """A beginning that several known options share was unambiguous in some release: which, we do not know."""
    launch = read("m", "--kv-cache-me", "5G", "--decode-context-parallel-size", "2")
    assert launch.pin_bytes is None
    assert launch.origin("pin_bytes") is Origin.UNKNOWN
    assert launch.decode_context_parallel == 2


def test_a_value_that_cannot_be_read_is_stated_and_none() -> None:
    """A word in a form that is not known is neither guessed nor replaced by the default."""
    launch = read("m", "--gpu-memory-utilization", "plenty", "--port", "web", "-tp", "0")
    assert (launch.share_ratio, launch.port, launch.tensor_parallel) == (None, None, None)
    assert {"share_ratio", "port", "tensor_parallel"} <= launch.stated
    assert "plenty" not in repr(launch)


def test_keeps_what_no_field_stands_for() -> None:
    """Other options and variables are kept as given."""
    launch = read(
        *("m", "--enforce-eager", "--quantization=awq", "-q", "gptq", "--compilation-config.mode", "3"),
        *("--lora-modules", "a=/a", "b=/b"),
        VLLM_USE_V1="1",
        CUDA_VISIBLE_DEVICES="0,1",
    )
    assert launch.unknown == (
        ("--enforce-eager",),
        ("--quantization=awq",),
        ("-q", "gptq"),
        ("--compilation-config.mode", "3"),
        ("--lora-modules", "a=/a", "b=/b"),
        ("VLLM_USE_V1=1",),
    )
    assert launch.visible_devices == "0,1"


def test_old_boolean_words() -> None:
    """0.8.5 also took a word behind a boolean option; it is not the model."""
    launch = read("--enable-prefix-caching=false", "--enable-chunked-prefill", "m", version=(0, 8, 5))
    assert launch.prefix_caching is False
    assert launch.model == "m"


def test_a_processor_pool_may_override_a_pin() -> None:
    """On CPUs a variable sets the pool, whatever the option says."""
    assert read("m", "--kv-cache-memory-bytes", "1G").pin_bytes == 1 << 30
    assert read("m", "--kv-cache-memory-bytes", "1G", VLLM_CPU_KVCACHE_SPACE="40").pin_bytes is None
