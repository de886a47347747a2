"""Which container, pod and systemd unit a process is in, from /proc/PID/cgroup. The root is injected.

Formats: cgroups(7), proc(5); the names that docker, containerd, CRI-O, podman and the kubelet give with their
systemd and cgroupfs drivers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`, `crio-ID`, `libpod-payload-ID`; an ID has 64 hex digits.
_CONTAINER = re.compile(r"(?P<runtime>(?:[a-z0-9_.]+-)*)(?P<id>[0-9a-f]{64})(?:\.scope)?")
_MONITORS = ("conmon-",)
_SHARED_WITH_UNIT = "libpod-payload-"

# `podUID`, `kubepods-burstable-podUID.slice` under any kubelet root; a static pod's UID has no separators.
_POD = re.compile(
    r"(?:.*-)?pod(?P<uid>[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?"
)
# The manager of a user's own units: all that a user runs is below it, so it tells nothing.
_USER_MANAGER = re.compile(r"user@\d+\.service")
_DELETED = " (deleted)"
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a process runs; None where it is in none of that kind, or where that cannot be seen."""

    container: str | None = None
    """64 hex digits, of the innermost container."""
    pod_uid: str | None = None
    """With dashes, as in Kubernetes' metadata.uid; a static pod's has none."""
    unit: str | None = None
    """Name of the systemd service, such as `vllm.service`; slices and scopes are no services."""
    group: str | None = None
    """Path of that container or service: two processes with one path are in the same."""


NOWHERE = Placement()


def read_placement(root: Path, pid: int) -> Placement:
    """Read where a process runs; nothing is known of one that is gone or hidden."""
    try:
        with open(f"{root}/{pid}/cgroup", "rb", buffering=0) as file:  # noqa: PTH123 - read for many processes
            return parse_cgroup(file.read(_MAX_BYTES).decode(errors="replace"))
    except OSError:
        return NOWHERE


def parse_cgroup(text: str) -> Placement:
    """Read the lines of one /proc/PID/cgroup: one for each hierarchy of version 1, `0::PATH` for version 2.

    The hierarchies of one process may disagree: on a hybrid machine docker's cgroupfs driver leaves a
    container in containerd's own group of version 2. So the container is the first that any line names,
    systemd's own hierarchy asked first, and the service comes from that same line.
    """
    places = [_place(path) for path in _paths(text)]
    for place in places:
        if place.container is not None:
            pod_uid = place.pod_uid or next((other.pod_uid for other in places if other.pod_uid), None)
            return Placement(container=place.container, pod_uid=pod_uid, unit=place.unit, group=place.group)
    return places[0] if places else NOWHERE


def _paths(text: str) -> Iterator[str]:
    """Yield the paths: of systemd's hierarchy, of version 2, then of the others as they stand."""
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") > 1]
    order = {"name=systemd": 0, "": 1}
    for _, _, path in sorted(lines, key=lambda line: order.get(line[1], 2)):
        yield path.removesuffix(_DELETED)


def _place(path: str) -> Placement:
    """Read one path.

    Of nested containers the innermost counts: a pod of kind runs in a node that is a container itself. Seen
    from another cgroup namespace a path may begin with `/../..`, and one that ends there says nothing.
    """
    container = pod_uid = unit = group = None
    shared_unit: str | None = None
    parts = path.split("/")
    for depth, part in enumerate(parts, 1):
        # `SLICE:cri-containerd:ID` is what containerd writes under the wrong driver.
        names = part.split(":")
        for name in names:
            pod = _POD.fullmatch(name)
            if pod is not None:
                pod_uid = pod["uid"].replace("_", "-")
        found = _CONTAINER.fullmatch(names[-1])
        if found is not None and not found["runtime"].endswith(_MONITORS):
            container, group = found["id"], "/".join(parts[:depth])
            # Of a service around a container only podman's own (Quadlet) is the container's.
            shared_unit = unit if found["runtime"] == _SHARED_WITH_UNIT else None
            unit = None
        elif part.endswith(".service") and not _USER_MANAGER.fullmatch(part):
            unit, group, shared_unit = part, "/".join(parts[:depth]), None
    return Placement(container=container, pod_uid=pod_uid, unit=unit or shared_unit, group=group)
