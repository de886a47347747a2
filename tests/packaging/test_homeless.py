"""A user without a home and without a name, as a service's dynamic user or a container's number may be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason, SourceError
from kvwatch.sources.model_path import find_model, served_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY_S_NUMBER = 54_321


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the real user be one that no user database knows, with no variable that says where its home is."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else for a moment")
    for name in ("HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    before = os.getuid()
    os.setresuid(NOBODY_S_NUMBER, -1, -1)
    yield
    os.setresuid(before, -1, -1)


@pytest.mark.usefixtures("homeless")
def test_a_served_model_is_not_seen_rather_than_a_crash() -> None:
    """No cache can be looked into: the model's files are not seen, and the poll goes on."""
    assert served_folder("org/model", [os.getpid()]) is None


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("name", ["org/model", "~/model", "~nobody-of-this-name/model"])
def test_a_named_model_is_not_found_rather_than_a_crash(name: str) -> None:
    """`kvwatch cost` and `kvwatch log` say that a model is not there."""
    with pytest.raises(SourceError) as caught:
        find_model(name)
    assert caught.value.reason is Reason.NOT_FOUND
