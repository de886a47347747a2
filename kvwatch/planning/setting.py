"""What to put into a server's configuration so that it gets the pool: pin, share, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.vllm import VllmOptions, default_batched_tokens
from kvwatch.planning.answer import Verdict
from kvwatch.planning.question import GgufFile, VllmModel
from kvwatch.startup_log.pins import FIRST_WITH_PIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvwatch.planning.answer import Answer
    from kvwatch.planning.pool import Pool
    from kvwatch.planning.question import Server

_FEWEST_DIGITS, _MOST_DIGITS = 2, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Lines of a configuration file (vLLM) or options (llama-server).

    Attributes:
        share_ratio: the share with which all that the server needs is what it asks for; None where what it
            needs beside its pool is not known.
        most_share_ratio: the largest share that is free at its start beside the others, under the ceiling.

    """

    lines: tuple[str, ...] = ()
    pin_bytes: int | None = None
    share_ratio: float | None = None
    most_share_ratio: float | None = None
    remarks: tuple[str, ...] = ()


def setting_of(answer: Answer, server: Server) -> Setting:
    """Return what to configure; no line where the server does not fit."""
    pool = answer.pools[server.name]
    if any(answer.card(name).verdict is Verdict.DOES_NOT_FIT for name in server.cards):
        return Setting()
    if isinstance(server.model, GgufFile):
        return _slots(server, server.model, pool)
    if isinstance(server.model, VllmModel):
        return _vllm(answer, server, server.model, pool)
    return Setting()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one rank of a server needs of its card, and what the others leave it there; in bytes."""

    total: int
    room: int
    needed: int | None
    """None where a part of it is not known."""


def share_between(places: Sequence[Place]) -> float | None:
    """Return the share with the fewest digits, two or more, that asks for enough and for no more than room.

    All ranks have one share. vLLM asks for ceil(total x share), before 0.18 for its floor
    (v1/worker/utils.py `request_memory`). None where a need is not known, or six digits do not do.
    """
    needs = [place.needed for place in places if place.needed is not None]
    if len(needs) < len(places):
        return None
    for digits in range(_FEWEST_DIGITS, _MOST_DIGITS + 1):
        scale = int(10**digits)
        units = max(-(-need * scale // place.total) for need, place in zip(needs, places, strict=True))
        if all(units * place.total <= place.room * scale for place in places):
            return units / scale
    return None


def largest_share(room: int, total: int) -> float:
    """Return the largest share of two digits that is not more than room; its last byte is rounded up."""
    units = (room + 1) * 100 // total
    return units / 100


def _vllm(answer: Answer, server: Server, model: VllmModel, pool: Pool) -> Setting:
    places = [
        Place(
            total=answer.card(name).card.total_bytes,
            room=_room(answer, server, name),
            needed=_needs(answer, server, name),
        )
        for name in server.cards
    ]
    most = min(largest_share(place.room, place.total) for place in places)
    share = share_between(places)
    pinned = model.options.version >= FIRST_WITH_PIN and pool.blocks is not None
    card = answer.card(server.cards[0]).card
    lines = _lines(
        server,
        model,
        pool,
        most if share is None else share,
        batch=default_batched_tokens(card.total_bytes, card.name),
        pinned=pinned,
    )
    return Setting(
        lines=tuple(lines),
        pin_bytes=pool.pin_bytes if pinned else None,
        share_ratio=share,
        most_share_ratio=most,
        remarks=() if pool.blocks is None else tuple(_remarks(share, most, pinned=pinned)),
    )


def _lines(
    server: Server, model: VllmModel, pool: Pool, share: float, *, batch: int, pinned: bool
) -> Iterator[str]:
    """Yield what decides the pool and is not the engine's default; `batch` is that of its batched tokens."""
    options, default = model.options, VllmOptions()
    yield f"max-model-len: {server.length_tokens}"
    yield f"max-num-seqs: {server.concurrency}"
    for name, value, usual in (
        ("dtype", options.dtype, default.dtype),
        ("kv-cache-dtype", options.cache_dtype, default.cache_dtype),
        ("tensor-parallel-size", options.tensor_parallel, default.tensor_parallel),
        ("pipeline-parallel-size", options.pipeline_parallel, default.pipeline_parallel),
        ("decode-context-parallel-size", options.decode_context_parallel, default.decode_context_parallel),
        ("block-size", options.block_size, default.block_size),
        ("max-num-batched-tokens", options.max_num_batched_tokens, batch),
        ("mamba-ssm-cache-dtype", options.mamba_ssm_dtype, default.mamba_ssm_dtype),
        ("runner", options.runner, default.runner),
    ):
        if value != usual:
            yield f"{name}: {value}"
    for name, on in (
        ("no-enable-prefix-caching", options.prefix_caching),
        ("no-async-scheduling", options.async_scheduling),
        ("disable-hybrid-kv-cache-manager", options.hybrid_manager),
    ):
        if not on:
            yield f"{name}: true"
    if pinned:
        yield f"kv-cache-memory-bytes: {pool.pin_bytes}"
    elif pool.blocks is not None:
        yield f"num-gpu-blocks-override: {pool.blocks.total}"
    yield f"gpu-memory-utilization: {share:g}"


def _remarks(share: float | None, most: float, *, pinned: bool) -> Iterator[str]:
    if not pinned:
        yield "This vLLM has no --kv-cache-memory-bytes (0.10.2 is the first); blocks fix the pool instead."
    fixing = "pin" if pinned else "number of blocks"
    if share is not None:
        yield (
            f"The {fixing} fixes the pool. The share {share:g} is what the server claims of the card"
            f" altogether, rounded up; {most:g} is the most that leaves the others and the ceiling alone."
        )
        return
    yield (
        f"Which share would give this pool is not known, since what the server needs beside it is not; the"
        f" {fixing} fixes it without one. {most:g} stands there because vLLM refuses to start while less than"
        f" its share is free, and no more than that is."
    )


def _needs(answer: Answer, server: Server, card: str) -> int | None:
    """Return what one rank of a server needs of a card; None where a part of it is not known."""
    sizes = [row.size_bytes for row in answer.card(card).rows if row.server == server.name]
    known = [size for size in sizes if size is not None]
    return sum(known) // server.cards.count(card) if len(known) == len(sizes) else None


def _room(answer: Answer, server: Server, card: str) -> int:
    """Return what the others leave of a card under the ceiling, for one rank."""
    one = answer.card(card)
    others = sum(row.size_bytes or 0 for row in one.rows if row.server != server.name)
    return (one.card.ceiling_bytes - others) // server.cards.count(card)


def _slots(server: Server, file: GgufFile, pool: Pool) -> Setting:
    """Return the options of a llama-server, which has no share: its context is its pool."""
    if pool.slots is None:
        return Setting()
    options = [f"--ctx-size {pool.slots.n_ctx} --parallel {server.concurrency} --n-gpu-layers 999 --fit off"]
    options += ["--kv-unified"] if pool.slots.unified else []
    for name, kind in (("k", file.options.cache_type_k), ("v", file.options.cache_type_v)):
        options += [] if kind == "f16" else [f"--cache-type-{name} {kind}"]
    options += ["--swa-full"] if file.options.swa_full else []
    remarks = ["Its context is its pool; --fit off keeps it what was asked for, whatever is free that day."]
    if pool.slots.unified:
        remarks.append(
            f"Shared by {server.concurrency} slots: one that runs longer than {server.length_tokens:,} tokens"
            f" takes from the others, and when the pool is full all running requests fail."
        )
    return Setting(lines=(" ".join(options),), remarks=tuple(remarks))
