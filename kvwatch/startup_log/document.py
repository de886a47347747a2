"""A log as JSON: what it does not say is absent."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from kvwatch.startup_log.pins import advise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.startup_log.difference import Difference
    from kvwatch.startup_log.facts import Failure, Log, Start
    from kvwatch.startup_log.opinion import Opinion

_INTERNAL = frozenset({"graphs_in_activation", "kv_bytes_exact"})


def log_document(name: str, log: Log, opinions: Sequence[Opinion | str | None]) -> dict[str, Any]:
    """Return a log as plain values; engine and version are those of its last start.

    `opinions` has one of each start: the cost model's, why it has none, or None where it was not asked.
    """
    last = log.starts[-1] if log.starts else None
    return _known(
        {
            "file": name,
            "lines": log.lines,
            "engine": None if last is None else last.engine,
            "version": None if last is None else last.version,
            "starts_left_out": log.left_out or None,
            "starts": [
                start_document(start, opinion) for start, opinion in zip(log.starts, opinions, strict=True)
            ],
        }
    )


def start_document(start: Start, opinion: Opinion | str | None = None) -> dict[str, Any]:
    """Return one start as plain values."""
    pin = advise(start)
    memory = _plain(start.memory)
    memory.pop("name", None)
    return _known(
        {
            "engine": start.engine,
            "version": start.version,
            "model": start.model,
            "source": start.source or None,
            "line": start.line,
            "moment": start.moment,
            "ready": start.ready,
            **memory,
            "recurrent_bytes": start.recurrent_bytes,
            "host_bytes": start.host_bytes,
            "pinned_bytes": start.pinned_bytes,
            "kv_tokens": start.kv_tokens,
            "num_blocks": start.num_blocks,
            "profiled_blocks": start.profiled_blocks,
            "max_model_len": start.max_model_len,
            "fitted_from": start.fitted_from,
            "max_concurrency": start.max_concurrency,
            "expected_ranks": start.expected_ranks,
            "ranks": [_plain(rank) for rank in start.ranks] or None,
            "engines": [_plain(engine) for engine in start.engines] or None,
            "slots": None if start.slots is None else _plain(start.slots),
            "devices": [_plain(device) for device in start.devices] or None,
            "pin_line": pin.line,
            "pin_bytes": pin.pin_bytes,
            "pin_refusal": pin.refusal,
            "error": None if start.failure is None else start.failure.text,
            **_failure("error", start.failure),
            "later_error": None if start.later_failure is None else start.later_failure.text,
            **_failure("later_error", start.later_failure),
            "cost_model": _opinion(opinion),
        }
    )


def difference_document(old: str, new: str, difference: Difference) -> dict[str, Any]:
    """Return what moved as plain values."""
    return {
        "old": old,
        "new": new,
        "moved": [
            _known({"name": row.name, "old": row.old or None, "new": row.new or None, "change": row.change})
            for row in difference.rows
        ],
        "settings": [
            {"name": name, "old": before, "new": after} for name, before, after in difference.settings
        ],
        "meaning": list(difference.sentences),
    }


def _failure(name: str, failure: Failure | None) -> dict[str, Any]:
    if failure is None:
        return {}
    return {
        f"{name}_kind": failure.kind,
        f"{name}_line": failure.line,
        f"{name}_numbers": dict(failure.numbers) or None,
    }


def _opinion(opinion: Opinion | str | None) -> dict[str, Any] | None:
    if opinion is None:
        return None
    if isinstance(opinion, str):
        return {"reason": opinion}
    return _known({**opinion.numbers, "agrees": opinion.agrees, "text": list(opinion.sentences)})


def _plain(value: Any) -> dict[str, Any]:
    assert is_dataclass(value)  # noqa: S101 - every caller has one
    return _known(
        {field.name: getattr(value, field.name) for field in fields(value) if field.name not in _INTERNAL}
    )


def _known(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None and value != ""}
