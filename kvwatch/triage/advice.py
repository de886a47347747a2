"""For each cause: what would disprove it, and the levers, with what each costs whom."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.triage.comparison import Unit
from kvwatch.triage.sentences import size
from kvwatch.triage.verdict import Cause, Lever

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.triage.comparison import Comparison
    from kvwatch.triage.moment import Moment

SHORTER_PROMPTS = Lever(
    name="shorter_prompts",
    action="Find the client whose prompts grew and shorten what it sends: history, retrieved text, tools.",
    cost="Work on the client; answers may know less.",
    stream="Helps at once: more users are served side by side.",
    batch="Helps as much: each prompt token saved is a token not computed.",
)
CAP = Lever(
    name="cap",
    action="Lower max_model_len, or cap max_tokens and the prompt's length in front of the server.",
    cost="Requests beyond the cap are refused; a restart for max_model_len.",
    stream="Bounds the worst case; the typical request holds what it held.",
    batch="Bounds the worst case; long jobs must be split.",
)
PIN = Lever(
    name="pin_bytes",
    action="Set kv_cache_memory_bytes to the size the pool had, so that a start measures no neighbours.",
    cost="The pool no longer grows by itself when memory is free; too large a pin fails the start.",
    stream="Capacity is the same after every start.",
    batch="Capacity is the same after every start.",
)
IN_TURN = Lever(
    name="start_in_turn",
    action="Restart this server alone, when its neighbours have finished starting.",
    cost="A restart: its requests are lost, its prefix cache is cold.",
    stream="Gives the pool back until the next race.",
    batch="Gives the pool back until the next race.",
)
MORE_CACHE = Lever(
    name="more_cache",
    action="Give the pool more memory: a larger share or pin, fewer neighbours, another card or replica.",
    cost="Memory that something else has now.",
    stream="More users at once at the same speed.",
    batch="More sequences in a batch: higher throughput.",
)
SMALLER_DTYPE = Lever(
    name="smaller_dtype",
    action="Store the cache in FP8 (kv_cache_dtype), where the model keeps its quality.",
    cost="Half the bytes of a token; quality must be checked, some kernels are slower.",
    stream="Nearly twice the users at once.",
    batch="Nearly twice the sequences at once.",
)
ADMISSION = Lever(
    name="admission_limit",
    action="Lower max_num_seqs, or the concurrency in front of it, to what the pool holds at typical length.",
    cost="Requests queue in front instead of being preempted inside.",
    stream="Those who are served keep their speed; the others wait for their first token.",
    batch="No work is done twice; throughput rises when preemption was the loss.",
)
HIGHER_LIMIT = Lever(
    name="raise_request_limit",
    action="Raise max_num_seqs (llama-server: -np), as far as the pool holds at typical length.",
    cost="Each sequence decodes more slowly; preemption where the pool cannot hold them.",
    stream="Shorter waits for the first token, slower streams.",
    batch="Higher throughput while memory bandwidth lasts.",
)
LOOK_AT_ENGINE = Lever(
    name="look_at_the_engine",
    action="Read the engine's log and the state of its processes; take a stack before you restart it.",
    cost="None; a restart loses its requests.",
    stream="Nobody gets a token until it moves.",
    batch="No job ends until it moves.",
)
REPLICA = Lever(
    name="replica",
    action="Send load to another replica, or add one.",
    cost="Another card.",
    stream="Waits fall as the load is divided.",
    batch="Jobs end sooner.",
)
UNDO = Lever(
    name="undo",
    action="Take the change back, or give the pool the memory that the new setting needs.",
    cost="Whatever the change was made for.",
    stream="Capacity is what it was.",
    batch="Capacity is what it was.",
)

_POOL_ADVICE = (PIN, MORE_CACHE, ADMISSION)
LEVERS: Mapping[Cause, tuple[Lever, ...]] = {
    Cause.PROMPTS_LONGER: (SHORTER_PROMPTS, ADMISSION, MORE_CACHE, SMALLER_DTYPE, CAP),
    Cause.ANSWERS_LONGER: (CAP, ADMISSION, MORE_CACHE, SMALLER_DTYPE),
    Cause.POOL_SMALLER_CONFIG: (UNDO, *_POOL_ADVICE),
    Cause.POOL_SMALLER_STARTUP_RACE: (IN_TURN, PIN, ADMISSION),
    Cause.POOL_SMALLER_SLEEP_WAKE: (IN_TURN, PIN, ADMISSION),
    Cause.POOL_SMALLER_UNEXPLAINED: (IN_TURN, *_POOL_ADVICE),
    Cause.TOKEN_DEARER_ENGINE: (UNDO, MORE_CACHE, SMALLER_DTYPE, ADMISSION),
    Cause.TOKEN_DEARER_MODEL: (UNDO, MORE_CACHE, SMALLER_DTYPE, ADMISSION),
    Cause.TOKEN_DEARER_CACHE_DTYPE: (UNDO, MORE_CACHE, ADMISSION),
    Cause.RANK_LOST: (LOOK_AT_ENGINE, REPLICA, ADMISSION),
    Cause.REQUEST_LIMIT: (HIGHER_LIMIT, REPLICA),
    Cause.STALLED_NOT_MEMORY: (LOOK_AT_ENGINE, REPLICA),
    Cause.MORE_TRAFFIC: (REPLICA, ADMISSION, MORE_CACHE),
}
_BY_FACTOR: Mapping[str, tuple[Lever, ...]] = {
    "pool": _POOL_ADVICE,
    "cost_per_token": (UNDO, MORE_CACHE, SMALLER_DTYPE),
    "prompt_length": (SHORTER_PROMPTS, ADMISSION, MORE_CACHE),
    "generation_length": (CAP, ADMISSION, MORE_CACHE),
}

DISPROOF: Mapping[Cause, tuple[str, ...]] = {
    Cause.PROMPTS_LONGER: (
        "The gateway's own log shows prompts as long as before.",
        "The mean is pulled up by a few giants: then capacity for everybody else is what it was.",
    ),
    Cause.ANSWERS_LONGER: ("The gateway's own log shows answers as long as before.",),
    Cause.POOL_SMALLER_CONFIG: ("The start-up log of this start shows the flags of the last one.",),
    Cause.POOL_SMALLER_STARTUP_RACE: (
        "Started alone, the server comes up with the same small pool.",
        "The two start-up logs show the same free memory at start.",
    ),
    Cause.POOL_SMALLER_SLEEP_WAKE: ("A restart without sleep comes up with the same small pool.",),
    Cause.POOL_SMALLER_UNEXPLAINED: (
        "A neighbour's log shows that it started in the same minutes: then it was a race.",
        "The two start-up logs differ in flags: then it was the configuration.",
    ),
    Cause.TOKEN_DEARER_ENGINE: ("The former version, started with today's flags, holds as few tokens.",),
    Cause.TOKEN_DEARER_MODEL: ("The former model, started with today's flags, holds as few tokens.",),
    Cause.TOKEN_DEARER_CACHE_DTYPE: ("Started with the former cache dtype, it holds as few tokens.",),
    Cause.RANK_LOST: ("The engine's page lists the rank again at the next look.",),
    Cause.REQUEST_LIMIT: ("Requests wait as long with a higher max_num_seqs.",),
    Cause.STALLED_NOT_MEMORY: ("Tokens come out while requests wait: then it is slow, not still.",),
    Cause.MORE_TRAFFIC: ("The gateway counts as many requests as then.",),
    Cause.MIXED: ("Either factor alone, put back, restores most of the capacity.",),
    Cause.NO_CHANGE: ("Another baseline, a week ago or the last start, shows a change.",),
}


def levers_of(cause: Cause, before: Moment, after: Moment, comparison: Comparison) -> tuple[Lever, ...]:
    """Return the levers of a cause, with the figures of this server where they are known.

    Of several factors, the levers of those that took most come first.
    """
    levers = _mixed(comparison) if cause is Cause.MIXED else LEVERS.get(cause, ())
    if cause is Cause.MORE_TRAFFIC and after.setup.request_limit == after.running_max:
        levers = (HIGHER_LIMIT, *levers)
    return tuple(_with_figures(lever, before, after, comparison) for lever in levers)


def _mixed(comparison: Comparison) -> tuple[Lever, ...]:
    took = sorted(
        (value, name) for name, value in comparison.factors.items() if value is not None and value < 0
    )
    found: dict[str, Lever] = {}
    for _, name in took:
        if comparison.moved(name):
            found |= {lever.name: lever for lever in _BY_FACTOR[name] if lever.name not in found}
    return tuple(found.values())


def _with_figures(lever: Lever, before: Moment, after: Moment, comparison: Comparison) -> Lever:
    if lever is PIN and comparison.unit is Unit.BYTES and comparison.before is not None and before.pools:
        blocks = before.pools[0].usable_blocks
        if blocks and before.usable_blocks:
            # The null block is part of a pin.
            pinned = round(comparison.before.pool / before.usable_blocks * (blocks + 1))
            figure = f" Then it was {pinned:,} bytes on each device ({size(pinned)})."
            return replace(lever, action=lever.action + figure)
    fits = after.typical_fit_empty
    if lever is ADMISSION and fits and after.ranks:
        each = f", {fits // len(after.ranks):,} a rank" if len(after.ranks) > 1 else ""
        return replace(lever, action=f"{lever.action} That is {fits:,} now{each}.")
    return lever
