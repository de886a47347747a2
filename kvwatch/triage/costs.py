"""What one request holds at any length, from the setup that was kept of a moment: the planner's own rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kvwatch.cost.spec import LayerKind
from kvwatch.cost.vllm import BlockPlan, KvGroup
from kvwatch.cost.vllm_version import rules_of
from kvwatch.fit import Load, UniformCost, fit_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.fit import RequestCost
    from kvwatch.observation import Setup
    from kvwatch.snapshot import KvGroup as KeptGroup

# What a kept group does not say: its blocks do not depend on the length, and how many they are is not kept.
_CONSTANT_KINDS = (LayerKind.RECURRENT, LayerKind.CROSS)
# A request keeps 1 to 3 states, and one more for each speculative token; more than so many that also equal
# one for every block are one for every block (mamba_cache_mode all, vLLM 0.15 to 0.31).
_MOST_STATES = 8
_ROUNDING_TOKENS = 1e-6  # of a mean of whole numbers that comes out a hair above a whole one


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalCost:
    """The cost function of one moment; lengths are means, so they need not be whole."""

    request: RequestCost

    def blocks(self, tokens: float) -> int:
        """Return R: the most blocks that a request of so many tokens holds."""
        return self.request.resident_blocks(_whole(tokens))

    def fit_empty(self, usable_blocks: int, tokens: float, request_limit: int | None) -> int | None:
        """Return how many such requests an empty rank takes, at most its request limit.

        A lower bound where windows are: the tokens in flight are not kept, so a window is charged the whole
        prompt while it is read.
        """
        length = _whole(tokens)
        load = Load(running=None, waiting=None, waiting_for_capacity=None, request_limit=request_limit)
        return fit_blocks(
            usable=usable_blocks,
            free=None,
            admission=self.request.admission_blocks(length),
            resident=self.request.resident_blocks(length),
            load=load,
        ).empty


@lru_cache(maxsize=64)  # a timeline has hundreds of steps of one setup
def cost_of(setup: Setup) -> TypicalCost | None:
    """Return the cost function of a setup; None where what was kept does not settle it."""
    request = _of_groups(setup) if setup.groups else _uniform(setup)
    return None if request is None else TypicalCost(request=request)


def block_bytes(setup: Setup, usable_blocks: int | None, usable_bytes: int | None) -> float | None:
    """Return the bytes of one block on one device of a rank: as kept, by its groups, or by the pin."""
    if setup.bytes_per_block is not None:
        return setup.bytes_per_block
    if usable_blocks and usable_bytes is not None:
        return usable_bytes / usable_blocks
    if setup.groups and setup.pipeline_parallel in (None, 1):
        return max(group.layers * group.page_bytes for group in setup.groups)
    return pinned_block_bytes(setup, usable_blocks)


def pinned_block_bytes(setup: Setup, usable_blocks: int | None) -> float | None:
    """Return the bytes of one block by the pin; None where there is none, or the blocks are overridden.

    A pin is taken verbatim for the pool, null block included (vLLM 0.10.2 and newer); the quotient is exact
    to one block in the pool's.
    """
    overridden = dict(setup.settings).get("num_gpu_blocks_override", "None") != "None"
    if not usable_blocks or setup.pin_bytes is None or overridden:
        return None
    return setup.pin_bytes / (usable_blocks + 1)


def _uniform(setup: Setup) -> UniformCost | None:
    full, resident, size = setup.full_length_tokens, setup.resident_blocks, setup.block_size
    if not full or not resident or not size:
        return None
    cost = UniformCost(size)
    return cost if cost.resident_blocks(full) == resident else None


def _of_groups(setup: Setup) -> BlockPlan | None:
    """Return the plan of the kept groups, its unkept constants settled by R at full length."""
    kinds = [_kind(group) for group in setup.groups]
    known = [kind for kind in kinds if kind is not None]
    if len(known) != len(kinds):
        return None
    plain = _plan(setup, [_group(group, kind) for group, kind in zip(setup.groups, known, strict=True)], 1)
    full, resident = setup.full_length_tokens, setup.resident_blocks
    constants = [group for group in plain.groups if group.kind in _CONSTANT_KINDS]
    if full is None or resident is None:
        return None if constants else plain
    if len({group.kind for group in constants}) > 1:
        return None
    for ranks in _context_ranks(setup, known):
        rest = resident - replace(plain, context_ranks=ranks).resident_blocks(full)
        if not constants:
            if rest == 0:
                return replace(plain, context_ranks=ranks)
        elif rest > 0 and rest % len(constants) == 0:
            each = rest // len(constants)
            groups = tuple(_settled(group, each, full) for group in plain.groups)
            return replace(plain, context_ranks=ranks, groups=groups)
    return None


def _kind(group: KeptGroup) -> LayerKind | None:
    return LayerKind(group.kind) if group.kind in LayerKind.__members__.values() else None


def _group(group: KeptGroup, kind: LayerKind) -> KvGroup:
    return KvGroup(
        kind=kind,
        layers=group.layers,
        block_size=group.block_size,
        page_bytes=group.page_bytes,
        bytes_per_block=group.layers * group.page_bytes,
        window=group.window,
        encoder_tokens=0 if kind is LayerKind.CROSS else None,
        state_blocks=0 if kind is LayerKind.RECURRENT else None,
    )


def _settled(group: KvGroup, each: int, full: int) -> KvGroup:
    """Return a group with its blocks of a request of full length filled in."""
    if group.kind is LayerKind.CROSS:
        return replace(group, encoder_tokens=each * group.block_size)
    if group.kind is not LayerKind.RECURRENT:
        return group
    grows = each > _MOST_STATES and each == -(-full // group.block_size)
    return replace(group, state_blocks=None if grows else each)


def _context_ranks(setup: Setup, kinds: Sequence[LayerKind]) -> Sequence[int]:
    """Return how many ranks may share a request's tokens: they divide the tensor ranks, and no window."""
    if any(kind not in (LayerKind.FULL, LayerKind.LATENT, LayerKind.RECURRENT) for kind in kinds):
        return (1,)
    tensor = setup.tensor_parallel or 1
    return [ranks for ranks in range(1, tensor + 1) if tensor % ranks == 0]


def _plan(setup: Setup, groups: list[KvGroup], context_ranks: int) -> BlockPlan:
    # So much in flight that windows are charged the whole prompt: A is then an upper bound.
    unlimited = setup.full_length_tokens or 1 << 40
    return BlockPlan(
        groups=tuple(groups),
        rank_bytes_per_block=(max(group.bytes_per_block for group in groups),),
        full_length=unlimited,
        in_flight_tokens=unlimited,
        encoder_budget=None,
        context_ranks=context_ranks,
        rules=rules_of(()),
    )


def _whole(tokens: float) -> int:
    return max(1, math.ceil(tokens - _ROUNDING_TOKENS))
