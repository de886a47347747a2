"""What was seen, as sentences: each with a kind for programs, from a closed list in docs/triage.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.triage.changes import appeared
from kvwatch.triage.limits import is_stalled, limit_reached, plateau, waits_for_neither
from kvwatch.triage.sentences import moment as when
from kvwatch.triage.sentences import number, size, span, tokens
from kvwatch.triage.verdict import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.triage.changes import Change, Changes
    from kvwatch.triage.comparison import Comparison
    from kvwatch.triage.moment import Moment
    from kvwatch.triage.question import Record

_SHARING_MOVED = 0.05
_WHOLE = 0.75
"""Of a window: when less was watched, it is told."""
_KINDS = {
    "version": "engine_version",
    "engine": "engine_version",
    "model": "model",
    "model_hash": "model",
    "cache_dtype": "cache_dtype",
    "tensor_parallel": "tensor_parallel",
    "pipeline_parallel": "tensor_parallel",
    "share_ratio": "share",
    "pin_bytes": "pin",
    "driver": "driver",
    "devices": "device",
    "request_limit": "request_limit",
    "full_length_tokens": "full_length",
}


def evidence_of(
    record: Record, before: Moment, after: Moment, comparison: Comparison, changes: Changes
) -> tuple[Evidence, ...]:
    """Return everything worth knowing beside the factors, the most telling first."""
    return (
        *_lengths(before, after),
        *_pool(before, after, comparison),
        *(_setting(change) for change in changes.settings.values()),
        *_start(record, before, after, changes),
        *_neighbours(record, after, changes),
        *_load(record, before, after),
        *_sharing(before, after),
        *_gaps(record, before, after, changes),
    )


def _lengths(before: Moment, after: Moment) -> Iterator[Evidence]:
    for kind, name in (("prompt_length", "prompt"), ("generation_length", "generation")):
        old, new = (getattr(one, f"{name}_tokens") for one in (before, after))
        if old is not None and new is not None:
            noun = "A prompt" if name == "prompt" else "An answer"
            text = (
                f"{noun} had {tokens(old)} tokens, and has {tokens(new)} now"
                f" (means of {number(before.finished)} and {number(after.finished)} finished requests)."
            )
            yield Evidence(kind=kind, text=text, before=tokens(old), after=tokens(new))


def _pool(before: Moment, after: Moment, comparison: Comparison) -> Iterator[Evidence]:
    old, new = before.usable_blocks, after.usable_blocks
    if old is None or new is None:
        return
    parts = [f"{old:,} blocks, now {new:,}"]
    if comparison.unit == "bytes" and comparison.before and comparison.after:
        parts.append(f"{size(comparison.before.pool)}, now {size(comparison.after.pool)}")
    if old == new:
        text = f"The pool is what it was: {new:,} usable blocks."
    else:
        text = f"The pool had {' ('.join(parts)}{')' if len(parts) > 1 else ''}."
    yield Evidence(kind="pool", text=text, before=str(old), after=str(new))
    lost = [rank for rank in before.ranks if rank not in after.ranks]
    if lost:
        text = f"Of {len(before.ranks)} ranks {len(after.ranks)} are left; gone: {', '.join(lost)}."
        yield Evidence(
            kind="ranks", text=text, before=", ".join(before.ranks), after=", ".join(after.ranks) or "none"
        )


def _setting(change: Change) -> Evidence:
    text = f"{change.words[0].upper()}{change.words[1:]} changed: {change.before} -> {change.after}."
    if change.field == "fingerprint":
        text = (
            f"Some flag changed: the configuration's fingerprint was {change.before} and is {change.after}."
        )
    kind = _KINDS.get(change.field, "setting")
    return Evidence(kind=kind, text=text, before=change.before, after=change.after)


def _start(record: Record, before: Moment, after: Moment, changes: Changes) -> Iterator[Evidence]:
    if changes.restarted_at is not None:
        text = f"The server started again at {when(changes.restarted_at)}."
        yield Evidence(kind="restart", text=text, after=when(changes.restarted_at))
    elif after.started_at is None or (
        before.started_at is None and after.started_at > record.baseline.start_at
    ):
        yield Evidence(kind="start_unknown", text="Whether the server started again in between is not known.")
    else:
        yield Evidence(kind="no_restart", text=f"The server has run since {when(after.started_at)}.")
    if not changes.settings.keys() - {"driver"}:
        yield Evidence(kind="no_deploy", text="No setting, version or model was seen to change.")
    if changes.slept is not None:
        text = f"It slept from {when(changes.slept[0])} to {when(changes.slept[1])}."
        yield Evidence(kind="sleep", text=text, before=when(changes.slept[0]), after=when(changes.slept[1]))


def _neighbours(record: Record, after: Moment, changes: Changes) -> Iterator[Evidence]:
    for growth in changes.growths[:3]:
        neighbour = growth.neighbour
        who = neighbour.server or neighbour.name or "a process"
        if neighbour.pid:
            who += f" (process {neighbour.pid})"
        text = (
            f"While it started, {who} grew by {size(growth.bytes)} on"
            f" {growth.device}: the engine counts what others take meanwhile as its own."
        )
        yield Evidence(
            kind="neighbour_grew",
            text=text,
            before=size(neighbour.first_bytes),
            after=size(neighbour.most_bytes),
        )
    if changes.restarted_at is not None and not changes.growths:
        text = (
            "No neighbour grew while it started."
            if changes.start_watched
            else "Its start was not watched: whether a neighbour grew meanwhile is not known."
        )
        kind = "no_neighbour_grew" if changes.start_watched else "start_not_watched"
        yield Evidence(kind=kind, text=text)
    for server, device, held in list(appeared(record, after.setup.devices))[:3]:
        text = f"{server or 'Somebody else'} holds {size(held)} more on {device} than then."
        yield Evidence(kind="neighbour_appeared", text=text, after=size(held))


def _load(record: Record, before: Moment, after: Moment) -> Iterator[Evidence]:
    rates = [one.finished_per_second for one in (before, after)]
    if rates[0] is not None and rates[1] is not None:
        old, new = (f"{60 * rate:,.1f}" for rate in rates if rate is not None)
        yield Evidence(
            kind="traffic", text=f"{new} requests finished a minute, {old} then.", before=old, after=new
        )
    waiting = before.waiting, after.waiting
    if waiting[1] is not None and (waiting[1] > 0 or (waiting[0] or 0) > 0):
        kinds = ", ".join(
            f"{mean:.1f} {reason}" for reason, mean in sorted(after.waiting_mean.items()) if mean
        )
        text = f"On average {waiting[1]:.1f} requests wait{f' ({kinds})' if kinds else ''}"
        text += "." if waiting[0] is None else f", {waiting[0]:.1f} then."
        yield Evidence(kind="waiting", text=text, before=number(waiting[0]), after=number(waiting[1]))
    if after.preemptions or after.suspected:
        count = max(after.preemptions or 0, after.suspected or 0)
        text = f"About {count:.0f} requests were preempted and computed again in the window of now."
        yield Evidence(kind="preemptions", text=text, before=number(before.preemptions), after=number(count))
    if is_stalled(record.now_observations, before.generated_per_second):
        text = (
            "Requests wait, the pool has room, and hardly a token comes out: it stands still, and not for"
            " memory."
        )
        yield Evidence(kind="stall", text=text)
    elif waits_for_neither(record.now_observations):
        text = "Requests wait for long while the pool has room and slots are free: not for memory."
        if after.waiting_mean.get("deferred"):
            text = f"{text[:-1]}, some for what they lack besides (a transfer, a grammar)."
        yield Evidence(kind="waiting_not_memory", text=text)
    top = plateau(record.now_observations)
    if top is not None:
        text = (
            f"While requests wait and the pool has room, never more than {number(top)} run: if that is"
            " max_num_seqs, it is what they wait for."
        )
        yield Evidence(kind="request_limit_suspected", text=text, after=number(top))
    if limit_reached(after):
        text = (
            f"All {after.setup.request_limit} request slots were taken while the pool was at most"
            f" {100 * (after.usage_max or 0):.0f} % full: slots, not memory, made requests wait."
        )
        yield Evidence(kind="request_limit_reached", text=text)
    if after.sleeping:
        yield Evidence(kind="asleep", text="The server sleeps: nothing fits until it wakes.")


def _sharing(before: Moment, after: Moment) -> Iterator[Evidence]:
    """Tell of prefix sharing where it moved: shared blocks are held once, so it widens the pool."""
    old, new = before.hit_ratio, after.hit_ratio
    if old is None or new is None or abs(new - old) < _SHARING_MOVED:
        return
    direction = "less" if new < old else "more"
    text = (
        f"The prefix cache had {100 * new:.0f} % of the prompt tokens, {100 * old:.0f} % then: {direction} is"
        " shared, so the same pool holds "
        f"{'fewer' if new < old else 'more'} requests at once than the factors alone say."
    )
    prompts = before.prompt_tokens, after.prompt_tokens
    totals = before.request_tokens, after.request_tokens
    if prompts[0] and prompts[1] and totals[0] and totals[1]:
        own = [
            total - prompt * ratio
            for total, prompt, ratio in zip(totals, prompts, (old, new), strict=True)
            if total and prompt
        ]
        text += f" Tokens of its own a request: {own[0]:,.0f} then, {own[1]:,.0f} now."
        rooms = [_shared_room(one, length) for one, length in zip((before, after), own, strict=True)]
        if None not in rooms:
            text += (
                f" If all the rest were held once, {rooms[0]:,} would have fitted then, and {rooms[1]:,} now."
            )
    yield Evidence(kind="prefix_sharing", text=text, before=f"{old:.3f}", after=f"{new:.3f}")


def _shared_room(moment: Moment, own_tokens: float) -> int | None:
    """Return how many requests fit where only their own tokens count: the most that sharing can make."""
    cost, blocks = moment.cost, moment.usable_blocks
    return None if cost is None or blocks is None else blocks // cost.blocks(own_tokens)


def _gaps(record: Record, before: Moment, after: Moment, changes: Changes) -> Iterator[Evidence]:
    if changes.gap_seconds > 0:
        text = f"For {span(changes.gap_seconds)} between the two windows nothing was watched."
        yield Evidence(kind="gap", text=text, after=span(changes.gap_seconds))
    for name, one, window in (("then", before, record.baseline), ("now", after, record.now)):
        if one.observed_seconds < _WHOLE * window.seconds:
            text = (
                f"Of the window of {name} only {span(one.observed_seconds)} of {span(window.seconds)} were"
                " watched."
            )
            yield Evidence(kind="partly_watched", text=text, after=span(one.observed_seconds))
        if one.alternating:
            text = f"In the window of {name} two configurations take turns under this name."
            yield Evidence(kind="two_servers", text=text)
