"""Files as people have them, each read by itself: servers, cards, releases and what stays open."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.check.reading.declare import Given, read
from tests.check.declared import declared_files

FILES = Path(__file__).parent / "files"

EXPECTED = {
    "compose.yml": {
        "chat": (15, (0, 28, 0), ("0",), ("${CHAT_SHARE}",)),
        "embed": (29, (0, 28, 0), ("0",), ()),
        "small": (38, (11434,), None, ()),
    },
    "kubernetes.yaml": {
        "chat/vllm": (25, (0, 28, 0), ("chat/vllm/gpu0",), ()),
        "batch/server": (51, None, ("gpu-1/2", "gpu-1/3"), ()),
    },
    "start.sh": {
        "chat": (10, None, ("0",), ()),
        "start-2": (17, None, ("1",), ()),
        "start-3": (17, None, ("2",), ()),
        "embed": (22, (0, 11, 0), ("3",), ()),
    },
    "chat.yaml": {"chat": (2, None, None, ())},
    "kvwatch.yaml": {"chat": (3, None, None, ()), "embed": (6, None, None, ())},
    "vllm@.service": {"vllm@": (9, None, ("0",), ())},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_file_declares_its_servers(name: str) -> None:
    """Name -> line of its command, release, cards, variables that nothing settles."""
    declaration = read([str(FILES / name)], Given()).declaration
    assert {
        server.name: (server.place.line, server.version, server.cards, server.unresolved)
        for server in declaration.servers
    } == EXPECTED[name]


def test_an_instance_finds_the_files_of_its_name() -> None:
    """vllm@chat.service reads chat.yaml and chat.env, which stand beside it."""
    unit = (FILES / "vllm@.service").read_text()
    names = [str(FILES / "chat.yaml"), str(FILES / "chat.env")]
    texts = {Path(name).name: Path(name).read_text() for name in names}
    declaration = declared_files({"vllm@chat.service": unit, **texts})
    (server,) = declaration.servers
    assert (server.launch.model, server.launch.full_length_tokens) == ("acme/chat-8b", 8192)
    assert server.places["model"].file == "chat.yaml"
    assert declaration.problems == ()
