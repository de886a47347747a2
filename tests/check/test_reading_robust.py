"""Hostile and broken files: bounded, one clear problem, never an exception."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvwatch.check.reading.declare import Given, read
from tests.check.declared import declared_files, messages
from tests.check.test_reading_systemd import UNIT

FILES = Path(__file__).parent / "files"
SECONDS = 10.0
"""Each takes one at most on a machine that has nothing else to do."""

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
MERGE_BOMB = "a0: &a0 {k0: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}], k{i}: 1}}\n" for i in range(1, 40)
)

HOSTILE = {
    "yaml-bomb": ("x.yaml", BOMB, "x.yaml:15: more than 100000 values, with aliases written out"),
    "yaml-merges": ("x.yaml", MERGE_BOMB, "x.yaml:"),
    "yaml-deep": ("x.yaml", "[" * 50_000, "x.yaml:1: "),
    "yaml-deep-blocks": (
        "x.yaml",
        "".join(" " * i + "a:\n" for i in range(900)),
        "x.yaml:61: more than 60 levels",
    ),
    "yaml-broken": ("x.yaml", "services:\n  a: [\n  b: }\n", "x.yaml:3: not YAML: "),
    "yaml-tab": ("x.yaml", "services:\n\ta: 1\n", "x.yaml:2: not YAML: "),
    "yaml-recursive": ("x.yaml", "services: &a\n  x: *a\n", "x.yaml:2: an alias (*) without its anchor (&)"),
    "json": ("x.json", '{"a": ', "x.json:2: not YAML: "),
    "shell-doubling": (
        "x.sh",
        "A=xxxxxxxx\n" + "A=$A$A\n" * 5_000 + "vllm serve $A\n",
        "x.sh:1: it does more",
    ),
    "shell-array-doubling": ("x.sh", "A=(x)\n" + 'A+=("${A[@]}")\n' * 1_000, "x.sh:1: no command"),
    "shell-loops": ("x.sh", "for i in {0..63}; do\n" * 30 + "vllm serve x\n" + "done\n" * 30, ""),
    "shell-many": ("x.sh", "vllm serve a\n" * 6_000, "x.sh:501: more than 500 servers"),
    "shell-long": ("x.sh", "# x\n" * 100_000, "x.sh:1: longer than 256 KiB: is it a shell script?"),
    "shell-open-quote": ("x.sh", "vllm serve 'a\n" * 501, ""),
    "shell-nested-braces": ("x.sh", "${a:-" * 20_000, "x.sh:1: no command"),
    "shell-nested-commands": ("x.sh", "$(" * 20_000, "x.sh:1: no command"),
    "shell-redirections": ("x.sh", "1<" * 5_000, "x.sh:1: no command"),
    "shell-heredocs": ("x.sh", "cat <<A <<B <<C\n" * 5_000, "x.sh:1: no command"),
    "shell-in-shell": ("x.sh", "bash -c " * 500 + "x", "x.sh:1: no command"),
    "script-of-itself": ("x.sh", "bash x.sh\n. ./x.sh\n", "x.sh:1: no command"),
    "unit-continued": ("x.service", "[Service]\nExecStart=vllm serve \\\n" + "a \\\n" * 5_000, ""),
}


@pytest.mark.parametrize("name,text,message", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_bounded(name: str, text: str, message: str) -> None:
    """In a few seconds, with at most one problem that names the line."""
    started = time.monotonic()
    declaration = declared_files({name: text})
    assert time.monotonic() - started < SECONDS
    if message:
        assert any(found.startswith(message) for found in messages(declaration)), messages(declaration)


def test_what_is_no_text_is_a_problem(tmp_path: Path) -> None:
    """Binary, another encoding, too large: told with the line; other files are read all the same."""
    (tmp_path / "binary").write_bytes(b"a\nb\0c")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe4\n")
    (tmp_path / "large.sh").write_bytes(b"#" * (3 << 20))
    (tmp_path / "good.sh").write_text("vllm serve acme/chat\n")
    names = [str(tmp_path / name) for name in ("binary", "latin.yaml", "large.sh", "good.sh")]
    reading = read(names, Given())
    assert [server.launch.model for server in reading.declaration.servers] == ["acme/chat"]
    assert [message.removeprefix(f"{tmp_path}/") for message in messages(reading.declaration)] == [
        "binary:2: a NUL byte stands here: this is not a text file",
        "latin.yaml:2: this line is not UTF-8; save the file as UTF-8",
        "large.sh:None: larger than 2 MiB: is it a configuration?",
    ]
    assert reading.unopened == ()


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """A FIFO behind a link hangs nobody; a folder, a missing file."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "fifo")
    names = [str(tmp_path / "link.yaml"), str(tmp_path), str(tmp_path / "gone"), "nul\0"]
    reading = read(names, Given())
    assert reading.unopened == tuple(names)
    assert [message.rpartition(": ")[2] for message in messages(reading.declaration)] == [
        "this is no regular file",
        "this is a folder; name the files in it",
        "no such file",
        "embedded null byte",
    ]


def test_a_named_file_that_is_a_fifo_hangs_nobody(tmp_path: Path) -> None:
    """What a file points at is opened as carefully: --config, EnvironmentFile, a model's path."""
    os.mkfifo(tmp_path / "chat.yaml")
    os.mkfifo(tmp_path / "model")
    (tmp_path / "a.service").write_text(
        f"[Service]\nEnvironmentFile={tmp_path}/chat.yaml\n"
        f"ExecStart=vllm serve {tmp_path}/model --config chat.yaml\n"
    )
    server = read([str(tmp_path / "a.service")], Given()).declaration.servers[0]
    assert server.model_detail == f"{tmp_path}/model is not on this machine"


SEEDS = {path.name: path.read_text() for path in sorted(FILES.rglob("*")) if path.is_file()}
SEEDS["a.service"] = UNIT
BITS = [
    *("'", '"', "`", "(", ")", "|", "[", "]", "\n", "\\\n", "\x00", "ü", "\u2028"),
    *("${", "$(", "$$", "{{", "}}", "%i", "*a", "&a ", "- ", ": ", "1<", "=(", "<<E"),
    *("--config", " -e ", "docker run ", "for i in ", "; do ", "done\n", "if ", "fi\n"),
]


def mutated(text: str, chance: random.Random) -> str:
    """Return a text with some places cut, doubled or filled with what grammars stumble over."""
    for _ in range(chance.randrange(1, 10)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice([0, 0, 1, 5, 80]))
        text = text[:start] + chance.choice([chance.choice(BITS), text[start:end] * 2, ""]) + text[end:]
    return text


@pytest.mark.parametrize("seed", range(60))
def test_mutated_files_never_raise(seed: int) -> None:
    """Real files, damaged: whatever is left of them is read."""
    chance = random.Random(seed)  # noqa: S311 - the same at every run
    names = chance.sample(sorted(SEEDS), 3)
    declaration = declared_files({name: mutated(SEEDS[name], chance) for name in names})
    for server in declaration.servers:
        assert server.name
        assert server.place.line is None or server.place.line >= 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400), name=st.sampled_from(["x", "x.yaml", "x.service", ".env"]))
def test_random_bytes_never_raise(tmp_path: Path, content: bytes, name: str) -> None:
    """Any content under any name is a declaration with problems at most."""
    path = tmp_path / name
    path.write_bytes(content)
    assert read([str(path)], Given()).unopened == ()
