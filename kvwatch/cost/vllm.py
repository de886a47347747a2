"""What vLLM allocates: pool blocks, and the blocks that one request needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.spec import LayerKind
from kvwatch.cost.vllm_blocks import page_layers
from kvwatch.cost.vllm_groups import FULL_LIKE, Group, group_layers
from kvwatch.cost.vllm_options import (
    MissingOptionError,
    OptionError,
    VllmOptions,
    default_batched_tokens,
    is_pooling,
)
from kvwatch.cost.vllm_states import state_blocks, state_mode
from kvwatch.cost.vllm_version import EngineRules, rules_of

if TYPE_CHECKING:
    from kvwatch.cost.spec import ModelSpec
    from kvwatch.cost.vllm_pages import PagedLayer

__all__ = [
    "BlockPlan",
    "KvGroup",
    "MissingOptionError",
    "OptionError",
    "VllmOptions",
    "default_batched_tokens",
    "plan_blocks",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers that share a block table; `page_bytes` is one layer's part of a block, on average."""

    kind: LayerKind
    layers: int
    block_size: int
    page_bytes: int
    bytes_per_block: int
    """All the group's layers of one rank."""
    window: int | None = None
    encoder_tokens: int | None = None
    state_blocks: int | None = None
    """Blocks of a recurrent group that one request holds at most; None where it keeps one for each block."""

    @property
    def grows(self) -> bool:
        """Say whether a longer request always needs more blocks of this group."""
        return self.kind in FULL_LIKE or (self.kind is LayerKind.RECURRENT and self.state_blocks is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """The plan of one rank: what a block costs and how many a request needs."""

    groups: tuple[KvGroup, ...]
    rank_bytes_per_block: tuple[int, ...]
    """Bytes of one pool block on each pipeline rank."""
    full_length: int | None
    """Longest request (`max_model_len`)."""
    in_flight_tokens: int | None
    """Tokens scheduled and not yet settled."""
    encoder_budget: int | None
    """Encoder tokens that a request may bring."""
    context_ranks: int
    rules: EngineRules

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block of the pool, all layers of one rank; of the largest pipeline rank."""
        return max(self.rank_bytes_per_block)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of a rank by which a request grows with each token once its windows are full."""
        return sum(
            self.bytes_per_block / self._tokens_per_block(group) for group in self.groups if group.grows
        )

    def num_blocks(self, pool_bytes: int) -> int:
        """Return the blocks of a pool of `pool_bytes` on each rank, the null block included."""
        if not self.groups:
            return 1
        return min(pool_bytes // rank_bytes for rank_bytes in self.rank_bytes_per_block)

    @property
    def start_blocks(self) -> int:
        """A_start: blocks that the planner charges for one request of full length."""
        return sum(self._start(group) for group in self.groups)

    def admission_blocks(self, length: int) -> int:
        """A(L): blocks that must be free to admit a prompt of `length` tokens."""
        return sum(self._admission(group, length) for group in self.groups)

    def resident_blocks(self, length: int) -> int:
        """R(L): the most blocks that a request holds while it decodes at `length` tokens."""
        return sum(self._resident(group, length) for group in self.groups)

    def max_concurrency(self, num_blocks: int) -> float | None:
        """Return the concurrency that the engine prints; None for a model without a cache."""
        if not self.groups:
            return None
        if self.rules.concurrency_by_tokens:
            return self._block_tokens(num_blocks) / self._full_length()
        return num_blocks / self.start_blocks

    def kv_cache_size_tokens(self, num_blocks: int) -> int | None:
        """Return the cache size in tokens that the engine prints; None for a model without a cache."""
        if not self.groups:
            return None
        if self.rules.tokens_by_concurrency:
            return int(num_blocks / self.start_blocks * self._full_length())
        return self._block_tokens(num_blocks)

    def _block_tokens(self, num_blocks: int) -> int:
        """Return the tokens of one group's share of the pool, as releases before 0.20.2 print them."""
        smallest = min(group.block_size for group in self.groups)
        return num_blocks // len(self.groups) * smallest * self.context_ranks

    @property
    def minimum_pool_bytes(self) -> int:
        """Bytes of the smallest pool of a rank with which the engine starts."""
        if not self.groups:
            return 0
        return self.bytes_per_block * (self.start_blocks + self.rules.null_block_reserved)

    def _full_length(self) -> int:
        if self.full_length is None:
            raise MissingOptionError("max_model_len")
        return self.full_length

    def _in_flight(self) -> int:
        if self.in_flight_tokens is None:
            raise MissingOptionError("max_num_batched_tokens")
        return self.in_flight_tokens

    def _tokens_per_block(self, group: KvGroup) -> int:
        """Return the tokens of a block; context-parallel ranks share a request's tokens, never its states."""
        return group.block_size * (1 if group.kind is LayerKind.RECURRENT else self.context_ranks)

    def _positions(self, group: KvGroup, length: int) -> int:
        return -(-length // self._tokens_per_block(group))

    def _local_cap(self, group: KvGroup) -> int:
        """Blocks that the planner reserves for the window or chunk of one request."""
        window = group.window or 0
        if group.kind is LayerKind.CHUNKED:
            return -(-min(window + self._in_flight(), self._full_length()) // group.block_size)
        return -(-min(window - 1 + self._in_flight(), self._full_length()) // group.block_size) + 1

    def _start(self, group: KvGroup) -> int:
        if group.grows:
            return self._positions(group, self._full_length())
        if group.kind is LayerKind.RECURRENT:
            return group.state_blocks or 0
        if group.kind is LayerKind.CROSS:
            if self.encoder_budget is None:
                raise MissingOptionError("max_num_batched_tokens")
            return -(-self.encoder_budget // group.block_size)
        return self._local_cap(group)

    def _admission(self, group: KvGroup, length: int) -> int:
        if group.grows:
            return self._positions(group, length)
        if group.kind is LayerKind.RECURRENT:
            return 1
        if group.kind is LayerKind.CROSS:
            return self._encoder_blocks(group)
        return min(-(-length // group.block_size), self._local_cap(group))

    def _resident(self, group: KvGroup, length: int) -> int:
        if group.grows:
            return self._positions(group, length)
        if group.kind is LayerKind.RECURRENT:
            return group.state_blocks or 0
        if group.kind is LayerKind.CROSS:
            return self._encoder_blocks(group)
        window, block = group.window or 0, group.block_size
        held = -(-(window - 1) // block) + 1
        if group.kind is LayerKind.CHUNKED and window % block == 0:
            held = window // block
        return min(-(-length // block), held)

    def _encoder_blocks(self, group: KvGroup) -> int:
        if group.encoder_tokens is None:
            return self._start(group)
        return -(-group.encoder_tokens // group.block_size)


def plan_blocks(spec: ModelSpec, options: VllmOptions) -> BlockPlan:
    """Return what vLLM's planner makes of a model with these options, for one data-parallel rank.

    Raises:
        OptionError: the engine refuses these options, or no rule covers them.

    """
    rules = rules_of(options.version)
    _check_context_ranks(spec, options)
    mode = state_mode(spec, options, rules)
    pages = page_layers(spec, options, rules, mode)
    groups = group_layers(pages, hybrid_manager=options.hybrid_manager, rules=rules)
    batched = options.max_num_batched_tokens
    rank_bytes = _rank_bytes(groups, spec.hidden_layers, options.pipeline_parallel)
    if groups and not all(rank_bytes):
        raise OptionError("pipeline_parallel", "a rank whose layers keep no cache has no rule")
    return BlockPlan(
        groups=tuple(_describe(group, mode, options, rules) for group in groups),
        rank_bytes_per_block=rank_bytes,
        full_length=options.max_model_len if options.max_model_len is not None else spec.max_positions,
        in_flight_tokens=None if batched is None else batched * _batches(spec, options, rules),
        encoder_budget=batched,
        context_ranks=options.decode_context_parallel,
        rules=rules,
    )


def _check_context_ranks(spec: ModelSpec, options: VllmOptions) -> None:
    """Refuse what decode context parallelism does: ranks that do not divide the tensor ranks, and windows."""
    ranks = options.decode_context_parallel
    if ranks == 1:
        return
    if ranks < 1 or options.tensor_parallel % ranks:
        raise OptionError(
            "decode_context_parallel", f"{options.tensor_parallel} ranks cannot be divided by {ranks}"
        )
    if any(layer.kind in (LayerKind.WINDOW, LayerKind.CHUNKED, LayerKind.CROSS) for layer in spec.layers):
        raise OptionError("decode_context_parallel", "windows, chunks and encoders cannot be divided")


def _batches(spec: ModelSpec, options: VllmOptions, rules: EngineRules) -> int:
    """Return how many batches may be scheduled and not yet settled (0.32.0, config/vllm.py)."""
    if not rules.counts_batches:
        return 1
    overlap = options.async_scheduling and not is_pooling(spec, options)
    return options.pipeline_parallel + (
        overlap and (options.pipeline_parallel == 1 or rules.overlapped_pipeline)
    )


def _describe(group: Group, mode: str, options: VllmOptions, rules: EngineRules) -> KvGroup:
    lead = max(group, key=lambda page: page.page_bytes)
    total = sum(page.page_bytes for page in group)
    encoder = [page.layer.encoder_tokens for page in group if page.layer.encoder_tokens is not None]
    return KvGroup(
        kind=lead.kind,
        layers=len(group),
        block_size=lead.block_size,
        page_bytes=total // len(group),
        bytes_per_block=total,
        window=lead.window,
        encoder_tokens=max(encoder, default=None),
        state_blocks=None if mode == "all" else state_blocks(lead.layer, mode, options, rules),
    )


def _rank_bytes(groups: tuple[Group, ...], hidden_layers: int, ranks: int) -> tuple[int, ...]:
    bounds = rank_bounds(hidden_layers, ranks)
    return tuple(
        max(
            (sum(page.page_bytes for page in group if _on_rank(page, low, high)) for group in groups),
            default=0,
        )
        for low, high in bounds
    )


def _on_rank(page: PagedLayer, low: int, high: int) -> bool:
    return low <= page.layer.index < high


def rank_bounds(hidden_layers: int, ranks: int) -> tuple[tuple[int, int], ...]:
    """Return the first layer and the one after the last of each pipeline rank (0.32.0, distributed/utils.py).

    Layers left over go to the ranks before the last one.
    """
    counts = [hidden_layers // ranks] * ranks
    for offset in range(2, hidden_layers % ranks + 2):
        counts[-offset] += 1
    starts = [sum(counts[:rank]) for rank in range(ranks)]
    return tuple((start, start + count) for start, count in zip(starts, counts, strict=True))
