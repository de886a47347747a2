"""Verdicts by what is known, shares, levers, and what is said where something is not known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.cost.weights import WeightBytes
from kvwatch.planning.answer import Answer, Verdict, answer
from kvwatch.planning.errors import PlanError
from kvwatch.planning.footprint import Footprint
from kvwatch.planning.headroom import headroom_of
from kvwatch.planning.levers import Lever, levers_of
from kvwatch.planning.question import Card, Question, Server, VllmModel
from kvwatch.planning.setting import Place, largest_share, setting_of, share_between
from kvwatch.planning.text import render_plan, summing
from tests.cost.agreement import spec_of
from tests.planning.models import CARD, GIB, MIB, server

CHAT = Server(name="chat", cards=("A40",), footprint=Footprint(total_bytes=26_358 * MIB))
MEASURED = Footprint(total_bytes=11_154 * MIB, kv_bytes=int(1.72 * GIB))


def asked(*servers: Server, cards: tuple[Card, ...] = (CARD,)) -> Answer:
    """Return the answer to whether these fit the card."""
    return answer(Question(cards=cards, servers=servers))


VERDICTS: dict[str, tuple[tuple[Server, ...], Verdict]] = {
    "a server that never ran": ((server(),), Verdict.CANNOT_TELL),
    "its weights alone are known": ((server(weights=8 * GIB),), Verdict.CANNOT_TELL),
    "its rest alone is known": ((server(working=3 * GIB),), Verdict.CANNOT_TELL),
    "all of it is stated": ((server(weights=8 * GIB, working=3 * GIB),), Verdict.FITS),
    "it was measured": ((server(footprint=MEASURED),), Verdict.FITS),
    "it was measured, but not what of it is cache": (
        (server(footprint=Footprint(total_bytes=11_154 * MIB)),), Verdict.CANNOT_TELL),
    "its pool alone is too large": ((server(concurrency=39),), Verdict.DOES_NOT_FIT),
    "pool and weights alone are too large": (
        (server(concurrency=30, weights=10 * GIB),), Verdict.DOES_NOT_FIT),
    "what is known of all servers is too large": (
        (CHAT, server(concurrency=16)), Verdict.DOES_NOT_FIT),
    "a neighbour of which only the total is known": ((CHAT, server(footprint=MEASURED)), Verdict.FITS),
    "a neighbour that holds nothing of the kind": ((CHAT,), Verdict.FITS),
}  # fmt: skip


@pytest.mark.parametrize("situation", VERDICTS)
def test_verdicts(situation: str) -> None:
    """Nothing is said to fit while a part is not known; what is known alone may be too much."""
    servers, verdict = VERDICTS[situation]
    assert asked(*servers).verdict is verdict


@pytest.mark.parametrize("situation", VERDICTS)
def test_every_column_sums_to_its_card(situation: str) -> None:
    """Rows, what is left under the ceiling and what the ceiling keeps are the card, whatever is missing."""
    servers, _ = VERDICTS[situation]
    (card,) = asked(*servers).cards
    assert card.known_bytes + card.left_bytes + card.beyond_ceiling_bytes == card.card.total_bytes


def test_the_worst_card_decides() -> None:
    """Two ranks, a neighbour on one card: that card does not hold it, so it does not fit."""
    cards = (CARD, replace(CARD, name="second"))
    both = server(
        concurrency=60, cards=("A40", "second"), tensor_parallel=2, weights=4 * GIB, working=2 * GIB
    )
    found = asked(both, cards=cards)
    assert [card.verdict for card in found.cards] == [Verdict.FITS, Verdict.FITS]
    found = asked(CHAT, both, cards=cards)
    assert [card.verdict for card in found.cards] == [Verdict.DOES_NOT_FIT, Verdict.FITS]
    assert found.verdict is Verdict.DOES_NOT_FIT


def test_weights_by_the_files() -> None:
    """A whole checkpoint on one rank counts; divided, converted or packed, a rank's part is not settled."""
    files = WeightBytes(total_bytes=8 * GIB, by_dtype={"BF16": 8 * GIB}, source="headers")
    one = server()
    assert isinstance(one.model, VllmModel)
    whole = replace(one, model=replace(one.model, weights=files))
    assert [row.size_bytes for row in asked(whole).cards[0].rows] == [513 * 2_359_296, 8 * GIB, None]
    half = replace(one.model.options, dtype="half")
    two = replace(one.model.options, tensor_parallel=2)
    for model, cards in (
        (replace(one.model, weights=files, options=half), (CARD,)),
        (replace(one.model, weights=replace(files, by_dtype={"F32": 8 * GIB})), (CARD,)),
        (replace(one.model, weights=files, options=two), (CARD, replace(CARD, name="B"))),
    ):
        names = tuple(card.name for card in cards)
        found = asked(replace(one, model=model, cards=names), cards=cards)
        assert found.cards[0].rows[1].size_bytes is None


def test_a_server_without_anything() -> None:
    """A server that is neither asked for nor measured is refused by a sentence."""
    with pytest.raises(PlanError, match="neither a model with length and concurrency nor a measurement"):
        asked(Server(name="nobody", cards=("A40",)))


@given(
    total=st.integers(1 * GIB, 200 * GIB),
    needed=st.integers(1, 100 * GIB),
    spare=st.integers(0, 100 * GIB),
)
def test_a_share_is_enough_and_leaves_the_rest_alone(total: int, needed: int, spare: int) -> None:
    """The engine asks for ceil(total x share): at least what is needed, at most what is free for it."""
    room = needed + spare
    share = share_between([Place(total=total, room=room, needed=needed)])
    if share is None:
        assert spare <= total / 10**6
        return
    assert needed <= math.ceil(total * share) <= room + 1
    for digits in range(2, 6):
        rougher = math.ceil(needed * 10**digits / total) / 10**digits
        if round(share, digits) != share:
            assert rougher * total > room


def test_all_ranks_have_one_share() -> None:
    """The rank that needs most of its card decides; one that lacks the room for that has no share at all."""
    roomy = Place(total=100 * GIB, room=95 * GIB, needed=50 * GIB)
    assert share_between([roomy, replace(roomy, needed=30 * GIB)]) == 0.5
    assert share_between([roomy, replace(roomy, room=40 * GIB, needed=30 * GIB)]) is None
    assert share_between([roomy, replace(roomy, needed=None)]) is None


def test_the_largest_share_is_the_ceiling_of_an_empty_card() -> None:
    """0.95 of a card is 0.95, though its last byte is a part of one."""
    assert largest_share(CARD.ceiling_bytes, CARD.total_bytes) == 0.95
    assert largest_share(0, CARD.total_bytes) == 0.0


SETTINGS: dict[str, tuple[Server, tuple[str, ...]]] = {
    "measured": (
        server(footprint=MEASURED, concurrency=2),
        ("max-model-len: 8192", "max-num-seqs: 2", "kv-cache-memory-bytes: 2418278400",
         "gpu-memory-utilization: 0.26"),
    ),
    "it never ran: the pin, and the share that is free at its start": (
        server(concurrency=2, cache_dtype="fp8"),
        ("max-model-len: 8192", "max-num-seqs: 2", "kv-cache-dtype: fp8",
         "kv-cache-memory-bytes: 1209139200", "gpu-memory-utilization: 0.37"),
    ),
    "a vLLM without a pin": (
        server(concurrency=2, engine_version=(0, 9, 2), footprint=MEASURED),
        ("max-model-len: 8192", "max-num-seqs: 2", "num-gpu-blocks-override: 1025",
         "gpu-memory-utilization: 0.26"),
    ),
    "whatever decides the pool": (
        server(concurrency=2, footprint=MEASURED, block_size=32, max_num_batched_tokens=4096,
               prefix_caching=False, hybrid_manager=False, runner="pooling"),
        ("max-model-len: 8192", "max-num-seqs: 2", "block-size: 32", "max-num-batched-tokens: 4096",
         "runner: pooling", "no-enable-prefix-caching: true", "disable-hybrid-kv-cache-manager: true",
         "kv-cache-memory-bytes: 2420637696", "gpu-memory-utilization: 0.26"),
    ),
    "it does not fit": (server(concurrency=30), ()),
}  # fmt: skip


@pytest.mark.parametrize("situation", SETTINGS)
def test_what_to_put_beside_a_chat_server(situation: str) -> None:
    """The lines of the configuration file, beside 26,358 MiB of a neighbour."""
    one, lines = SETTINGS[situation]
    assert setting_of(asked(CHAT, one), one).lines == lines


def pulled(one: Server, *others: Server) -> dict[str, Lever]:
    """Return the levers of a server by name."""
    return {lever.name: lever for lever in levers_of(asked(*others, one), one)}


def test_levers_of_a_plain_model() -> None:
    """Half the bits, half the length, half the requests, twice the ranks; the rest does not matter here."""
    found = pulled(server(footprint=MEASURED, concurrency=8), CHAT)
    assert list(found) == ["cache dtype", "half the length", "half the requests", "twice the ranks"]
    before = (8 * 512 + 1) * 2_359_296
    assert found["cache dtype"].saved_bytes == before - (8 * 512 + 1) * 2_359_296 // 2
    assert found["cache dtype"].held == (2 * (8 * 512 + 1) - 1) // 512 == 16
    assert found["half the length"].saved_bytes == found["half the requests"].saved_bytes == 2048 * 2_359_296
    assert found["half the length"].held == 16
    assert found["half the requests"].held is None


def test_a_lever_says_whether_it_makes_it_fit() -> None:
    """Seven requests do not fit beside the chat server: each lever says what becomes of the whole card."""
    found = pulled(server(footprint=MEASURED, concurrency=7), CHAT)
    assert {name: lever.verdict for name, lever in found.items()} == {
        "cache dtype": Verdict.FITS,
        "half the length": Verdict.FITS,
        "half the requests": Verdict.FITS,
        "twice the ranks": Verdict.CANNOT_TELL,
    }
    assert found["twice the ranks"].remark is None


def test_more_ranks_than_heads_save_nothing() -> None:
    """From 8 ranks to 16 each KV head is kept twice: 0 bytes are saved, and that is said."""
    cards = tuple(replace(CARD, name=f"card-{rank}") for rank in range(8))
    one = server(tensor_parallel=8, cards=tuple(card.name for card in cards))
    (lever,) = (lever for lever in levers_of(asked(one, cards=cards), one) if lever.name == "twice the ranks")
    assert lever.saved_bytes == 0
    assert lever.remark == "8 KV heads on 16 ranks: each is kept 2 times"


def test_a_lever_that_the_engine_refuses() -> None:
    """Twice the ranks of 14 heads on 2 is 4, which do not divide them: refused, with the reason."""
    model = server().model
    assert isinstance(model, VllmModel)
    odd = VllmModel(spec=spec_of("qwen2.5-0.5b"), options=replace(model.options, tensor_parallel=2))
    cards = (CARD, replace(CARD, name="second"))
    one = Server(name="small", cards=("A40", "second"), model=odd, length_tokens=4096, concurrency=4)
    levers = {lever.name: lever for lever in levers_of(asked(one, cards=cards), one)}
    assert levers["twice the ranks"].refusal == "tensor_parallel: 14 heads cannot be divided by 4"
    assert levers["twice the ranks"].verdict is None


@pytest.mark.parametrize(
    "model, levers",
    [
        ("gemma-3-27b-text", {"smaller batches", "no async scheduling"}),
        ("qwen3-next-80b", {"no prefix caching"}),
        ("llama-3.1-8b", set()),
    ],
)
def test_levers_that_matter_for_some_models_only(model: str, levers: set[str]) -> None:
    """Batches in flight size windows, prefix caching sizes states; elsewhere they save nothing."""
    plain = server().model
    assert isinstance(plain, VllmModel)
    wide = replace(plain.options, max_num_batched_tokens=8192)
    one = Server(
        name="one",
        cards=("A40",),
        model=replace(plain, spec=spec_of(model), options=wide),
        length_tokens=16_384,
        concurrency=1,
    )
    always = {"cache dtype", "half the length", "half the requests", "twice the ranks"}
    assert {lever.name for lever in levers_of(asked(one), one)} - always == levers


def test_unknown_parts_make_headroom_an_upper_bound() -> None:
    """Where weights are not known the requests that would fit are said to be the most, not a promise."""
    one = server(concurrency=4)
    found = asked(one)
    rest = headroom_of(found, one)
    assert rest.exact is False
    assert rest.most_requests == (CARD.ceiling_bytes // 2_359_296 - 1) // 512
    text = render_plan(found)
    assert "Cannot tell" in text
    assert "at most 33 more requests of 8,192 tokens, 37 in all" in text
    assert "embed   weights                             ?        ?" in text


@given(st.lists(st.one_of(st.none(), st.integers(-10 * GIB, 100 * GIB)), max_size=12))
def test_printed_figures_add_up(numbers: list[int | None]) -> None:
    """A column's figures sum to the rounded sum of its bytes; each is within a tenth of its own."""
    figures = summing(numbers)
    exact = [number for number in numbers if number is not None]
    shown = [float(figure.replace(",", "")) for figure in figures if figure != "?"]
    assert round(sum(shown) * 10) == round(sum(exact) * 10 / MIB)
    assert all(abs(figure - number / MIB) <= 0.1001 for figure, number in zip(shown, exact, strict=True))
    assert [figure == "?" for figure in figures] == [number is None for number in numbers]


def test_a_measurement_that_does_not_tell_the_pool_apart() -> None:
    """A process's total alone says nothing of what is beside another pool: the answer asks for the cache."""
    text = render_plan(asked(server(footprint=Footprint(total_bytes=11_154 * MIB))))
    assert "What was measured does not say how much of it is KV cache: add kv=SIZE, or its log." in text
    assert "Cannot tell" in text


def test_cards_that_are_alike_are_told_once() -> None:
    """Two ranks on two equal cards are one column; a neighbour on one of them makes two."""
    cards = (CARD, replace(CARD, name="second"))
    both = server(cards=("A40", "second"), tensor_parallel=2, weights=4 * GIB, working=2 * GIB)
    assert "Cards A40, second, each of 46,068.0 MiB" in render_plan(asked(both, cards=cards))
    text = render_plan(asked(CHAT, both, cards=cards))
    assert "Card A40 of 46,068.0 MiB" in text
    assert "Card second of 46,068.0 MiB" in text


def test_two_servers_that_were_never_run_beside_each_other() -> None:
    """What is left is for both: each one's unknown parts are named, and neither is said to fit."""
    found = asked(server(), replace(server(), name="other"))
    assert found.verdict is Verdict.CANNOT_TELL
    assert {row.server for row in found.cards[0].unknown} == {"embed", "other"}


def test_ranks_that_share_a_card() -> None:
    """Two ranks on one card need twice the pool there; each may claim half of what is left."""
    one = server(cards=("A40", "A40"), tensor_parallel=2, weights=4 * GIB, working=2 * GIB)
    found = asked(one)
    pool = found.pools["embed"].pin_bytes
    assert found.cards[0].known_bytes == 2 * (pool + 6 * GIB)
    assert found.room_bytes(one) == (pool + found.cards[0].left_bytes // 2,) * 2
    share = setting_of(found, one).share_ratio
    assert share is not None
    assert (pool + 6 * GIB) / CARD.total_bytes <= share <= 0.475


def test_a_model_without_a_cache() -> None:
    """An encoder needs no pool: no pin, no lever, and no number of requests that memory bounds."""
    plain = server().model
    assert isinstance(plain, VllmModel)
    encoder = replace(plain, spec=spec_of("bge-base-en"))
    one = replace(server(weights=GIB, working=GIB), model=encoder, length_tokens=512)
    found = asked(one)
    assert found.verdict is Verdict.FITS
    assert setting_of(found, one).pin_bytes is None
    assert levers_of(found, one) == ()
    assert "memory bounds no number of requests" in render_plan(found)
