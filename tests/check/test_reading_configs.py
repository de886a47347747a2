"""vLLM's --config files, kvwatch's own configuration, files of variables, comments that ignore, names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.check.declaration import Ignore, Place
from kvwatch.check.reading.declare import Given
from tests.check.declared import declared, declared_files, lines, messages, only, stated

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "# chat\nmodel: acme/chat\nmax-model-len: 32k\ngpu_memory_utilization: 0.7\nenforce-eager: true\n"


def test_a_configuration_file_by_itself_is_a_server() -> None:
    """Its stem is the name; every key has its line."""
    server = only(declared_files({"conf/chat.yaml": CONFIG}))
    assert (server.name, server.launch.engine, server.place.line) == ("chat", "vllm", 2)
    assert stated(server) == {"full_length_tokens": 32000, "model": "acme/chat", "share_ratio": 0.7}
    assert lines(server) == {"full_length_tokens": 3, "model": 2, "share_ratio": 4}


def test_a_configuration_file_that_a_command_names_is_that_servers() -> None:
    """It counts once, under the command's name; the command line goes before the file."""
    server = only(
        declared_files(
            {
                "chat.yaml": CONFIG,
                "compose.yml": "services:\n  web:\n    image: vllm/vllm-openai:v0.28.0\n"
                "    volumes: ['.:/etc/vllm:ro']\n"
                "    command: --config /etc/vllm/chat.yaml --max-model-len 4096\n",
            }
        )
    )
    assert (server.name, server.launch.full_length_tokens, server.launch.share_ratio) == ("web", 4096, 0.7)
    assert server.places["full_length_tokens"] == Place(file="compose.yml", line=5)
    assert server.places["share_ratio"] == Place(file="chat.yaml", line=4)


def test_a_configuration_file_that_is_not_there_leaves_no_default() -> None:
    """Anything may stand in it."""
    declaration = declared(start__sh="vllm serve m --config gone.yaml --max-model-len 4096")
    assert only(declaration).launch.tensor_parallel is None
    assert messages(declaration) == [
        "start.sh:1: gone.yaml (--config) is not among the files given: what it sets is not known"
    ]


def test_templates_in_a_configuration_file_are_unknown() -> None:
    """Jinja in values, with and without quotes; the other keys are read."""
    declaration = declared(
        chat__yaml=(
            "model: acme/chat\nmax-model-len: {{ length }}\nmax-num-seqs: '{{ seqs }}'\ndtype: bfloat16\n"
        )
    )
    assert stated(only(declaration)) == {
        "dtype": "bfloat16",
        "full_length_tokens": None,
        "model": "acme/chat",
        "request_limit": None,
    }
    assert messages(declaration) == [
        "chat.yaml:2: {{ length }} is a template: what its key sets is not known",
        "chat.yaml:3: {{ seqs }} is a template: what its key sets is not known",
    ]


def test_own_configuration_adds_to_servers_of_the_same_name(tmp_path: Path) -> None:
    """What a command settles goes first; the limit on shares holds for all cards."""
    declaration = declared_files(
        {
            "compose.yml": "services:\n  chat:\n    image: vllm/vllm-openai:v0.28.0\n    gpus: all\n"
            "    command: --model x --max-model-len 4096\n",
            "kvwatch.yaml": f"""\
            share_limit: 0.9
            servers:
              - name: chat
                url: http://127.0.0.1:8000
                request_limit: 7
                full_length_tokens: 99
                model_config: {tmp_path}/gone
              - name: embed
                url: http://127.0.0.1:8001
                engine: vllm
                kv_cache_memory_bytes: 1.72GiB
              - url: http://127.0.0.1:8002
            """,
        }
    )
    chat, embed = declaration.servers
    assert stated(chat) | {"model": None} == {"full_length_tokens": 4096, "model": None, "request_limit": 7}
    assert chat.places["request_limit"] == Place(file="kvwatch.yaml", line=5)
    assert chat.model_detail == f"{tmp_path}/gone is not on this machine"
    assert (embed.name, embed.launch.pin_bytes, embed.place.line) == ("embed", 1846835937, 8)
    assert declaration.cards[0].share_limit_ratio == 0.9


def test_what_a_command_takes_by_default_goes_before_own_configuration() -> None:
    """The command is what starts: 0.92, whatever kvwatch was told; the contradiction is told."""
    compose = (
        "services:\n  chat:\n    image: vllm/vllm-openai:v0.28.0\n    command: --model x --max-num-seqs 8\n"
    )
    own = """\
        servers:
          - name: chat
            url: http://127.0.0.1:8000
            share: 0.5
            request_limit: 9
            full_length_tokens: 4096
        """
    declaration = declared_files({"compose.yml": compose, "kvwatch.yaml": own})
    launch = only(declaration).launch
    assert (launch.share_ratio, launch.request_limit, launch.full_length_tokens) == (0.92, 8, 4096)
    assert "share_ratio" not in only(declaration).places
    assert [line for line in messages(declaration) if line.startswith("kvwatch.yaml")] == [
        "kvwatch.yaml:4: share is not taken from here: the command of chat states none and takes the default",
        "kvwatch.yaml:5: request_limit is not taken from here: the command of chat states another",
    ]


def test_what_is_wrong_in_own_configuration_is_told() -> None:
    """By its own reader, with line and key; an engine that cannot be told is a problem."""
    wrong = declared(kvwatch__yaml="servers:\n  - url: http://127.0.0.1:8000\n    share: 1.5\n")
    assert wrong.servers == ()
    assert messages(wrong)[0].startswith("kvwatch.yaml:3: servers[0].share: 1.5 is out of range")
    untold = declared(kvwatch__yaml="servers:\n  - url: http://127.0.0.1:8000\n    request_limit: 4\n")
    assert messages(untold) == [
        (
            "kvwatch.yaml:2: 127.0.0.1:8000: neither its engine nor a setting that only one "
            "has; say `engine: vllm`"
        )
    ]


def test_kinds_are_told_by_content() -> None:
    """A file without a telling name; what is of no kind is told, and so is an empty one."""
    declaration = declared_files(
        {
            "server": "vllm serve acme/chat\n",
            "compose": "services: {a: {image: vllm/vllm-openai:v0.28.0, command: --model b}}\n",
            "values.yaml": "replicaCount: 1\nimage: {tag: x}\n",
            "empty.yaml": "# nothing\n",
            "unit": "[Service]\nExecStart=vllm serve c\n",
        }
    )
    assert {server.launch.model for server in declaration.servers} == {"acme/chat", "b", "c"}
    assert [message.partition(" (")[0] for message in messages(declaration)] == [
        "values.yaml:1: of no kind that is known here",
        "empty.yaml:1: nothing is in it",
    ]


def test_releases_of_the_command_line_fill_what_files_leave_open() -> None:
    """An image's tag goes before --engine-version."""
    given = Given(versions={"vllm": (0, 12, 0), "llamacpp": (11434,)})
    declaration = declared_files(
        {
            "a.sh": "vllm serve a",
            "b.sh": "docker run vllm/vllm-openai:v0.28.0 --model b",
            "c.sh": "llama-server -m c.gguf",
        },
        given,
    )
    assert [server.version for server in declaration.servers] == [(0, 12, 0), (0, 28, 0), (11434,)]
    assert declaration.servers[0].launch.share_ratio == 0.9


def test_names_are_unique() -> None:
    """A file's stem; of several in one file what each serves, else a number; equal names get their file's."""
    declaration = declared_files(
        {
            "one.sh": "vllm serve a",
            "more.sh": "vllm serve b --served-model-name chat\nvllm serve c\nvllm serve d",
            "x/compose.yml": "services: {web: {image: vllm/vllm-openai:v0.28.0, command: --model e}}",
            "y/stack.yml": "services: {web: {image: vllm/vllm-openai:v0.28.0, command: --model f}}",
        }
    )
    names = {server.name: server.launch.model for server in declaration.servers}
    assert names == {
        "one": "a",
        "chat": "b",
        "more-2": "c",
        "more-3": "d",
        "compose/web": "e",
        "stack/web": "f",
    }


def test_comments_ignore_for_what_they_stand_near() -> None:
    """In a service, above a command, at the head of a file."""
    declaration = declared_files(
        {
            "compose.yml": """\
            # kvwatch: ignore=unpinned-neighbours they start in turn

            services:
              a:
                # kvwatch: ignore=share-near-whole,length-just-in-case: measured
                image: vllm/vllm-openai:v0.28.0
                command: --model a
              b:
                image: vllm/vllm-openai:v0.28.0
                command: --model b
            """,
            "start.sh": """\
            vllm serve c &

            # kvwatch: ignore=default-share-twice
            vllm serve d &
            """,
        }
    )
    found = {
        server.name: [(one.rule, one.reason) for one in server.ignores] for server in declaration.servers
    }
    assert found == {
        "a": [
            ("unpinned-neighbours", "they start in turn"),
            ("share-near-whole", "measured"),
            ("length-just-in-case", "measured"),
        ],
        "b": [("unpinned-neighbours", "they start in turn")],
        "start-1": [],
        "start-2": [("default-share-twice", "")],
    }
    assert declaration.servers[-1].ignores == (
        Ignore(rule="default-share-twice", reason="", place=Place(file="start.sh", line=3)),
    )
