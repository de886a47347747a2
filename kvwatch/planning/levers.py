"""What each lever buys, each pulled alone: bytes saved, requests gained, and whether it fits then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.planning.answer import Verdict, answer
from kvwatch.planning.errors import PlanError
from kvwatch.planning.pool import held_by
from kvwatch.planning.question import GgufFile, Question, VllmModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.planning.answer import Answer
    from kvwatch.planning.question import Server

_SIXTEEN_BITS = ("auto", "bfloat16", "float16", "half")
_SMALL_BATCH = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change of one server.

    Attributes:
        setting: the line or option that pulls it.
        pool_bytes: of the largest rank, then; None where it is refused.
        saved_bytes: of its card, against the question as it was asked.
        held: requests that the bytes asked for would then hold; None where the lever leaves a request's cost.
        verdict: of the whole question with this lever pulled.
        refusal: why it cannot be pulled.

    """

    server: str
    name: str
    setting: str
    pool_bytes: int | None = None
    saved_bytes: int | None = None
    held: int | None = None
    verdict: Verdict | None = None
    refusal: str | None = None
    remark: str | None = None


def levers_of(base: Answer, server: Server) -> tuple[Lever, ...]:
    """Return a server's levers, some only where they save something; none where there is no pool."""
    if not base.pools[server.name].pin_bytes:
        return ()
    if isinstance(server.model, VllmModel):
        return tuple(_vllm(base, server, server.model))
    if isinstance(server.model, GgufFile):
        return tuple(_llamacpp(base, server, server.model))
    return ()


def _vllm(base: Answer, server: Server, model: VllmModel) -> Iterator[Lever]:
    options = model.options
    if options.cache_dtype in _SIXTEEN_BITS:
        eight = replace(server, model=replace(model, options=replace(options, cache_dtype="fp8")))
        yield _pull(base, server, eight, "cache dtype", "kv-cache-dtype: fp8")
    yield from _shorter(base, server, "max-model-len: {}")
    yield from _fewer(base, server, "max-num-seqs: {}")
    yield _more_ranks(base, server, model)
    for name, setting, changed in (
        ("no prefix caching", "no-enable-prefix-caching", replace(options, prefix_caching=False)),
        ("no async scheduling", "no-async-scheduling", replace(options, async_scheduling=False)),
        (
            "hybrid manager",
            "(without --disable-hybrid-kv-cache-manager)",
            replace(options, hybrid_manager=True),
        ),
        (
            "smaller batches",
            f"max-num-batched-tokens: {_SMALL_BATCH}",
            replace(options, max_num_batched_tokens=min(options.max_num_batched_tokens or 0, _SMALL_BATCH)),
        ),
    ):
        if changed != options:
            lever = _pull(base, server, replace(server, model=replace(model, options=changed)), name, setting)
            if (lever.saved_bytes or 0) > 0:
                yield lever


def _llamacpp(base: Answer, server: Server, file: GgufFile) -> Iterator[Lever]:
    options = file.options
    for kind in ("q8_0", "q4_0"):
        if "f16" in (options.cache_type_k, options.cache_type_v):
            smaller = replace(options, cache_type_k=kind, cache_type_v=kind)
            yield _pull(
                base,
                server,
                replace(server, model=replace(file, options=smaller)),
                "cache type",
                f"cache-type-k and -v: {kind}",
            )
    yield from _shorter(base, server, "slots of {} tokens")
    yield from _fewer(base, server, "parallel: {}")
    for name, setting, changed in (
        ("shared pool", "kv-unified", replace(options, kv_unified=True)),
        ("windows only", "(without --swa-full)", replace(options, swa_full=False)),
    ):
        if changed != options:
            lever = _pull(base, server, replace(server, model=replace(file, options=changed)), name, setting)
            if (lever.saved_bytes or 0) > 0:
                yield lever


def _shorter(base: Answer, server: Server, setting: str) -> Iterator[Lever]:
    half = (server.length_tokens or 0) // 2
    if half:
        shorter = replace(server, length_tokens=half)
        yield _pull(base, server, shorter, "half the length", setting.format(half))


def _fewer(base: Answer, server: Server, setting: str) -> Iterator[Lever]:
    half = (server.concurrency or 0) // 2
    if half:
        lever = _pull(
            base, server, replace(server, concurrency=half), "half the requests", setting.format(half)
        )
        yield replace(lever, held=None)


def _more_ranks(base: Answer, server: Server, model: VllmModel) -> Lever:
    """Return twice the tensor ranks, each on a card of its own like the first, with nobody else on it."""
    ranks = model.options.tensor_parallel * 2
    card = base.card(server.cards[0]).card
    names = tuple(f"{card.name} {number}" for number in range(len(server.cards) * 2))
    parallel = replace(
        server,
        cards=names,
        model=replace(model, options=replace(model.options, tensor_parallel=ranks)),
        # What was measured beside the pool is of a rank with twice the weights.
        footprint=None,
        weights_bytes=None,
        working_bytes=None,
    )
    question = Question(cards=tuple(replace(card, name=name) for name in names), servers=(parallel,))
    lever = _pull(base, server, parallel, "twice the ranks", f"tensor-parallel-size: {ranks}", question)
    heads = max((layer.kv_heads for layer in model.spec.layers), default=0)
    if lever.refusal is None and heads and ranks > heads:
        kept = "1 KV head" if heads == 1 else f"{heads} KV heads"
        copies = f"{kept} on {ranks} ranks: each is kept {ranks // heads} times"
        return replace(lever, remark=copies)
    return lever


def _pull(
    base: Answer, server: Server, changed: Server, name: str, setting: str, question: Question | None = None
) -> Lever:
    """Answer the question again with one server changed."""
    if question is None:
        servers = tuple(changed if one.name == server.name else one for one in base.question.servers)
        question = replace(base.question, servers=servers)
    try:
        then = answer(question)
        held = held_by(changed, _same_bytes(base, server, changed))
    except PlanError as error:
        return Lever(
            server=server.name,
            name=name,
            setting=setting,
            refusal=str(error).removeprefix(f"{server.name}: "),
        )
    before, after = base.pools[server.name].pin_bytes, then.pools[server.name].pin_bytes
    return Lever(
        server=server.name,
        name=name,
        setting=setting,
        pool_bytes=after,
        saved_bytes=before - after,
        held=held,
        verdict=then.verdict,
    )


def _same_bytes(base: Answer, server: Server, changed: Server) -> tuple[int, ...]:
    """Return the pool as it was asked for, on each rank that there is then."""
    return (base.pools[server.name].pin_bytes,) * len(changed.cards)
