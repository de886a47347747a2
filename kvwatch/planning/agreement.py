"""A measured pool beside the cost model: printed bytes, whole blocks, and the engine's own tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.cost.spec import LayerKind
from kvwatch.planning.pool import block_plan
from kvwatch.planning.question import VllmModel

if TYPE_CHECKING:
    from kvwatch.planning.question import Server

_WHOLE = frozenset({LayerKind.FULL, LayerKind.LATENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What the model's files make of a pool that was measured.

    Attributes:
        tokens_by_division: bytes over bytes a token, as if there were no blocks.
        tokens_as_printed: whole blocks of the printed bytes.
        tokens_least: of the smallest pool that is printed like that; `tokens_most` of the largest.
        pool_bytes_least: the pools that hold the engine's tokens and are printed like that, from the
            smallest to `pool_bytes_most`; None where the engine's tokens are in none.

    """

    server: str
    token_bytes: int
    block_bytes: int
    block_tokens: int
    kv_bytes: int
    tokens: int
    tokens_by_division: int
    tokens_as_printed: int
    tokens_least: int
    tokens_most: int
    pool_bytes_least: int | None = None
    pool_bytes_most: int | None = None

    @property
    def agrees(self) -> bool:
        """Say whether the engine's tokens are those of a pool that is printed like that."""
        return self.tokens_least <= self.tokens <= self.tokens_most


def agreement_of(server: Server) -> Agreement | None:
    """Compare a measured pool with the model; None where either is missing, or blocks are not all alike."""
    footprint, model = server.footprint, server.model
    if footprint is None or not isinstance(model, VllmModel) or server.length_tokens is None:
        return None
    pool, tokens = footprint.kv_bytes, footprint.tokens
    if pool is None or tokens is None:
        return None
    plan = block_plan(model, server.length_tokens)
    if len(plan.groups) != 1 or plan.groups[0].kind not in _WHOLE:
        return None
    each = plan.groups[0].block_size * plan.context_ranks
    doubt = footprint.kv_doubt_bytes
    least, printed, most = (plan.num_blocks(max(0, size)) for size in (pool - doubt, pool, pool + doubt))
    found = Agreement(
        server=server.name,
        token_bytes=round(plan.bytes_per_token),
        block_bytes=plan.bytes_per_block,
        block_tokens=each,
        kv_bytes=pool,
        tokens=tokens,
        tokens_by_division=int(pool / plan.bytes_per_token),
        tokens_as_printed=printed * each,
        tokens_least=least * each,
        tokens_most=most * each,
    )
    if not found.agrees:
        return found
    blocks = tokens // each
    return replace(
        found,
        pool_bytes_least=max(blocks * plan.bytes_per_block, pool - doubt + (doubt > 0)),
        pool_bytes_most=min((blocks + 1) * plan.bytes_per_block - 1, pool + doubt),
    )
