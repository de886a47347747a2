"""Rules about what cannot be read, or cannot be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.findings.rule import NO_ANSWER, Condition, Evidence, Unknown, Verdict
from kvwatch.findings.words import listed
from kvwatch.readings import Reason, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.snapshot import SourceState

_STATES = (Reason.NOT_ENABLED, Reason.SLEEPING, Reason.LOADING, Reason.NOT_SUPPORTED)
"""What something is, and no fault of it."""
_MODEL_ERROR = 0.01
_DRIVER = "driver"


def model_disagrees(evidence: Evidence) -> Iterator[Verdict]:
    """Find servers for which the cost model and the engine charge a full-length request differently."""
    for server in evidence.snapshot.servers:
        error = server.model_error_ratio
        if error is not None and abs(error) > _MODEL_ERROR:
            name = server.target.name
            yield Condition(
                server=name,
                summary=f"the cost model charges {name} {error:+.0%} of what the engine does",
                detail="Nothing is felt; bytes and fits that rest on the model are left out.",
                next_step=(
                    "Check that model_config is the model that is served, with its tensor_parallel and "
                    "max_num_batched_tokens; report the architecture if it is."
                ),
            )


def engine_metric_missing(evidence: Evidence) -> Iterator[Verdict]:
    """Find servers whose pages lack series that their version should have."""
    for server in evidence.snapshot.servers:
        name = server.target.name
        if server.reading is None:
            yield Unknown(server=name, why=NO_ANSWER)
        elif server.reading.missing:
            missing = server.reading.missing
            rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""  # noqa: PLR2004 - a sentence
            yield Condition(
                server=name,
                summary=f"{name} lacks {len(missing)} series: {', '.join(missing[:3])}{rest}",
                detail="Nothing is felt; the figures that need them are left out.",
                next_step=(
                    "Look at /debug/target of the server: a key may be missing (bearer_token_file), "
                    "statistics may be off, or the engine is newer than kvwatch."
                ),
            )


def source_down(evidence: Evidence) -> Iterator[Verdict]:
    """Find sources that give no answer: what depends on them is unknown, not fine."""
    servers = {server.target.name for server in evidence.snapshot.servers}
    devices = {device.reading.uuid for device in evidence.snapshot.devices}
    down: dict[tuple[str, str], list[SourceState]] = {}
    for source in evidence.snapshot.sources:
        if source.reason is None or source.reason in _STATES or _no_driver_wanted(evidence, source):
            continue
        server = source.target if source.target in servers else ""
        # A device that is lost is not among the devices any more.
        is_device = source.target in devices or (source.source is Source.NVML and source.target != _DRIVER)
        device = source.target if is_device and not server else ""
        down.setdefault((server, device), []).append(source)
    for (server, device), sources in down.items():
        first = sources[0]
        what = listed([f"{source.source} ({source.reason})" for source in sources])
        yield Condition(
            server=server,
            device=device,
            summary=f"{first.target} cannot be read: {what}",
            detail=(
                "Users may be failing, or only kvwatch: what depends on it is unknown."
                if any(source.source is Source.ENGINE for source in sources)
                else "Nothing is felt by itself; what depends on it is left out."
            ),
            next_step=_fix(first),
        )


def _no_driver_wanted(evidence: Evidence, source: SourceState) -> bool:
    return source.reason is Reason.LIBRARY_NOT_FOUND and not evidence.driver_needed


def _fix(source: SourceState) -> str:
    # Of a traceback the last line says what; a page's own words may be anything.
    lines = [line.strip() for line in source.detail.splitlines() if line.strip()]
    told = f": {lines[-1][:200].rstrip('.')}" if lines else ""
    return f"Look up {source.reason} in docs/runbooks/KvwatchSourceDown.md{told}."
