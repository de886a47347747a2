"""Requests to leave a rule out: what they hold for, and when they are wrong themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.check.declaration import Declaration, DeclaredServer, Ignore, Place
from kvwatch.check.rules import check
from tests.check.fleet import A40, server


def judged(*ignores: Ignore) -> dict[str, str | None]:
    """Return the rules found for two unpinned servers, with the reason where one is ignored."""
    first = server("a", "vllm serve m --gpu-memory-utilization 0.5")
    second = server("b", "vllm serve m --gpu-memory-utilization 0.4")
    declaration = Declaration(servers=(first, replace(second, ignores=ignores)), cards=(A40,))
    return {finding.rule: finding.ignored for finding in check(declaration)}


def ignore(rule: str, reason: str = "they start in order") -> Ignore:
    """Return a request."""
    return Ignore(rule=rule, reason=reason, place=Place(file="fleet.yaml", line=4))


@pytest.mark.parametrize("rule", ["unpinned-neighbours", "unpinned-*"])
def test_a_request_with_a_reason_holds_for_a_finding_that_names_its_server(rule: str) -> None:
    """By id or by pattern, on either of the servers of a card."""
    found = judged(ignore(rule))
    assert found["unpinned-neighbours"] == "they start in order"
    assert found["unknown-model"] is None
    assert not found.keys() & {"ignore-unused", "ignore-without-reason"}


def test_a_request_without_a_reason_does_not_hold() -> None:
    """The finding counts, and so does the missing reason."""
    found = judged(ignore("unpinned-neighbours", " "))
    assert found["unpinned-neighbours"] is None
    assert "ignore-without-reason" in found


def test_a_request_for_another_server_does_not_hold() -> None:
    """A finding of one server is not left out by a request near another."""
    first = server("a", "vllm serve m --gpu-memory-utilization 0.5 --max-model-ln 4")
    second: DeclaredServer = replace(
        server("b", "vllm serve m --kv-cache-memory-bytes 1G --gpu-memory-utilization 0.1"),
        ignores=(ignore("flag-unknown"),),
    )
    found = {one.rule: one.ignored for one in check(Declaration(servers=(first, second), cards=(A40,)))}
    assert found["flag-unknown"] is None
    assert "ignore-unused" in found


def test_a_request_that_holds_for_nothing_is_a_note() -> None:
    """It may hide a later finding; a name that is no rule is told with the nearest one."""
    assert "ignore-unused" in judged(ignore("length-over-model"))
    first = replace(server("a", "vllm serve m"), ignores=(ignore("shares-over-limits"),))
    [note] = [
        one for one in check(Declaration(servers=(first,), cards=(A40,))) if one.rule == "ignore-unused"
    ]
    assert "no such rule. Did you mean shares-over-limit?" in note.message
    assert (note.place.line, note.servers) == (4, ("a",))


def test_one_comment_near_two_servers_is_used_once() -> None:
    """The same request on both servers is no unused one."""
    request = ignore("unpinned-neighbours")
    servers = tuple(
        replace(server(name, "vllm serve m --gpu-memory-utilization 0.4"), ignores=(request,))
        for name in ("a", "b")
    )
    found = [one.rule for one in check(Declaration(servers=servers, cards=(A40,)))]
    assert "ignore-unused" not in found
