"""How a question is written: every mistake has its sentence and exit status 2; nothing is guessed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvwatch.cli import main
from kvwatch.planning.keys import KEYS
from kvwatch.planning.specification import cards_of, half_digit
from tests.planning.models import EMBEDDING, GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

CARD = "--card 46068MiB "

MISTAKES = {
    "no card": ("--measured a=1GiB", "which card? add --card 46068MiB"),
    "no server": (CARD, "which servers? name a MODEL, or --server, or --measured"),
    "a card without a unit of ours": (
        "--card 46GB --measured a=1GiB",
        "'46GB' is not a size; allowed: bytes, or a number with KiB, MiB, GiB or TiB: 6.26GiB",
    ),
    "a card of nothing": ("--card 0 --measured a=1GiB", "card card: a card of nothing"),
    "two cards of one name": (
        "--card a=1GiB --card a=1GiB --measured a=1GiB",
        "two cards are called a; give each a name of its own",
    ),
    "a ceiling above the card": (
        CARD + "--ceiling 1.1 --measured a=1GiB",
        "'1.1' is no ceiling; allowed: above 0 and at most 1, such as 0.95",
    ),
    "a measurement of nobody": (CARD + "--measured 1GiB", "--measured 1GiB: whose is it? write NAME=..."),
    "a measurement with a strange key": (
        CARD + "--measured a=1GiB,kw=2GiB",
        "--measured a: 'kw' is no key of a measurement; known are kv, tokens",
    ),
    "a cache larger than its process": (
        CARD + "--measured a=1GiB,kv=2GiB",
        "--measured a: a KV cache of 2,147,483,648 bytes in a process of 1,073,741,824",
    ),
    "a key without a value": (
        CARD + "--measured a=1GiB,kv",
        "'a=1GiB,kv': after the first comma come key=value, each once",
    ),
    "a server without a name": (
        CARD + "--server /models/x",
        "--server /models/x: write NAME=MODEL with a name of its own",
    ),
    "two servers of one name": (
        CARD + "@ --name a --length 8 --concurrency 1 --server a=@",
        "--server a=@: write NAME=MODEL with a name of its own",
    ),
    "how long is not said": (
        CARD + "@ --name a --concurrency 4",
        "a: how long, how many? add length and concurrency",
    ),
    "options without a model": (CARD + "--length 8192", "--length is of a MODEL, and none is named"),
    "a count that is none": (
        CARD + "@ --length 8k --concurrency 4",
        "the options: length: '8k' is not a count; allowed: a whole number from 1",
    ),
    "a strange key of a server": (
        CARD + "--server a=@,len=8",
        f"--server a: 'len' is no key; known are {', '.join(KEYS)}",
    ),
    "an option of llama-server for vLLM": (
        CARD + "@ --name a --length 8 --concurrency 1 --cache-type-k q8_0",
        "a: cache_type_k belongs to llama-server, which loads a GGUF",
    ),
    "ranks without cards": (
        CARD + "@ --name a --length 8 --concurrency 1 --tp 2",
        "a: 2 ranks and 1 cards; give --card as often as there are ranks (2x46068MiB is two), or say on=card",
    ),
    "a card that is not there": (
        CARD + "@ --name a --length 8 --concurrency 1 --on b",
        "a: there is no card b; there are card",
    ),
    "a measurement on one of two cards": (
        "--card 2x24GiB --measured a=1GiB",
        "a: on which card is it? add on=card-0",
    ),
    "a log that is not there": (CARD + "--log a=/nowhere.log", "/nowhere.log: No such file or directory"),
    "a compute capability of one number": (
        CARD + "@ --length 8 --concurrency 1 --compute-capability 9",
        "the options: compute_capability: '9' is no compute capability; allowed: two numbers, such as 8.9",
    ),
    "a switch that is none": (
        CARD + "@ --length 8 --concurrency 1 --prefix-caching 1",
        "the options: prefix_caching: '1' is not a switch; allowed: yes, no",
    ),
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Return a model's folder."""
    (tmp_path / "config.json").write_text(json.dumps(EMBEDDING))
    return str(tmp_path)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A question that is written wrongly is refused with what is allowed, with status 2."""
    words, message = MISTAKES[mistake]
    assert main(["plan", *words.replace("@", model).split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"kvwatch plan: {message.replace('@', model)}\n")


@pytest.mark.parametrize(
    "text, message",
    [
        ("- 1", "no mapping: a plan has the keys ceiling, cards, servers"),
        ("cards: {a: 1GiB}\nserver: []", "server: a plan has the keys ceiling, cards, servers"),
        ("servers: []", "cards: a mapping of names to sizes, such as {a40: 46068MiB}"),
        ("cards: {a: 1GiB}", "servers: a list of mappings, such as - {name: chat, measured: 26358MiB}"),
        ("cards: {a: 1GiB}\nservers: [{measured: 1GiB}]", "servers[0]: a mapping with a name"),
        (
            "cards: {a: 1GiB}\nservers: [{name: b, kv: 1GiB}]",
            "servers[0]: kv is of a measurement; add measured: SIZE",
        ),
        (
            "cards: {a: 1GiB}\nservers: [{name: b, length: {}}]",
            "a value is missing, or is a mapping where text or a number is meant",
        ),
        ("cards: {a: 1GiB}\nservers: [{name: b}, {name: b}]", "two servers have one name"),
    ],
)
def test_mistakes_in_a_plan_file(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan file's mistake is told with the file's name or the place in it."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)
    assert main(["plan", str(plan)]) == 2
    assert message in capsys.readouterr().err


def test_a_plan_file_that_is_no_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A syntax error is told with its line, and one file is the whole question."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("cards:\n\ta: 1GiB\n")
    assert main(["plan", str(plan)]) == 2
    assert f"{plan}:2: " in capsys.readouterr().err
    assert main(["plan", str(plan), "--length", "8"]) == 2
    assert "--length: a plan file holds cards, servers and measurements itself" in capsys.readouterr().err


def test_what_a_model_file_does_not_say_is_no_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown architecture, or a model that is not there, cannot be answered: status 1, and no number."""
    (tmp_path / "config.json").write_text('{"architectures": ["NobodyKnowsForCausalLM"]}')
    for name, message in ((str(tmp_path), "NobodyKnowsForCausalLM"), ("/nowhere", "/nowhere")):
        words = ("plan", name, "--card", "1GiB", "--length", "8", "--concurrency", "1")
        assert main(words) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err


def test_cards() -> None:
    """A size alone, a name, a number of cards."""
    assert [(card.name, card.total_bytes) for card in cards_of(["46068MiB"], 0.95)] == [
        ("card", 46_068 * MIB)
    ]
    assert [card.name for card in cards_of(["a=2x80GiB", "b=24GiB"], 0.9)] == ["a-0", "a-1", "b"]
    assert cards_of(["a=1GiB"], 0.9)[0].ceiling_bytes == int(GIB * 0.9)


@pytest.mark.parametrize(
    "text, doubt",
    [
        ("1.72GiB", int(GIB * 0.005)), ("6.3 GiB", int(GIB * 0.05)), ("1761MiB", MIB // 2),
        ("1842537186", 0), ("12B", 0),
    ],
)  # fmt: skip
def test_a_printed_size_is_as_exact_as_its_last_digit(text: str, doubt: int) -> None:
    """Half of the last digit; bytes are exact."""
    assert half_digit(text) == doubt
