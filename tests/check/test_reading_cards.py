"""Which server is on which card: by files, by --card, by a running kvwatch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwatch.check.declaration import Card
from kvwatch.check.reading.card_options import CardOption
from kvwatch.check.reading.declare import Given
from kvwatch.check.reading.live import Live, LiveCard, live_of
from tests.check.declared import declared_files, messages, only

GIB = 1 << 30

PLACED = {
    "vllm-first-of-many": ("CUDA_VISIBLE_DEVICES=2,3 vllm serve m", ("2",)),
    "vllm-ranks": ("CUDA_VISIBLE_DEVICES=2,3,4 vllm serve m -tp 2", ("2", "3")),
    "vllm-pipeline": ("CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve m -tp 2 -pp 2", ("0", "1", "2", "3")),
    "vllm-data-parallel-local": (
        "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve m -dp 4 --data-parallel-size-local 2",
        ("0", "1"),
    ),
    "vllm-uuid": ("CUDA_VISIBLE_DEVICES=GPU-12ab vllm serve m", ("GPU-12ab",)),
    "vllm-device-ids": ("vllm serve m --device-ids 3", ("3",)),
    "vllm-device-ids-among": ("CUDA_VISIBLE_DEVICES=4,5 vllm serve m --device-ids 1", ("5",)),
    "vllm-several-nodes": ("CUDA_VISIBLE_DEVICES=0,1 vllm serve m -tp 2 --nnodes 2", None),
    "vllm-unknown-ranks": ("CUDA_VISIBLE_DEVICES=0,1 vllm serve m -tp $TP", None),
    "vllm-too-few": ("CUDA_VISIBLE_DEVICES=0 vllm serve m -tp 2", None),
    "vllm-none": ("CUDA_VISIBLE_DEVICES= vllm serve m", ()),
    "vllm-stops-at-minus-one": ("CUDA_VISIBLE_DEVICES=1,-1,0 vllm serve m -tp 2", None),
    "llama-all-it-sees": ("CUDA_VISIBLE_DEVICES=0,1 llama-server -m a.gguf", ("0", "1")),
    "llama-one-device": ("CUDA_VISIBLE_DEVICES=2,3 llama-server -m a.gguf -dev CUDA1", ("3",)),
    "llama-main-gpu": ("CUDA_VISIBLE_DEVICES=2,3 llama-server -m a.gguf -sm none -mg 1", ("3",)),
    "llama-main-gpu-alone": ("llama-server -m a.gguf --split-mode none --main-gpu 1", ("1",)),
    "llama-device-alone": ("llama-server -m a.gguf --device CUDA1", ("1",)),
    "llama-no-gpu": ("CUDA_VISIBLE_DEVICES=0 llama-server -m a.gguf -ngl 0", ()),
    "llama-device-none": ("llama-server -m a.gguf -dev none", ()),
    "nothing-said": ("vllm serve m", None),
}


@pytest.mark.parametrize("command,cards", PLACED.values(), ids=PLACED)
def test_visible_devices_and_the_engines_rules(command: str, cards: tuple[str, ...] | None) -> None:
    """VLLM's ranks take the first devices that it sees, a llama-server all of them."""
    assert only(declared_files({"start.sh": command})).cards == cards


def option(name: str, gib: int, *servers: str) -> CardOption:
    """Return one `--card`."""
    return CardOption(name=name, total_bytes=gib * GIB, servers=servers)


def test_one_card_takes_all_without_a_place_of_their_own() -> None:
    """`--card A=80GiB` alone; one that needs two cards is not put on it."""
    declaration = declared_files(
        {"a.sh": "vllm serve a", "b.sh": "llama-server -m b.gguf", "c.sh": "vllm serve c -tp 2"},
        Given(cards=(option("A", 80),)),
    )
    assert [server.cards for server in declaration.servers] == [("A",), ("A",), None]
    assert declaration.cards == (Card(name="A", total_bytes=80 * GIB),)
    assert messages(declaration) == [
        "c.sh:1: the cards of c are not known: it has 2 ranks, and there is one card"
    ]


def test_one_card_is_the_one_that_files_call_by_an_index() -> None:
    """The files say 0, the command line A: there is one card, so both are the same."""
    declaration = declared_files(
        {"a.sh": "CUDA_VISIBLE_DEVICES=0 vllm serve a", "b.sh": "vllm serve b"},
        Given(cards=(option("A", 80),)),
    )
    assert [server.cards for server in declaration.servers] == [("A",), ("A",)]
    assert [card.name for card in declaration.cards] == ["A"]


def test_one_card_beside_several_indexes_is_told() -> None:
    """Which of them it is cannot be known."""
    declaration = declared_files(
        {"a.sh": "CUDA_VISIBLE_DEVICES=0 vllm serve a", "b.sh": "CUDA_VISIBLE_DEVICES=1 vllm serve b"},
        Given(cards=(option("A", 80),)),
    )
    assert [server.cards for server in declaration.servers] == [("0",), ("1",)]
    assert messages(declaration) == [
        "--card:None: the files name several cards (0, 1); give each its own, such as --card 0=SIZE"
    ]


def test_cards_name_their_servers() -> None:
    """A server on two cards is named by both; a name that nobody has is told."""
    declaration = declared_files(
        {"a.sh": "vllm serve a", "b.sh": "CUDA_VISIBLE_DEVICES=7 vllm serve b -tp 2"},
        Given(cards=(option("A", 80, "a", "b"), option("B", 40, "b", "gone"))),
    )
    assert [server.cards for server in declaration.servers] == [("A",), ("A", "B")]
    assert messages(declaration) == ["--card:None: no server is called 'gone'; the files have a, b"]


def test_sizes_of_indexes() -> None:
    """`--card 0=46068MiB` gives the size of the card that files call 0."""
    declaration = declared_files(
        {"a.sh": "CUDA_VISIBLE_DEVICES=1 vllm serve a"}, Given(cards=(option("0", 40), option("1", 80)))
    )
    assert only(declaration).cards == ("1",)
    assert {card.name: card.total_bytes for card in declaration.cards} == {"0": 40 * GIB, "1": 80 * GIB}


def test_a_running_kvwatch_gives_cards_and_footprints() -> None:
    """UUIDs of files are the daemon's indexes; a server of the same name has what was measured."""
    live = Live(
        cards=(LiveCard(name="0", uuid="GPU-a", total_bytes=80 * GIB),),
        footprints={"a": 5 * GIB, "other": 1},
        share_limit_ratio=0.9,
    )
    declaration = declared_files(
        {"a.sh": "CUDA_VISIBLE_DEVICES=GPU-a vllm serve a", "b.sh": "vllm serve b"}, Given(live=live)
    )
    assert [(server.cards, server.measured_bytes) for server in declaration.servers] == [
        (("0",), 5 * GIB),
        (("0",), None),
    ]
    assert declaration.cards == (Card(name="0", total_bytes=80 * GIB, share_limit_ratio=0.9),)


def test_a_snapshot_is_read_for_what_it_knows() -> None:
    """A divided GPU is left out, its instances are cards; what is unknown gives no footprint."""
    document = {
        "share_limit_ratio": 0.95,
        "devices": [
            {
                "reading": {
                    "uuid": "GPU-a",
                    "index": 0,
                    "parent_uuid": None,
                    "total_bytes": GIB,
                    "divided": False,
                }
            },
            {
                "reading": {
                    "uuid": "GPU-b",
                    "index": 1,
                    "parent_uuid": None,
                    "total_bytes": None,
                    "divided": True,
                }
            },
            {
                "reading": {
                    "uuid": "MIG-1",
                    "index": 0,
                    "parent_uuid": "GPU-b",
                    "total_bytes": 9,
                    "divided": False,
                }
            },
            {"reading": None},
        ],
        "servers": [
            {"target": {"name": "chat"}, "device_bytes": {"GPU-a": 30, "GPU-c": 28}, "pool_bytes": 10},
            {"target": {"name": "asleep"}, "device_bytes": {"GPU-a": 3}, "pool_bytes": 10},
            {"target": {"name": "unknown"}, "device_bytes": {"GPU-a": None}, "pool_bytes": 10},
            {"target": {"name": "new"}, "device_bytes": {}, "pool_bytes": None},
        ],
    }
    live = live_of(json.loads(json.dumps(document)))
    assert [(card.name, card.total_bytes) for card in live.cards] == [("0", GIB), ("MIG-1", 9)]
    assert live.footprints == {"chat": 20}


def test_models_are_found_where_mounts_and_options_say(tmp_path: Path) -> None:
    """A container's path through its volume, a --model by a server's or a model's name."""
    tiny = Path(__file__).parent / "models" / "tiny"
    text = (
        "services:\n"
        f"  mounted: {{image: vllm/vllm-openai:v0.28.0, volumes: "
        f"['{tiny.parent}:/models:ro'], command: --model /models/tiny}}\n"
        "  named: {image: vllm/vllm-openai:v0.28.0, command: --model /elsewhere/x}\n"
        "  by-model: {image: vllm/vllm-openai:v0.28.0, command: --model acme/tiny}\n"
        "  hidden: {image: vllm/vllm-openai:v0.28.0, command: --model /elsewhere/y}\n"
    )
    given = Given(models={"named": str(tiny), "acme/tiny": str(tiny / "config.json"), "nobody": "x"})
    declaration = declared_files({str(tmp_path / "compose.yml"): text}, given)
    found = {server.name: server.model is not None for server in declaration.servers}
    assert found == {"mounted": True, "named": True, "by-model": True, "hidden": False}
    assert declaration.servers[-1].model_detail == (
        "/elsewhere/y is a path inside its container; give --model hidden=PATH"
    )
    assert messages(declaration) == ["--model:None: no server and no model is called 'nobody'"]
