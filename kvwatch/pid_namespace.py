"""What a PID namespace of kvwatch's own makes meaningless. Pure."""

from __future__ import annotations

from dataclasses import replace

from kvwatch.readings import NvmlReading, Outcome, ProcessTable, Reason, Source


def withhold(
    nvml: NvmlReading, table: ProcessTable, *, private: bool | None
) -> tuple[NvmlReading, ProcessTable]:
    """Withhold what a private PID namespace makes meaningless.

    There the driver leaves out processes that cannot be seen from it, or names them by numbers that mean
    something else (open-gpu-kernel-modules, os_find_ns_pid): an empty list proves nothing, nor does a match.
    """
    if not private:
        return nvml, table
    detail = "run kvwatch in the host's PID namespace (hostPID, docker --pid=host)"
    local = {*table.listeners, *(outcome.target for outcome in table.outcomes)}
    return (
        NvmlReading(
            devices=tuple(
                replace(device, processes=(), processes_reason=Reason.NAMESPACE) for device in nvml.devices
            ),
            outcomes=nvml.outcomes,
        ),
        ProcessTable(
            outcomes=tuple(
                Outcome(source=Source.PROCFS, target=name, reason=Reason.NAMESPACE, detail=detail)
                for name in sorted(local)
            )
        ),
    )
