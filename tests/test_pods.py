"""Names of pods: from a kubelet over HTTP or from a file, beside the polls and never in their way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvwatch.pod_list import read_pod_list
from kvwatch.readings import Reason, SourceError
from kvwatch.snapshot import Match, ProcessState
from kvwatch.sources.pods import Kubelet, PodNames
from kvwatch.sources.scrape import Scraper
from kvwatch.sources.threads import BlockingCalls
from tests.replay import Answer, replaying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kvwatch.snapshot import PodState

pytestmark = pytest.mark.anyio

ID, INIT = "3f" * 32, "4a" * 32
UID = "0f0b5a3c-2d4e-4f60-8a1b-9c2d3e4f5a6b"
PODS = {
    "kind": "PodList",
    "apiVersion": "v1",
    "items": [
        {
            "metadata": {"name": "chat-0", "namespace": "models", "uid": UID},
            "status": {
                "containerStatuses": [
                    {"name": "vllm", "containerID": f"containerd://{ID}"},
                    {"name": "starting"},
                ],
                "initContainerStatuses": [{"name": "fetch", "containerID": f"containerd://{INIT}"}],
            },
        },
        {"metadata": {"name": "pending", "namespace": "models", "uid": "b"}, "status": {}},
    ],
}
TEXT = json.dumps(PODS)


def on(container: str) -> ProcessState:
    """Return a process in a container."""
    return ProcessState(
        device="GPU-0",
        pid=1,
        used_bytes=1,
        name="vllm",
        server=None,
        match=Match.NONE,
        container=container,
    )


def test_a_list_of_pods() -> None:
    """Each container that has started, by its ID; one that has not has none."""
    found = read_pod_list(TEXT)
    assert {key: (pod.namespace, pod.pod, pod.name) for key, pod in found.items()} == {
        ID: ("models", "chat-0", "vllm"),
        INIT: ("models", "chat-0", "fetch"),
    }


def test_a_node_without_pods() -> None:
    """`items` is null there."""
    assert read_pod_list('{"kind": "PodList", "items": null}') == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"kind": "Pod"}', '{"kind": "PodList", "items": [7]}', "[" * 100_000]
)
def test_what_is_no_list_of_pods(text: str) -> None:
    """It gives a reason, and no name."""
    with pytest.raises(SourceError) as caught:
        read_pod_list(text)
    assert caught.value.reason is Reason.PARSE_ERROR


async def tried(origin: Kubelet | Path, again: Callable[[], Awaitable[None]] | None = None) -> PodNames:
    """Return the names after one attempt, and another after something has happened."""
    scraper = Scraper(max_bytes=1 << 20)
    names = PodNames(
        origin,
        pages=scraper,
        blocking=BlockingCalls("pods"),
        deadline_seconds=2,
        refresh_seconds=0,
        max_bytes=1 << 16,
    )
    try:
        for _ in range(1 if again is None else 2):
            names.refresh()
            await names.settled()
            if again is not None:
                await again()
                again = None
                names.refresh()
                await names.settled()
    finally:
        await names.close()
        await scraper.close()
    return names


def told(names: PodNames) -> tuple[Reason | None, tuple[PodState, ...]]:
    """Return how the last attempt went, and the names of one container."""
    (outcome,) = names.outcomes
    assert outcome.target == "pods"
    return outcome.reason, names.named([on(ID), on(ID), on("9" * 64)])


async def test_a_kubelet_is_asked(tmp_path: Path) -> None:
    """With its token; what it answers names the containers that hold devices, and no others."""
    token = tmp_path / "token"
    token.write_text("secret")
    async with replaying({"/pods": Answer(TEXT.encode())}) as kubelet:
        reason, pods = told(await tried(Kubelet(url=kubelet.url, bearer_token_file=token)))
    assert reason is None
    assert [(pod.namespace, pod.pod) for pod in pods] == [("models", "chat-0")]


async def test_names_stay_while_the_kubelet_is_away() -> None:
    """A container keeps its name; that newer ones have none is said."""
    async with replaying({"/pods": Answer(TEXT.encode())}) as kubelet:

        async def refuse() -> None:
            kubelet.pages["/pods"] = Answer(b"no", status=403)

        reason, pods = told(await tried(Kubelet(url=kubelet.url), refuse))
    assert reason is Reason.UNAUTHORIZED
    assert len(pods) == 1


@pytest.mark.parametrize(
    "content, reason",
    [
        pytest.param(TEXT, None, id="as kubectl writes it"),
        pytest.param("not JSON", Reason.PARSE_ERROR, id="garbage"),
        pytest.param(" " * (1 << 17), Reason.TOO_LARGE, id="huge"),
        pytest.param(None, Reason.NOT_FOUND, id="missing"),
    ],
)
async def test_a_file_is_read(tmp_path: Path, content: str | None, reason: Reason | None) -> None:
    """What cannot be read has a reason."""
    path = tmp_path / "pods.json"
    if content is not None:
        path.write_text(content)
    assert told(await tried(path))[0] is reason
