"""The containers of a Kubernetes PodList, as a kubelet's /pods gives it. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvwatch.readings import Reason, SourceError
from kvwatch.snapshot import PodState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ID_LENGTH = 64
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def read_pod_list(text: str) -> dict[str, PodState]:
    """Return the containers by ID; raise SourceError (parse_error) where it is no PodList.

    A container that has not started has no ID, and is left out (core/v1, ContainerStatus).
    """
    try:
        document = json.loads(text)
        if document["kind"] not in ("PodList", "List"):
            raise SourceError(Reason.PARSE_ERROR, f"the kind is {document['kind']!r}, not PodList")
        pods = document["items"] or ()  # null where the node has none
        return {found.container: found for pod in pods for found in _containers(pod)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        detail = f"this is not a list of pods: {type(error).__name__}: {error}"
        raise SourceError(Reason.PARSE_ERROR, detail[:200]) from None


def _containers(pod: Mapping[str, Any]) -> Iterator[PodState]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    for kind in _STATUSES:
        for container in status.get(kind) or ():
            _, _, identifier = (container.get("containerID") or "").rpartition("://")
            if len(identifier) == _ID_LENGTH:
                yield PodState(
                    container=identifier,
                    pod_uid=str(metadata["uid"]),
                    pod=str(metadata["name"]),
                    namespace=str(metadata["namespace"]),
                    name=str(container["name"]),
                )
