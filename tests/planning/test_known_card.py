"""A known card with two servers, as they were measured: every figure to the MiB, by the whole command."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.cli import main
from tests.planning.models import EMBEDDING, GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

CARD = ("--card", "A40=46068MiB")
CHAT = ("--measured", "chat=26358MiB,kv=6.26GiB,tokens=184260")
EMBED = ("--measured", "embed=11154MiB,kv=1.72GiB,tokens=12480")


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Return the embedding model's folder."""
    (tmp_path / "config.json").write_text(json.dumps(EMBEDDING))
    return str(tmp_path)


def planned(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """Run `kvwatch plan --json` and return what it prints."""
    assert main(["plan", *words, "--json"]) == status
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def named(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one server of a document."""
    (found,) = [server for server in document["servers"] if server["name"] == name]
    return dict(found)


def test_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """46,068 - 26,358 - 11,154 = 8,556 MiB are left, 6,252.6 of them under a ceiling of 43,764.6."""
    document = planned(capsys, *CARD, *CHAT, *EMBED)
    (card,) = document["cards"]
    assert document["verdict"] == card["verdict"] == "fits"
    assert card["known_bytes"] == (26_358 + 11_154) * MIB
    assert card["left_bytes"] == 8556 * MIB
    assert card["ceiling_bytes"] == int(46_068 * MIB * 0.95)
    assert round(card["ceiling_bytes"] / MIB, 1) == 43_764.6
    assert round(card["left_under_ceiling_bytes"] / MIB, 1) == 6252.6


def test_the_column_sums_to_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed figures of a card's column add up to the card, to the last digit."""
    assert main(["plan", *CARD, *CHAT, *EMBED]) == 0
    column = re.findall(r"^ .*?(-?[\d,]+\.\d) +[\d.]+ %", capsys.readouterr().out, re.MULTILINE)
    *parts, whole = [round(float(figure.replace(",", "")) * 10) for figure in column]
    assert sum(parts) == whole == 460_680


def test_what_the_rest_buys_each_of_the_two(capsys: pytest.CaptureFixture[str]) -> None:
    """By the measured bytes a token, 6.26 GiB / 184,260 and 1.72 GiB / 12,480, each alone."""
    document = planned(capsys, *CARD, *CHAT, *EMBED)
    left = document["cards"][0]["left_under_ceiling_bytes"]
    for name, pool, tokens, bought in (("chat", 6.26, 184_260, 179_728), ("embed", 1.72, 12_480, 44_304)):
        rest = named(document, name)["headroom"]
        assert rest["token_bytes"] == pytest.approx(pool * GIB / tokens)
        assert rest["tokens"] == int(left / rest["token_bytes"]) == bought
        assert rest["exact"] is True
        assert rest["requests"] is None


def test_requests_of_a_measured_server_need_its_length(capsys: pytest.CaptureFixture[str]) -> None:
    """With a length the tokens are requests: 179,728 tokens are five of 32,768."""
    document = planned(capsys, *CARD, CHAT[0], f"{CHAT[1]},length=32768", *EMBED)
    assert named(document, "chat")["headroom"]["requests"] == 5


def test_the_measured_pool_by_the_models_files(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """1.72 GiB / 147,456 are 12,524 tokens, 12,512 in whole blocks; 12,480 are in its rounding."""
    document = planned(
        capsys, config, "--name", "embed", *CARD, *CHAT, *EMBED, "--length", "8192", "--concurrency", "1"
    )
    found = named(document, "embed")["measured_pool"]
    assert (found["token_bytes"], found["block_tokens"], found["block_bytes"]) == (147_456, 16, 2_359_296)
    assert found["tokens_by_division"] == 12_524
    assert found["tokens_as_printed"] == 782 * 16 == 12_512
    assert (found["tokens_least"], found["tokens_most"]) == (12_480, 12_560)
    assert found["tokens"] == 780 * 16 == 12_480
    # What is printed as 1.72 and holds 780 whole blocks: the pin that was really set is one of them.
    assert found["pool_bytes_least"] <= 1_842_537_186 <= found["pool_bytes_most"]
    assert f"{found['pool_bytes_least'] / GIB:.2f}" == f"{found['pool_bytes_most'] / GIB:.2f}" == "1.72"
    assert found["pool_bytes_most"] // 2_359_296 == 780


def test_more_of_the_measured_server(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its 9,392.7 MiB beside the pool stay; two requests of 8,192 take 1,025 blocks, six would fit."""
    document = planned(
        capsys, config, "--name", "embed", *CARD, *CHAT, *EMBED, "--length", "8192", "--concurrency", "2"
    )
    found = named(document, "embed")
    beside = 11_154 * MIB - int(1.72 * GIB)
    assert found["pin_bytes"] == 1025 * 2_359_296
    assert document["cards"][0]["known_bytes"] == 26_358 * MIB + beside + found["pin_bytes"]
    room = int(46_068 * MIB * 0.95) - 26_358 * MIB - beside
    assert found["headroom"]["most_requests"] == (room // 2_359_296 - 1) // 512 == 6
    assert found["share"] == 0.26
    assert (beside + found["pin_bytes"]) / (46_068 * MIB) < 0.26


def test_the_same_as_a_plan_file(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan file says what the command line says, and the answer is the same."""
    words = planned(
        capsys, config, "--name", "embed", *CARD, *EMBED, *CHAT, "--length", "8192", "--concurrency", "2"
    )
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"""
cards: {{A40: 46068MiB}}
servers:
  - name: embed
    model: {config}
    length: 8192
    concurrency: 2
    measured: 11154MiB
    kv: 1.72GiB
    tokens: 12480
  - {{name: chat, measured: 26358MiB, kv: 6.26GiB, tokens: 184260}}
""")
    assert planned(capsys, str(plan)) == words


def test_one_request_too_many(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The seventh request does not fit; the answer says by how much, how many do, and how long."""
    question = (config, "--name", "embed", *CARD, *CHAT, *EMBED, "--length", "8192", "--concurrency", "7")
    document = planned(capsys, *question, status=1)
    found = named(document, "embed")
    assert document["verdict"] == "does_not_fit"
    assert found["lines"] == []
    assert found["headroom"]["bytes"] < 0
    assert found["headroom"]["most_requests"] == 6
    assert 0 < found["headroom"]["longest_tokens"] < 8192
    assert main(["plan", *question]) == 1
    assert "does not fit, it is 52.4 MiB more than the ceiling" in capsys.readouterr().out
