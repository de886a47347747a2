"""Container, pod and unit from /proc/PID/cgroup, as runtimes and kubelets write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.sources.cgroups import NOWHERE, Placement, parse_cgroup, read_placement

ID = "3f2a9c0d41be" + "5" * 52
INNER = "abcdef012345" + "6" * 52
POD = "0f0b5a3c-2d4e-4f60-8a1b-9c2d3e4f5a6b"
POD_ = POD.replace("-", "_")

# Situation -> the file, (container, pod, unit).
CASES: dict[str, tuple[str, tuple[str | None, str | None, str | None]]] = {
    "version 2, docker, systemd driver": (f"0::/system.slice/docker-{ID}.scope\n", (ID, None, None)),
    "version 2, docker, cgroupfs driver": (f"0::/docker/{ID}\n", (ID, None, None)),
    "version 2, kubelet, systemd driver, containerd": (
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_}.slice"
            f"/cri-containerd-{ID}.scope\n"
        ),
        (ID, POD, None),
    ),
    "version 2, kubelet, cgroupfs driver": (f"0::/kubepods/besteffort/pod{POD}/{ID}\n", (ID, POD, None)),
    "version 2, CRI-O": (
        f"0::/kubepods.slice/kubepods-pod{POD_}.slice/crio-{ID}.scope/container\n",
        (ID, POD, None),
    ),
    "a kubelet with a root of its own": (
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{POD_}.slice/cri-containerd-{ID}.scope\n",
        (ID, POD, None),
    ),
    "a static pod, whose UID has no dashes": (
        f"0::/kubepods/burstable/pod{'a1' * 16}/{ID}\n",
        (ID, "a1" * 16, None),
    ),
    "podman, rootful": (f"0::/machine.slice/libpod-{ID}.scope/container\n", (ID, None, None)),
    "podman, rootless": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container\n",
        (ID, None, None),
    ),
    "podman's monitor is not the container": (
        f"0::/machine.slice/libpod-conmon-{ID}.scope\n",
        (None, None, None),
    ),
    "podman by Quadlet: the service is the container's": (
        f"0::/system.slice/vllm.service/libpod-payload-{ID}\n",
        (ID, None, "vllm.service"),
    ),
    "version 1, docker": (
        f"12:memory:/docker/{ID}\n5:cpu,cpuacct:/docker/{ID}\n1:name=systemd:/docker/{ID}\n",
        (ID, None, None),
    ),
    "hybrid: version 2's own path is containerd's": (
        f"1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service\n",
        (ID, None, None),
    ),
    "kind: a pod within a node that is a container": (
        f"0::/docker/{ID}/kubelet/kubepods/pod{POD}/{INNER}\n",
        (INNER, POD, None),
    ),
    "containerd under the wrong driver": (
        f"0::/system.slice/kubepods-pod{POD_}.slice:cri-containerd:{ID}\n",
        (ID, POD, None),
    ),
    "a system service": ("0::/system.slice/vllm.service\n", (None, None, "vllm.service")),
    "an instance of a template": (
        "0::/system.slice/system-vllm.slice/vllm@chat.service\n",
        (None, None, "vllm@chat.service"),
    ),
    "a user's service": (
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/llama.service\n",
        (None, None, "llama.service"),
    ),
    "a login is no service": (
        "0::/user.slice/user-1000.slice/session-4.scope\n",
        (None, None, None),
    ),
    "a user's manager tells nothing": (
        "0::/user.slice/user-1000.slice/user@1000.service/init.scope\n",
        (None, None, None),
    ),
    "a cgroup namespace of its own": ("0::/\n", (None, None, None)),
    "another cgroup namespace": (f"0::/../../docker-{ID}.scope\n", (ID, None, None)),
    "another cgroup namespace, cut off": ("0::/../..\n", (None, None, None)),
    "LXC": ("0::/lxc.payload.web/system.slice/vllm.service\n", (None, None, "vllm.service")),
    "a group that was deleted": (f"0::/docker/{ID} (deleted)\n", (ID, None, None)),
    "63 digits are no ID": (f"0::/docker/{ID[:-1]}\n", (None, None, None)),
    "nothing": ("", (None, None, None)),
    "garbage": ("\x00\xff::::\n::\n", (None, None, None)),
}


@pytest.mark.parametrize("situation", CASES)
def test_where_a_process_runs(situation: str) -> None:
    """Container, pod and unit are as the path says; what it does not say is not known."""
    text, expected = CASES[situation]
    found = parse_cgroup(text)
    assert (found.container, found.pod_uid, found.unit) == expected
    assert (found.group is None) is (found.container is None and found.unit is None)


def test_two_containers_of_a_pod_are_two_groups() -> None:
    """What shares a pod does not share a container."""
    first, second = (parse_cgroup(f"0::/kubepods/pod{POD}/{one}\n") for one in (ID, INNER))
    assert first.pod_uid == second.pod_uid
    assert first.group != second.group


def test_this_process_can_be_read() -> None:
    """The real file gives a placement, and one that is gone gives none."""
    assert isinstance(read_placement(Path("/proc"), 1), Placement)
    assert read_placement(Path("/proc"), 4_194_303) == NOWHERE
