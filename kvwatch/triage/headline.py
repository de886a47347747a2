"""The one sentence that goes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.triage.limits import is_pressed, is_stalled, plateau
from kvwatch.triage.sentences import effect, number, size, times_of, tokens
from kvwatch.triage.verdict import Cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.triage.comparison import Comparison
    from kvwatch.triage.judgement import Judgement
    from kvwatch.triage.moment import Moment
    from kvwatch.triage.question import Record

_ENGINES = {"vllm": "vLLM", "llamacpp": "A llama-server", "sglang": "SGLang"}
_SHARING_MOVED = 0.1
"""Of the prompt tokens: less is not worth the first sentence."""


def headline_of(
    record: Record, before: Moment, after: Moment, comparison: Comparison, judgement: Judgement
) -> str:
    """Return what happened, the factor first."""
    cause = judgement.cause
    if cause is Cause.NOT_ENOUGH_DATA:
        return f"{record.server}: cannot tell. {_missing(record, before, after, comparison)}"
    if cause is Cause.REQUEST_LIMIT:
        told = _slots(record, after)
    elif cause is Cause.STALLED_NOT_MEMORY:
        told = _stall(record, before)
    else:
        told = _WORDS[cause](before, after, comparison)
    return f"{record.server}: {_capacity(before, after, comparison)}{told}"


def _capacity(before: Moment, after: Moment, comparison: Comparison) -> str:
    fits = before.typical_fit_empty, after.typical_fit_empty
    if comparison.ratio is None:
        return ""
    if not comparison.capacity_moved:
        return "room for typical requests is what it was. "
    held = "" if None in fits else f" ({number(fits[0])} then, {number(fits[1])} now)"
    return f"room for typical requests went {times_of(comparison.ratio)}{held}. "


def _missing(record: Record, before: Moment, after: Moment, comparison: Comparison) -> str:
    if after.sleeping:
        return "The server sleeps."
    if before.alternating or after.alternating:
        return "Two configurations take turns from minute to minute: two servers answer under this name."
    if comparison.ratio is not None:
        return (
            f"Requests of the two windows differ ({effect(comparison.factors.log_ratio)} of room), but they"
            " are so few or so unequal that chance alone may do that: compare longer windows."
        )
    if before.finished is None and after.finished is None:
        return f"{_ENGINES.get(after.setup.engine or '', 'The engine')} does not say how long requests were."
    few = [
        name
        for name, one in (("then", before), ("now", after))
        if one.finished is None or one.finished < record.minimum_finished
    ]
    if few:
        return f"Not enough traffic {' and '.join(few)} to say what a typical request is."
    return "What a request of that length holds is not known: no model file and no uniform pool."


def _slots(record: Record, after: Moment) -> str:
    if after.setup.request_limit is not None:
        return f"Requests wait for one of {after.setup.request_limit} slots, not for memory."
    top = plateau(record.now_observations)
    return (
        f"Requests wait though the pool has room, and never more than {number(top)} run: it looks like a"
        " request limit, which nobody states."
    )


def _stall(record: Record, before: Moment) -> str:
    if is_stalled(record.now_observations, before.generated_per_second):
        return "The engine stands still though its pool has room: this is not memory."
    return "Requests wait though the pool has room and slots are free: this is not memory."


def _lengths(name: str, noun: str) -> Callable[[Moment, Moment, Comparison], str]:
    def tell(before: Moment, after: Moment, comparison: Comparison) -> str:
        old, new = getattr(before, f"{name}_tokens"), getattr(after, f"{name}_tokens")
        did = dict(comparison.factors.items())[f"{name}_length"]
        return f"{noun} grew from {tokens(old)} to {tokens(new)} tokens ({effect(did)})."

    return tell


def _pool(why: str) -> Callable[[Moment, Moment, Comparison], str]:
    def tell(before: Moment, after: Moment, comparison: Comparison) -> str:
        sizes = f"from {before.usable_blocks:,} to {after.usable_blocks:,} blocks"
        if comparison.unit == "bytes" and comparison.before and comparison.after:
            sizes = f"from {size(comparison.before.pool)} to {size(comparison.after.pool)}"
        return f"The pool shrank {sizes} ({effect(comparison.factors.pool)}): {why}."

    return tell


def _cost(why: str) -> Callable[[Moment, Moment, Comparison], str]:
    return lambda _before, _after, comparison: (
        f"A token takes more of the pool ({effect(comparison.factors.cost_per_token)}): {why}."
    )


def _plain(text: str) -> Callable[[Moment, Moment, Comparison], str]:
    return lambda *_: text


def _mixed(_before: Moment, _after: Moment, comparison: Comparison) -> str:
    parts = [
        f"{name.replace('_', ' ')} {effect(value)}"
        for name, value in comparison.factors.items()
        if value is not None and value < 0 and comparison.moved(name)
    ]
    return f"Several factors did it, none alone: {', '.join(parts)}."


def _traffic(before: Moment, after: Moment, _comparison: Comparison) -> str:
    then, now = (
        "unknown" if rate is None else f"{60 * rate:,.1f}"
        for rate in (before.finished_per_second, after.finished_per_second)
    )
    return f"More came: {now} requests finished a minute, {then} then."


def _unchanged(before: Moment, after: Moment, comparison: Comparison) -> str:
    old, new = before.hit_ratio, after.hit_ratio
    if old is not None and new is not None and abs(new - old) >= _SHARING_MOVED:
        words = ("less", "fewer") if new < old else ("more", "more")
        return (
            f"But prompts share {words[0]}: {100 * new:.0f} % of their tokens were in the prefix cache,"
            f" {100 * old:.0f} % then, so {words[1]} run at once."
        )
    if comparison.made_up:
        parts = [
            f"{name.replace('_', ' ')} {effect(value)}" for name, value in comparison.factors.items() if value
        ]
        return f"What changed makes up for each other: {', '.join(parts)}."
    if comparison.at_an_edge:
        return (
            f"Lengths of {tokens(before.request_tokens)} and {tokens(after.request_tokens)} tokens lie on"
            " two sides of a block's edge: by them alone a request holds a block less or more."
        )
    if is_pressed(after) and not is_pressed(before):
        return "Yet requests press on it as they did not then, and nothing that was seen says why."
    return "Nothing that matters changed."


_WORDS: dict[Cause, Callable[[Moment, Moment, Comparison], str]] = {
    Cause.PROMPTS_LONGER: _lengths("prompt", "Prompts"),
    Cause.ANSWERS_LONGER: _lengths("generation", "Answers"),
    Cause.POOL_SMALLER_CONFIG: _pool("it was started with another configuration"),
    Cause.POOL_SMALLER_STARTUP_RACE: _pool("neighbours took memory while it started"),
    Cause.POOL_SMALLER_SLEEP_WAKE: _pool("it is smaller since the server woke"),
    Cause.POOL_SMALLER_UNEXPLAINED: _pool("nothing that was seen says why"),
    Cause.TOKEN_DEARER_ENGINE: _cost("the engine lays the cache out otherwise"),
    Cause.TOKEN_DEARER_MODEL: _cost("another model is served"),
    Cause.TOKEN_DEARER_CACHE_DTYPE: _cost("the cache has another dtype"),
    Cause.RANK_LOST: lambda before, after, _: (
        f"{len(after.ranks)} of {len(before.ranks)} ranks are left, with their part of the pool."
    ),
    Cause.MORE_TRAFFIC: _traffic,
    Cause.MIXED: _mixed,
    Cause.CAPACITY_GREW: _plain("It holds more than then."),
    Cause.NO_CHANGE: _unchanged,
}
