"""The query API: what is sent, what is read, and what every refusal says to do."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from kvwatch.triage.prometheus_api import Access, PrometheusApi, PrometheusError, RangeQuery
from tests.triage.stub_api import Stub, stub_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Return a server that answers as told."""
    with stub_api() as made:
        yield made


def ask(stub: Stub, **access: object) -> PrometheusApi:
    """Send one range query."""
    with PrometheusApi(Access(url=stub.url, **access)) as api:  # type: ignore[arg-type]
        api.ranges([RangeQuery(expression='up{a="b"}', start=60, end=120.5, step_seconds=60)])
    return api


def refusal(stub: Stub, **access: object) -> str:
    """Return what the API's refusal says."""
    with pytest.raises(PrometheusError) as error:
        ask(stub, **access)
    return str(error.value)


def test_a_range_query_is_sent_as_every_api_reads_it(stub: Stub) -> None:
    """Whole seconds are sent as such, others to the millisecond."""
    ask(stub)
    assert stub.paths == ["/api/v1/query_range"]
    assert stub.queries == [{"query": 'up{a="b"}', "start": "60", "end": "120.500", "step": "60"}]


def test_tenant_and_token_are_sent_and_the_token_is_never_told(stub: Stub, tmp_path: Path) -> None:
    """Headers and the file's token travel; a refusal does not repeat the token."""
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    stub.status, stub.body = 401, b"no"
    text = refusal(stub, bearer_token_file=token, headers={"X-Scope-OrgID": "team-a"})
    assert stub.sent[0]["authorization"] == "Bearer s3cret"
    assert stub.sent[0]["x-scope-orgid"] == "team-a"
    assert "s3cret" not in text
    assert "X-Scope-OrgID" in text


def test_basic_auth_comes_from_a_file(stub: Stub, tmp_path: Path) -> None:
    """One line, user:password; anything else is refused without showing it."""
    file = tmp_path / "auth"
    file.write_text("me:pass word\n")
    ask(stub, basic_auth_file=file)
    assert stub.sent[0]["authorization"] == "Basic " + base64.b64encode(b"me:pass word").decode()
    file.write_text("just-a-token")
    assert refusal(stub, basic_auth_file=file) == f"{file} does not hold one line user:password"
    assert str(tmp_path / "none") in refusal(stub, bearer_token_file=tmp_path / "none")


@pytest.mark.parametrize(
    "status, body, expected",
    [
        (401, b"Unauthorized", "--prometheus-bearer-token-file"),
        (403, b"", "--prometheus-bearer-token-file"),
        (404, b"404 page not found", "/select/0/prometheus"),
        (422, b'{"status":"error","error":"too many points"}', "too many points"),
        (400, b'{"status":"error","error":"exceeded maximum resolution"}', "a shorter span"),
        (429, b"", "try again"),
        (503, b"", "starting, overloaded"),
        (302, b"", "a login perhaps"),
        (500, b"<html>oops", "see its log"),
        (200, b"<html>login</html>", "is this the address of Prometheus itself"),
        (200, b'{"status":"error","error":"boom"}', "boom"),
        (200, b'{"status":"success","data":{"resultType":"scalar","result":[0,"1"]}}', "no series"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[{"x":1}]}}', "not as Prometheus"),
        (200, b"[" * 100_000, "not JSON"),
    ],
)
def test_a_refusal_names_the_url_and_the_way_out(stub: Stub, status: int, body: bytes, expected: str) -> None:
    """Each refusal says where it was asked and what to do."""
    stub.status, stub.body = status, body
    text = refusal(stub)
    assert f"{stub.url}/api/v1/query_range" in text
    assert expected in text


def test_an_answer_that_does_not_end_or_is_too_long_is_given_up(stub: Stub) -> None:
    """The deadline is over the whole answer, and so is the cap on its bytes."""
    stub.pause_seconds = 1.0
    assert "--prometheus-timeout" in refusal(stub, timeout_seconds=0.2)
    stub.pause_seconds = 0.0
    stub.body = b" " * 3_000_000
    assert "more than 1 MiB" in refusal(stub, max_bytes=1 << 20)


def test_nobody_there_is_told_with_the_address() -> None:
    """A closed port is an error, not an empty answer."""
    with pytest.raises(PrometheusError, match=r"cannot reach http://127\.0\.0\.1:1/api"):
        ask(Stub(url="http://127.0.0.1:1"))


def test_partial_answers_are_told(stub: Stub) -> None:
    """Thanos warns, a VictoriaMetrics cluster marks the answer; each is told once."""
    stub.answer(
        {
            "status": "success",
            "isPartial": True,
            "warnings": ["no store matched"],
            "data": {"resultType": "matrix", "result": []},
        }
    )
    api = ask(stub)
    assert api.warnings == ["no store matched", "the answer is partial: a storage node did not respond"]


def test_values_that_are_no_numbers_are_no_samples(stub: Stub) -> None:
    """NaN and infinities are left out; the name is taken from the labels."""
    stub.body = json.dumps(
        {
            "status": "success",
            "data": {
                "resultType": "matrix",
                "result": [
                    {"metric": {"__name__": "a", "b": "c"}, "values": [[1, "NaN"], [2, "3.5"], [3, "+Inf"]]}
                ],
            },
        }
    ).encode()
    with PrometheusApi(Access(url=stub.url)) as api:
        ((one,),) = api.ranges([RangeQuery(expression="a", start=0, end=3, step_seconds=1)])
    assert (one.name, one.labels, one.samples) == ("a", {"b": "c"}, [(2.0, 3.5)])
