"""A snapshot and a visit as JSON."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

from kvwatch import __version__
from kvwatch.document import snapshot_document, visit_document
from kvwatch.engines import ADAPTERS
from kvwatch.readings import Outcome, Page, Reason, Source
from kvwatch.snapshot import Snapshot
from kvwatch.visit import Visit
from tests.snapshots import engine_reading, known, unknown


def test_a_snapshot_is_plain_json() -> None:
    """It can be written without a special encoder, without NaN, and read back as it was."""
    for snapshot in (known(), unknown()):
        document = snapshot_document(snapshot)
        assert json.loads(json.dumps(document, allow_nan=False)) == document
        assert document.keys() == {field.name for field in fields(Snapshot)} | {"version"}
        assert document["version"] == __version__


def test_unknown_is_null_and_zero_is_zero() -> None:
    """A reader can tell them apart."""
    full = snapshot_document(known())["servers"][0]["ranks"][0]["full"]
    assert (full["guaranteed"], full["headroom"], full["bound_by"]) == (0, -1, "queue")
    empty = snapshot_document(unknown())
    assert set(empty["servers"][0]["ranks"][0]["full"].values()) == {None}
    assert empty["servers"][0]["device_bytes"] == {"GPU-0": None}
    assert empty["devices"][0]["reading"]["memory_reason"] == "not_supported"
    assert empty["devices"][0]["reading"]["total_bytes"] is None


def test_suspicions_are_a_list_by_server_and_rank() -> None:
    """Pairs are no keys of JSON."""
    assert snapshot_document(known())["recompute_suspected"] == [
        {"server": "chat", "rank": "0", "requests": 6},
        {"server": "chat", "rank": "1", "requests": 0},
    ]


def test_where_secrets_lie_is_not_told() -> None:
    """Neither the path of a token nor that of a certificate."""
    snapshot = known()
    chat = snapshot.servers[0]
    target = replace(
        chat.target,
        bearer_token_file=Path("/run/token"),
        ca_file=Path("/run/ca"),
        model_config=Path("/models/chat"),
    )
    document = snapshot_document(replace(snapshot, servers=(replace(chat, target=target),)))
    text = json.dumps(document)
    assert "/run/" not in text
    assert document["servers"][0]["target"]["model_config"] == "/models/chat"


def outcome(reason: Reason | None) -> Outcome:
    """Return a visit's outcome."""
    return Outcome(source=Source.ENGINE, target="chat", reason=reason, detail="why", duration_seconds=0.5)


def test_a_visit_tells_how_a_server_was_read_and_no_bodies() -> None:
    """/slots of older builds holds what users wrote."""
    visit = Visit(
        pages=(
            Page(path="/metrics", body="what a user wrote", status=200, duration_seconds=0.1),
            Page(path="/version", body=None, reason=Reason.TIMEOUT, detail="0.5 s"),
        ),
        adapter=ADAPTERS["vllm"],
        reading=engine_reading(),
        outcome=outcome(None),
    )
    document = visit_document(visit)
    assert "wrote" not in json.dumps(document, allow_nan=False)
    assert (document["engine"], document["outcome"]["reason"]) == ("vllm", None)
    assert document["reading"]["ranks"][0]["waiting"] == {"capacity": 2, "deferred": 0}
    first, second = document["pages"]
    assert (first["path"], first["status"], first["characters"]) == ("/metrics", 200, 17)
    assert (second["reason"], second["characters"]) == ("timeout", None)


def test_a_visit_that_found_nobody() -> None:
    """No engine, no reading, and why."""
    document = visit_document(
        Visit(pages=(), adapter=None, reading=None, outcome=outcome(Reason.UNREACHABLE))
    )
    assert (document["engine"], document["reading"], document["pages"]) == (None, None, [])
    assert document["outcome"]["reason"] == "unreachable"
