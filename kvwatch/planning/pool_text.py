"""The arithmetic of a pool in sentences, and a measured one beside the model's files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.cost.spec import LayerKind
from kvwatch.planning.pool import block_plan
from kvwatch.planning.question import GgufFile, VllmModel

_BY_BATCH = (LayerKind.WINDOW, LayerKind.CHUNKED, LayerKind.CROSS, LayerKind.LATENT_WINDOW)
_OLDER_CARDS = (8, 0)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.planning.agreement import Agreement
    from kvwatch.planning.answer import Answer
    from kvwatch.planning.pool import Blocks, Pool
    from kvwatch.planning.question import Server


def pool_sentences(answer: Answer, server: Server) -> Iterator[str]:
    """Say how the pool comes about, and what is not known beside it."""
    pool = answer.pools[server.name]
    ranks = len(pool.rank_bytes)
    each = f" on each of {ranks} cards" if ranks > 1 else ""
    if pool.blocks is not None:
        yield from _blocks(server, pool, pool.blocks, each)
    elif pool.slots is not None:
        yield from _slots(server, pool)
    else:
        yield "The model keeps no KV cache: it needs no pool."
    yield from _weights(server)
    if isinstance(server.model, VllmModel) and pool.blocks is not None:
        yield from _assumed(server, server.model)


def _blocks(server: Server, pool: Pool, blocks: Blocks, each: str) -> Iterator[str]:
    asked = server.concurrency or 0
    token = f"One token takes {pool.token_bytes:,.0f} bytes" if pool.token_bytes else "A token takes nothing"
    yield (
        f"{token}{each}, one block of {blocks.block_tokens} tokens {blocks.block_bytes:,};"
        f" a request of {server.length_tokens or 0:,} tokens holds {_count(blocks.resident)} at its longest."
    )
    held = asked * blocks.resident
    if blocks.total == held + 1:
        yield (
            f"{asked:,} x {_count(blocks.resident)} and the null block that vLLM keeps: {blocks.total:,}"
            f" blocks x {blocks.block_bytes:,} = {pool.pin_bytes:,} bytes, {size(pool.pin_bytes)}{each}."
        )
    else:
        why = (
            f"vLLM does not start with less than {blocks.least:,}: its planner charges one request"
            f" {blocks.start:,}"
            if blocks.total == blocks.least
            else f"a prompt of full length enters only while {blocks.admission:,} are free beside the null"
            f" block"
        )
        yield (
            f"{asked:,} x {_count(blocks.resident)} would do, but {why}. {blocks.total:,} x"
            f" {blocks.block_bytes:,} = {pool.pin_bytes:,} bytes, {size(pool.pin_bytes)}{each}, which hold"
            f" {blocks.held:,}."
        )
    if blocks.entering < asked:
        yield (
            f"A prompt of full length enters only while {blocks.admission:,} blocks are free:"
            f" {blocks.entering:,} such {'prompt enters' if blocks.entering == 1 else 'prompts enter'} this"
            f" pool, the others wait; {asked:,} requests that grow to that length are held."
        )


def _count(blocks: int) -> str:
    return "1 block" if blocks == 1 else f"{blocks:,} blocks"


def _slots(server: Server, pool: Pool) -> Iterator[str]:
    slots = pool.slots
    if slots is None:
        return
    kind = "one pool for all" if slots.unified else "each with cells of its own"
    yield (
        f"{slots.slots} slots of {server.length_tokens or 0:,} tokens, {kind}: a context of {slots.n_ctx:,}"
        f" (rounded up to 256), {pool.token_bytes:,.0f} bytes a token, {size(slots.total_bytes)}."
    )
    if slots.recurrent_bytes:
        yield f"{size(slots.recurrent_bytes)} of it are states, which no length changes."
    yield "A request may hold one token less than its slot."


def _weights(server: Server) -> Iterator[str]:
    """Say what the files say of the weights where a rank's part of them is not settled."""
    measured = server.footprint
    if measured is not None and measured.beside_pool() is not None:
        yield (
            "What it holds beside the pool is as it was measured: take it again when the model, its"
            " quantisation, the version, --max-num-batched-tokens or --max-num-seqs are others."
            if isinstance(server.model, VllmModel)
            else "What it holds beside the pool is as it was measured, with that batch and that context."
        )
        return
    if measured is not None:
        yield "What was measured does not say how much of it is KV cache: add kv=SIZE, or its log."
    if server.weights_bytes is not None:
        return
    model = server.model
    if isinstance(model, GgufFile) and model.weights is None:
        yield "Its weights are in several files, or not all there: state them with weights=SIZE."
    if not isinstance(model, VllmModel):
        return
    if model.weights is None:
        yield "Its weights are not at hand beside its config.json: state them with weights=SIZE."
        return
    ranks = model.options.tensor_parallel * model.options.pipeline_parallel
    if ranks > 1:
        yield (
            f"Its files hold {size(model.weights.total_bytes)}, over {ranks} ranks. What one rank keeps of"
            f" them is not settled by the files (padding, copies, uneven layers): state it with weights=SIZE."
        )
    elif len(model.weights.by_dtype) != 1:
        yield (
            f"Its files hold {size(model.weights.total_bytes)} in several types; what is made of them at load"
            f" is told by a start only, or stated with weights=SIZE."
        )


def _assumed(server: Server, model: VllmModel) -> Iterator[str]:
    length, options = server.length_tokens or 0, model.options
    plan = block_plan(model, length)
    if any(group.kind in _BY_BATCH for group in plan.groups):
        yield f"Windows are reckoned with --max-num-batched-tokens {options.max_num_batched_tokens:,}."
    older = replace(model, options=replace(options, compute_capability=_OLDER_CARDS))
    if options.block_size is None and block_plan(older, length).groups != plan.groups:
        major, minor = options.compute_capability
        yield (
            f"Its blocks depend on the card: these are of compute capability {major}.{minor}"
            f" (--compute-capability)."
        )


def agreement_sentences(found: Agreement) -> Iterator[str]:
    """Say why a printed size, divided by a token's bytes, is not what the engine prints."""
    blocks = found.tokens_as_printed // found.block_tokens
    yield (
        f"{size(found.kv_bytes)} over {found.token_bytes:,} bytes a token are {found.tokens_by_division:,}"
        f" tokens; a pool has whole blocks, {blocks:,} of {found.block_bytes:,} bytes:"
        f" {found.tokens_as_printed:,}."
    )
    if found.tokens_least != found.tokens_most:
        yield (
            f"As exact as it was printed it is a pool of {found.tokens_least:,} to {found.tokens_most:,}"
            f" tokens."
        )
    if found.pool_bytes_least is None or found.pool_bytes_most is None:
        yield (
            f"The engine said {found.tokens:,}: another model, cache dtype, version or parallelism than"
            f" these, or the size of another pool."
        )
        return
    yield (
        f"The engine said {found.tokens:,}, {found.tokens // found.block_tokens:,} blocks: they agree, and"
        f" the pool was {found.pool_bytes_least:,} to {found.pool_bytes_most:,} bytes. One of these blocks"
        f" is the null block: {found.tokens - found.block_tokens:,} tokens are for requests."
    )
