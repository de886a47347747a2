"""Servers of one card as a set: shares, pins, what was measured, what is not known."""

from __future__ import annotations

import pytest

from kvwatch.check.declaration import Card
from kvwatch.check.verdict import Severity
from tests.check.fleet import A40, GIB, MIB, found, model, server
from tests.check.uniform_model import uniform_config

UNIFORM = uniform_config(32, 8)


def test_a_sum_between_the_limit_and_one_is_a_warning() -> None:
    """0.50 + 0.47 may start, 0.92 + 0.75 cannot."""
    finding = found(
        server("a", "vllm serve m --gpu-memory-utilization 0.5"),
        server("b", "vllm serve m --gpu-memory-utilization 0.47"),
    )["shares-over-limit"]
    assert finding.severity is Severity.WARNING
    assert "does not start" not in finding.message
    assert finding.numbers["share_sum_ratio"] == 0.97


def test_one_server_alone_may_have_its_default() -> None:
    """0.92, and 0.97 without a display, of a card for oneself are nobody's business."""
    for share in ("", " --gpu-memory-utilization 0.97"):
        rules = found(server("a", f"vllm serve m{share}"))
        assert not rules.keys() & {"shares-over-limit", "share-near-whole", "default-share-twice"}


def test_a_display_makes_a_whole_card_too_much() -> None:
    """0.97 of a card that draws something, with what is left of it."""
    card = Card(name="0", total_bytes=46_068 * MIB, display=True)
    finding = found(server("a", "vllm serve m --gpu-memory-utilization 0.97"), cards=(card,))
    assert "beside a display: 0.03 = 1.35 GiB" in finding["share-near-whole"].message


def test_replicas_on_one_card_count_each() -> None:
    """Two replicas of 0.60 are 1.20 of it."""
    rules = found(server("a", "vllm serve m --gpu-memory-utilization 0.6", replicas=2))
    assert rules["shares-over-limit"].numbers["share_sum_ratio"] == 1.2
    assert "2 x 0.60" in rules["shares-over-limit"].message
    assert "a (2 x)" in rules["unpinned-neighbours"].message


def test_ranks_on_one_card_count_each() -> None:
    """Two tensor-parallel ranks on the same card claim the share twice."""
    finding = found(server("a", "vllm serve m -tp 2 --gpu-memory-utilization 0.6", cards=("0", "0")))
    assert finding["shares-over-limit"].numbers["share_sum_ratio"] == 1.2


def test_the_same_servers_on_several_cards_are_one_finding() -> None:
    """Two servers with two ranks each: said once, with the other card."""
    cards = (A40, Card(name="1", total_bytes=46_068 * MIB))
    findings = found(
        server("a", "vllm serve m -tp 2 --gpu-memory-utilization 0.6", cards=("0", "1")),
        server("b", "vllm serve m -tp 2 --gpu-memory-utilization 0.6", cards=("0", "1")),
        cards=cards,
    )
    assert findings["shares-over-limit"].card == "0"
    assert findings["shares-over-limit"].message.endswith("The same holds for GPU 1.")


def test_an_unknown_release_has_one_of_two_defaults() -> None:
    """Without a version the smaller default is a lower bound, which is enough here."""
    finding = found(server("a", "vllm serve m", version=None), server("b", "vllm serve m", version=None))
    assert finding["shares-over-limit"].numbers["share_sum_ratio"] == 1.8
    assert "at least 1.80" in finding["shares-over-limit"].message
    assert "0.90 or 0.92 by release" in finding["shares-over-limit"].message


def test_an_option_that_has_nothing_to_do_with_the_share_leaves_its_default() -> None:
    """`--task` decides the runner alone; `--g` may stand for the share."""
    alike = [server(name, "vllm serve m --task embed", version=None) for name in "ab"]
    assert found(*alike)["shares-over-limit"].numbers["share_sum_ratio"] == 1.8
    assert "default-share-twice" in found(*alike)
    short = server("b", "vllm serve m --g 0.1", version=None)
    assert "shares-over-limit" not in found(alike[0], short)


def test_a_share_that_cannot_be_read_is_no_number() -> None:
    """`${SHARE}` claims nobody knows what: the sum is a lower bound, and a note says so."""
    rules = found(
        server("a", "vllm serve m --gpu-memory-utilization '${SHARE}'"),
        server("b", "vllm serve m --gpu-memory-utilization 0.5"),
    )
    assert "shares-over-limit" not in rules
    assert "its share could not be read" in rules["unknown-claim"].message


def test_a_pin_is_converted_with_the_weights() -> None:
    """6 GiB + 15 GiB of 44.99 GiB are 0.47; with 0.60 beside it 1.07, at least."""
    finding = found(
        server("a", "vllm serve m --kv-cache-memory-bytes 6G", model=model(UNIFORM, 15 * GIB)),
        server("b", "vllm serve m --gpu-memory-utilization 0.6"),
    )["shares-over-limit"]
    assert "a (6.00 GiB pin + 15.00 GiB weights) / 44.99 GiB = 0.47 + b 0.60" in finding.message
    assert "at least 1.07" in finding.message
    assert "lower b to 0.48" in finding.message


def test_a_measured_footprint_makes_a_pin_exact() -> None:
    """With what it was measured to hold, a share beside it that is too high is found as well."""
    finding = found(
        server(
            "a",
            "vllm serve m --kv-cache-memory-bytes 6G --gpu-memory-utilization 0.9",
            model=model(UNIFORM, 15 * GIB),
            measured_bytes=18 * GIB,
        )
    )["pin-out-of-step"]
    assert "(6.00 GiB pin + 18.00 GiB measured) / 44.99 GiB = 0.53" in finding.message
    assert "reckons too high" in finding.message
    assert "does not start while less than 0.90 is free" in finding.message
    assert "Set gpu_memory_utilization to 0.54" in finding.message


def test_the_edits_of_a_sum_mend_it() -> None:
    """Each share that the message proposes makes the finding go away."""
    for first, second in ((0.2, 0.75), (0.92, 0.03), (0.52, 0.42)):
        rules = found(
            server("a", f"vllm serve m --gpu-memory-utilization {first}"),
            server("b", f"vllm serve m --gpu-memory-utilization {second}"),
        )
        assert "shares-over-limit" not in rules


def test_a_share_below_the_weights_is_not_proposed() -> None:
    """0.03 of the card does not hold 15 GiB of weights: only what holds them is named."""
    message = found(
        server("a", "vllm serve m --gpu-memory-utilization 0.92"),
        server("b", "vllm serve m --gpu-memory-utilization 0.75", model=model(UNIFORM, 15 * GIB)),
    )["shares-over-limit"].message
    assert "lower a to 0.20, or all in proportion: a 0.52 and b 0.42" in message
    assert "b to 0.03" not in message


@pytest.mark.parametrize("first, second", [("30G", "3G"), ("20G", "13G")])
def test_pins_that_fit_are_silent(first: str, second: str) -> None:
    """Pins, weights and headroom within the card."""
    rules = found(
        server("a", f"vllm serve m --kv-cache-memory-bytes {first} --gpu-memory-utilization 0.1"),
        server("b", f"vllm serve m --kv-cache-memory-bytes {second} --gpu-memory-utilization 0.1"),
    )
    assert "pins-do-not-fit" not in rules


def test_the_pin_that_mends_it_does() -> None:
    """Lowered to the byte that the message names, the pins fit."""
    second = "vllm serve m --kv-cache-memory-bytes 20G"
    message = found(server("a", "vllm serve m --kv-cache-memory-bytes 30G"), server("b", second))[
        "pins-do-not-fit"
    ].message
    pin = message.partition("chat to ")[2] or message.partition("a to ")[2].split()[0]
    rules = found(server("a", f"vllm serve m --kv-cache-memory-bytes {pin}"), server("b", second))
    assert "pins-do-not-fit" not in rules


def test_cards_without_a_size_still_add_up_shares() -> None:
    """The sum needs no size; a pin does, and a note names the option."""
    rules = found(
        server("a", "vllm serve m --gpu-memory-utilization 0.9"),
        server("b", "vllm serve m --gpu-memory-utilization 0.3"),
        cards=(Card(name="0"),),
    )
    assert rules["shares-over-limit"].numbers["share_sum_ratio"] == 1.2
    assert "--card 0=SIZE" in rules["unknown-card-size"].message


def test_a_release_before_the_check_is_not_said_to_be_refused() -> None:
    """Until 0.9.1 nobody compares the share with the free memory."""
    servers = [
        server(name, "vllm serve m --gpu-memory-utilization 0.7", version=(0, 8, 5)) for name in ("a", "b")
    ]
    assert "does not start" not in found(*servers)["shares-over-limit"].message


def test_a_neighbour_that_leaves_enough_needs_no_lower_share() -> None:
    """A pinned server whose own share is free beside the others is silent."""
    rules = found(
        server("a", "vllm serve m --gpu-memory-utilization 0.6"),
        server("b", "vllm serve m --kv-cache-memory-bytes 2G --gpu-memory-utilization 0.3"),
    )
    assert "pin-share-not-free" not in rules
