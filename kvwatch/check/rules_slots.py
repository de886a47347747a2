"""Rules about a llama-server's slots and the context that they share or divide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.check.rule import Hit
from kvwatch.check.slot_sizing import context_may_shrink
from kvwatch.check.verdict import Severity
from kvwatch.findings.words import fewer_or_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.check.declaration import DeclaredServer
    from kvwatch.check.evidence import Evidence

_AUTO_SLOTS = 4
_STEP = 256


def unified_pool_over_committed(evidence: Evidence) -> Iterator[Hit]:
    """Find slots that may claim more of their shared pool than it has."""
    for server, sizing in evidence.llamacpp():
        launch, pool = server.launch, sizing.pool
        slots, tokens = launch.request_limit, launch.pool_tokens
        if pool is not None:
            if not pool.unified or not pool.pool_tokens or context_may_shrink(sizing):
                continue
            claimed = pool.slots * pool.slot_limit_tokens
            if claimed > pool.pool_tokens:
                yield _over(server, pool.slots, pool.slot_limit_tokens, pool.pool_tokens)
            continue
        automatic = launch.parallel in (None, -1) and "parallel" not in launch.stated
        if tokens is None or (launch.kv_unified is False and not automatic):
            continue
        if automatic:
            slots = _AUTO_SLOTS
        if not slots or slots == 1 or (not automatic and launch.kv_unified is not True):
            continue
        if sizing.refusal is not None:
            continue  # it does not start
        most = min(tokens, launch.kv_unified_per_slot or tokens)
        if sizing.model is not None:
            most = min(most, sizing.model.context_train)
        if slots * most > tokens:
            yield _may_be_over(server, slots, most, tokens, read=sizing.model is not None)


def _over(server: DeclaredServer, slots: int, limit: int, tokens: int) -> Hit:
    whole = tokens // limit
    return Hit(
        message=(
            f"{server.name}: {slots} slots share one pool of {tokens:,} tokens and each may claim"
            f" {limit:,}: {slots} x {limit:,} = {slots * limit:,}, {slots * limit / tokens:.1f} times the"
            f" pool. {whole} full-length request{'s fit' if whole != 1 else ' fits'}; when more grow, every"
            f" running request fails with HTTP 500. {fewer_or_split(slots, limit, tokens)}"
        ),
        place=server.where("parallel", "kv_unified", "ctx_size"),
        servers=(server.name,),
        numbers={
            "slots": slots,
            "slot_limit_tokens": limit,
            "pool_tokens": tokens,
            "worst_case_ratio": round(slots * limit / tokens, 6),
            "resident_limit": whole,
        },
    )


def _may_be_over(server: DeclaredServer, slots: int, most: int, tokens: int, *, read: bool) -> Hit:
    """Return what holds for every model that was trained for more than a slot's even part.

    `read`: the model's file is, and `most` is no more than its training context.
    """
    automatic = "parallel" not in server.launch.stated
    trained = (
        ""
        if read
        else f", if the model was trained for that (its file is not read; over {tokens // slots:,} tokens are"
        f" enough to over-commit)"
    )
    why = f"without -np (from b9093 on) {slots}" if automatic else f"{slots}"
    return Hit(
        message=(
            f"{server.name}: {why} slots share one pool of {tokens:,} tokens, and each may claim up to"
            f" {most:,}: {slots} x {most:,} = {slots * most:,}, {slots * most / tokens:.1f} times the"
            f" pool{trained}. When they do, every running request fails with HTTP 500."
            f" {fewer_or_split(slots, most, tokens)}"
        ),
        place=server.where("parallel", "kv_unified", "ctx_size"),
        severity=Severity.NOTE,
        servers=(server.name,),
        numbers={
            "slots": slots,
            "slot_limit_tokens": most,
            "pool_tokens": tokens,
            "worst_case_ratio": round(slots * most / tokens, 6),
        },
    )


def parallel_divides_context(evidence: Evidence) -> Iterator[Hit]:
    """Find contexts that `-np` divides among slots, each of which gets a part only."""
    for server, sizing in evidence.llamacpp():
        launch, pool = server.launch, sizing.pool
        slots = launch.parallel
        if slots is None or slots < 2 or launch.kv_unified is not False or not launch.ctx_size:  # noqa: PLR2004
            continue
        if launch.ctx_size < 0 or sizing.refusal is not None:
            continue
        each = -(-(-(-launch.ctx_size // _STEP) * _STEP // slots) // _STEP) * _STEP
        total = each * slots
        if pool is not None:
            each, total = pool.slot_limit_tokens, pool.n_ctx
        grown = f", rounded up to {total:,} cells in all" if total != launch.ctx_size else ""
        yield Hit(
            message=(
                f"{server.name}: -np {slots} divides -c {launch.ctx_size:,}: each slot gets {each:,} tokens"
                f"{grown}, and a longer request is refused or cut off. Set -c {launch.ctx_size * slots} for"
                f" {launch.ctx_size:,} in each slot, or --kv-unified to share them."
            ),
            place=server.where("parallel", "ctx_size"),
            servers=(server.name,),
            numbers={"slots": slots, "ctx_size": launch.ctx_size, "slot_limit_tokens": each},
        )


def context_zero(evidence: Evidence) -> Iterator[Hit]:
    """Find `--ctx-size 0`: the model's whole training context, which `--fit` then leaves alone."""
    for server, sizing in evidence.llamacpp():
        if server.launch.ctx_size != 0 or "ctx_size" not in server.launch.stated:
            continue
        pool, model = sizing.pool, sizing.model
        amount = "whatever that is (its file is not read)"
        numbers: dict[str, int | float] = {}
        if pool is not None and model is not None:
            amount = f"{model.context_train:,} tokens, {pool.n_ctx:,} cells, {size(pool.total_bytes)}"
            numbers = {
                "context_train_tokens": model.context_train,
                "pool_tokens": pool.n_ctx,
                "pool_bytes": pool.total_bytes,
            }
        yield Hit(
            message=(
                f"{server.name}: --ctx-size 0 takes the model's training context, {amount}, and keeps --fit"
                f" from making it smaller: what does not fit the card fails at start. Set -c to what requests"
                f" need, or leave it out."
            ),
            place=server.where("ctx_size"),
            servers=(server.name,),
            numbers=numbers,
        )


def slots_cannot_reach(evidence: Evidence) -> Iterator[Hit]:
    """Find cells that no slot can ever use: a cap for each slot, or the training context, lies below them."""
    for server, sizing in evidence.llamacpp():
        launch, pool = server.launch, sizing.pool
        cap = launch.kv_unified_per_slot
        if pool is not None and pool.pool_tokens:
            own = pool.n_ctx_seq
            reach = pool.slot_limit_tokens * (pool.slots if pool.unified else 1)
            if own - reach < _STEP or context_may_shrink(sizing):
                continue  # less is rounding
            slots, limit = pool.slots, pool.slot_limit_tokens
            idle = (own - reach) * pool.streams
            waste = f", {size(round(idle * pool.bytes_per_token))}"
        elif cap and launch.kv_unified is False and launch.ctx_size and launch.request_limit:
            slots, limit = launch.request_limit, cap
            own = (launch.pool_tokens or launch.ctx_size) // slots
            if own - limit < _STEP:
                continue
            idle, waste = (own - limit) * slots, ""
        else:
            continue
        by, other = "the model's training context", ""
        if cap and cap <= limit:
            by, other = f"--kv-unified-per-slot {cap}", ", or raise the cap"
        whose = f"each of {slots} slots" if slots > 1 else "its slot"
        part = "they share" if pool is not None and pool.unified and slots > 1 else "it has"
        yield Hit(
            message=(
                f"{server.name}: {by} limits {whose} to {limit:,} tokens, of {own:,} that {part}:"
                f" {idle:,} cells{waste} can never be used. Lower -c to {limit * slots}{other}."
            ),
            place=server.where("kv_unified_per_slot", "ctx_size"),
            servers=(server.name,),
            numbers={"slot_limit_tokens": limit, "unreachable_cells": idle, "slots": slots},
        )
