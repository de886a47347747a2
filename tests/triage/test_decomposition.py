"""The terms add up exactly, whatever the cost function."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from kvwatch.triage.decomposition import Side, decompose

_tokens = st.floats(min_value=1, max_value=1e6)


@st.composite
def sides(draw: st.DrawFn) -> Side:
    """Return a moment of a hybrid: a part that grows by blocks, a part that stops growing, and states."""
    block = draw(st.sampled_from([1, 16, 32, 544]))
    full, window, states = draw(st.integers(0, 9)), draw(st.integers(0, 9)), draw(st.integers(1, 3))
    limit = draw(st.integers(1, 4096))

    def cost(tokens: float) -> float:
        blocks = math.ceil(tokens / block)
        return full * blocks + window * min(blocks, limit) + states

    return Side(
        pool=draw(st.floats(min_value=1, max_value=1e13)),
        prompt_tokens=draw(_tokens),
        generation_tokens=draw(_tokens),
        cost=cost,
    )


@given(sides(), sides())
def test_the_terms_add_up(before: Side, after: Side) -> None:
    """Their sum is ln(C1/C0) within 1e-9."""
    total = decompose(before, after).log_ratio
    assert total is not None
    assert math.isclose(total, math.log(after.capacity / before.capacity), abs_tol=1e-9)


@given(sides())
def test_what_did_not_move_is_zero(side: Side) -> None:
    """Exactly, not nearly."""
    assert {value for _, value in decompose(side, side).items()} == {0.0}


@given(sides(), st.floats(min_value=0.1, max_value=10))
def test_a_pool_alone_is_the_pool_alone(side: Side, times: float) -> None:
    """No other term speaks of it."""
    larger = Side(
        pool=side.pool * times,
        prompt_tokens=side.prompt_tokens,
        generation_tokens=side.generation_tokens,
        cost=side.cost,
    )
    factors = decompose(side, larger)
    assert math.isclose(factors.pool or 0.0, math.log(times), abs_tol=1e-9)
    assert factors.cost_per_token == factors.prompt_length == factors.generation_length == 0.0
