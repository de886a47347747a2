"""A start-up log explained in text: where the memory went, the pin, what the log leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.startup_log.ledger import draw, ledgers, rows
from kvwatch.startup_log.paragraphs import block, printable, wrapped
from kvwatch.startup_log.pins import FREEZES, advise
from kvwatch.startup_log.pool_text import missing_sentences, pool_sentences, rank_lines
from kvwatch.table import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvwatch.startup_log.difference import Difference
    from kvwatch.startup_log.facts import Log, Start
    from kvwatch.startup_log.opinion import Opinion

_ENGINES = {"vllm": "vLLM", "llama.cpp": "llama-server", "sglang": "SGLang"}


def render_log(
    log: Log, opinions: Sequence[Opinion | str | None], changes: Sequence[Difference | None]
) -> str:
    """Return the last start of each server in full, the ones before it as a table.

    `opinions` and `changes` have one of each start; a change is against the same server's start before it.
    """
    last = {start.source: at for at, start in enumerate(log.starts)}
    paragraphs = list(_earlier(log, set(last.values())))
    for at in sorted(last.values()):
        paragraphs += _start(log.starts[at], opinions[at])
        change = changes[at]
        if change is not None:
            moved = [f"{name}: {old} then, {new} now." for name, old, new in change.settings]
            paragraphs.append(block("Since the start before", [*change.sentences, *moved]))
    return "\n\n".join(paragraphs) + "\n"


def render_difference(old: Start, new: Start, difference: Difference, names: tuple[str, str]) -> str:
    """Return two starts beside each other."""
    table: list[tuple[str, ...]] = [("", "OLD", "NEW", "MOVED")]
    table += [(row.name, row.old or "?", row.new or "?", row.moved or "?") for row in difference.rows]
    paragraphs = [
        f"OLD  {names[0]}: {_title(old)}\nNEW  {names[1]}: {_title(new)}",
        "\n".join(columns(table)),
    ]
    if difference.settings:
        changed: list[tuple[str, ...]] = [("SETTING", "OLD", "NEW"), *difference.settings]
        paragraphs.append("\n".join(columns(changed)))
    paragraphs.append(block("What it means", difference.sentences))
    return "\n\n".join(paragraphs) + "\n"


def _earlier(log: Log, shown: set[int]) -> Iterator[str]:
    if log.left_out:
        yield f"{log.left_out:,} earlier starts are left out."
    before = [start for at, start in enumerate(log.starts) if at not in shown]
    if not before:
        return
    table: list[tuple[str, ...]] = [("LINE", "STARTED", "SERVER", "KV CACHE", "TOKENS", "END")]
    table += [
        (
            f"{start.line:,}",
            printable(start.moment or "?"),
            printable(start.source or _ENGINES[start.engine]),
            "?" if start.memory.kv_bytes is None else size(start.memory.kv_bytes),
            "?" if start.kv_tokens is None else f"{start.kv_tokens:,}",
            _end(start),
        )
        for start in before
    ]
    yield "\n".join([f"Earlier starts in this log: {len(before):,}", *columns(table)])


def _end(start: Start) -> str:
    if start.failure is not None:
        return printable(f"FAILED: {start.failure.text}")
    return "ready" if start.ready else "not seen ready"


def _title(start: Start) -> str:
    words = [_ENGINES[start.engine], start.version or "(version not in the log)"]
    if start.model is not None:
        words.append(f"with {start.model}")
    if start.source:
        words.append(f"of {start.source}")
    if start.moment is not None:
        words.append(f"started {start.moment}")
    return printable(f"{' '.join(words)} (line {start.line:,})")


def _start(start: Start, opinion: Opinion | str | None) -> Iterator[str]:
    yield block(_title(start), [_state(start)])
    yield from _ledger(start)
    pool = list(pool_sentences(start))
    if pool:
        yield block("Pool" if start.failure is None else "Pool, as it was to be", pool)
    ranks = list(rank_lines(start))
    if ranks:
        yield "\n".join(ranks)
    yield _pin(start)
    if isinstance(opinion, str):
        yield block("Cost model", [f"No opinion: {opinion}."])
    elif opinion is not None:
        yield block("Cost model", opinion.sentences)
    missing = list(missing_sentences(start))
    if missing:
        yield block("Not in this log", missing)


def _state(start: Start) -> str:
    if start.failure is not None:
        return f"FAILED, line {start.failure.line:,}: {start.failure.text}."
    if start.later_failure is not None:
        return f"It became ready, and later, line {start.later_failure.line:,}: {start.later_failure.text}."
    if start.ready:
        return "It became ready."
    return "The log ends, or goes on with another start, before the server said that it was ready."


def _ledger(start: Start) -> Iterator[str]:
    memory, head = start.memory, ""
    if start.engine == "vllm" and memory.total_bytes is not None:
        place = "Host memory" if start.configuration.get("device_config") == "cpu" else "Card"
        head = f"{place} of {size(memory.total_bytes)}"
        if memory.free_bytes is not None:
            head += f", {size(memory.free_bytes)} of it free at start"
        if memory.share is not None:
            head += f"; a share of {memory.share:g}"
            asked = memory.requested_bytes
            head += "" if asked is None else f" is {size(asked)}"
    elif memory.share is not None:
        head = f"A share of {memory.share:g} of a card whose size is not in the log"
    for ledger in ledgers(start):
        bar = draw(ledger)
        if not bar and not ledger.title:
            continue  # one figure, which the pool's paragraph says too
        title = head or printable(ledger.title)
        if ledger.title and ledger.total_bytes is not None:
            title += f" of {size(ledger.total_bytes)}"
        lines = [*([title] if title else []), *([f"  [{bar}]"] if bar else []), *columns(rows(ledger))]
        head = ""
        if ledger.overlap_bytes:
            lines.append(
                f"  The parts are {size(ledger.overlap_bytes)} more than the card: rounded figures, or memory"
                f" that two of them count."
            )
        yield "\n".join(lines)
    if head:
        yield head


def _pin(start: Start) -> str:
    pin = advise(start)
    if pin.line is None:
        return block("Pin", [f"None: {pin.refusal}."])
    amount = "" if pin.pin_bytes is None else f"    ({size(pin.pin_bytes)})"
    remarks = [*pin.remarks, *(FREEZES if start.engine == "vllm" else ())]
    return "\n".join(["Pin", f"  {pin.line}{amount}", *wrapped(remarks)])
