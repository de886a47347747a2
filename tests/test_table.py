"""The text that `kvwatch once` shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.readings import Reason, Source
from kvwatch.snapshot import Basis, Match, PodState, Snapshot, SourceState
from kvwatch.table import render_table
from tests.snapshots import known, rank_state, source, unknown


def with_first(snapshot: Snapshot, **changes: object) -> Snapshot:
    """Return the snapshot with its first server alone, changed."""
    first = replace(snapshot.servers[0], **changes)  # type: ignore[arg-type]
    return replace(snapshot, servers=(first,))


def test_everything_known() -> None:
    """A person sees each rank's fits, where the memory is, and what is not known."""
    snapshot = with_first(known(), ranks=(rank_state(),))
    assert render_table(snapshot) == (
        "Full-length requests by server\n"
        "  SERVER  ENGINE  FULL LENGTH  POOL USED  RUN  WAIT  FITS NOW  GUARANTEED  EMPTY  HELD  HEADROOM\n"
        "  chat    vllm          1,024        50%    2     2         1           0      3     3        -1\n"
        "\n"
        "Findings\n"
        "  critical  waiting_pool_full: chat has 2 requests waiting: its pool is full, 96% of it used\n"
        "            Send load elsewhere or add a replica.\n"
        "\n"
        "Device 0  Card  GPU-0  1,000 MiB in all\n"
        "  chat  kv cache             500 MiB  ####################\n"
        "  chat  weights and working  200 MiB  ########\n"
        "        other                  0 MiB\n"
        "        unattributed         100 MiB  ####\n"
        "        reserved              20 MiB  #\n"
        "        free                 180 MiB  #######\n"
        "\n"
        "Processes on the devices\n"
        "  DEVICE  PID  NAME             SERVER  MATCH  MEMORY   CONTAINER  UNIT\n"
        "       0   42  VLLM::EngineCor  chat    tree   700 MiB\n"
        "\n"
        "Not known\n"
        "  model  chat  unknown_architecture  FooForCausalLM\n"
    )


def test_nothing_known() -> None:
    """A question mark stands for each unknown figure, and no zero does."""
    text = render_table(unknown())
    row = next(line for line in text.splitlines() if line.startswith("  chat"))
    assert row.split() == ["chat", "llamacpp"] + ["?"] * 9
    assert "Device 0  ?  GPU-0  ? in all\n  ? (not_supported)\n" in text
    assert "  engine  gone  unreachable  refused\n" in text
    assert "0 MiB" not in text


def test_a_divided_gpu_has_no_memory_of_its_own() -> None:
    """Its instances' lines follow; no question mark suggests that something failed."""
    snapshot = unknown()
    (device,) = snapshot.devices
    divided = replace(device, reading=replace(device.reading, divided=True))
    text = render_table(replace(snapshot, devices=(divided,)))
    assert "Device 0  ?  GPU-0  divided by MIG into what follows\n" in text
    assert "not_supported" not in text


def test_a_process_is_told_with_its_place() -> None:
    """Its pod where that is known, else its container; its service; and that its server is gone."""
    (process,) = known().processes
    box = "3f" * 32
    pod = PodState(container=box, pod_uid="u", pod="chat-0", namespace="models", name="vllm")
    processes = (
        replace(process, orphan=True, match=Match.NONE, unit="vllm.service"),
        replace(process, pid=43, container=box),
        replace(process, pid=44, container="4a" * 32, used_bytes=None, name=None),
    )
    text = render_table(replace(known(), processes=processes, pods=(pod,)))
    rows = [line.split() for line in text.splitlines() if line[10:13].strip() in ("42", "43", "44")]
    assert rows == [
        ["0", "42", "VLLM::EngineCor", "chat", "orphan", "700", "MiB", "vllm.service"],
        ["0", "43", "VLLM::EngineCor", "chat", "tree", "700", "MiB", "models/chat-0/vllm"],
        ["0", "44", "?", "chat", "tree", "?", "4a4a4a4a4a4a"],
    ]


def test_ranks_have_rows_of_their_own() -> None:
    """Floors are taken for each rank, so each is shown."""
    text = render_table(known())
    assert "  chat/0 " in text
    assert "  chat/1 " in text


@pytest.mark.parametrize(
    "snapshot, note",
    [
        (
            with_first(known(), ranks=(replace(rank_state(), basis=Basis.ADMISSION),)),
            "chat: only the engine's start-up charge is known; fits are lower bounds",
        ),
        (
            with_first(known(), reading=replace(known().servers[0].reading, sleeping=True)),  # type: ignore[type-var]
            "chat sleeps: nothing fits until it wakes",
        ),
    ],
    ids=["admission", "asleep"],
)
def test_a_note_says_what_a_row_cannot(snapshot: Snapshot, note: str) -> None:
    """Where a number needs a word, it has one."""
    assert note in render_table(snapshot)
    assert note not in render_table(known())


def test_what_is_merely_not_configured_is_no_problem() -> None:
    """The last paragraph is there only when something is wrong."""
    snapshot = replace(known(), sources=(source(Source.MODEL, "chat", Reason.NOT_ENABLED),))
    assert "Not known" not in render_table(snapshot)


@pytest.mark.parametrize("detail", ["two\nlines", "\x1b[2J", "\x9b2J", "\r", "\u2028"])
def test_foreign_text_stays_in_its_line_and_commands_no_terminal(detail: str) -> None:
    """A server or a model file may have written the detail."""
    snapshot = replace(known(), sources=(source(Source.ENGINE, "chat", Reason.PARSE_ERROR, detail),))
    last = render_table(snapshot).removesuffix("\n").split("\n")[-1]
    assert last.isprintable()
    assert last.startswith("  engine  chat  parse_error  ")


def test_before_anything_is_watched() -> None:
    """Without a server the table says what was looked for, and what to do."""
    empty = replace(known(), servers=(), devices=(), processes=(), sources=())
    assert render_table(empty).splitlines()[:2] == ["No server", "  none is named, and discovery is off"]
    looked = SourceState(
        source=Source.PROCFS,
        target="discovery",
        reason=None,
        detail="looked at 80 processes",
        duration_seconds=0.1,
        last_success_at=1.0,
        failures={},
    )
    lines = render_table(replace(empty, sources=(looked,))).splitlines()
    assert lines[1] == "  looked at 80 processes"
    assert "--server http://HOST:PORT" in lines[2]


def test_a_server_that_was_found_says_so() -> None:
    """Nobody wonders where its name comes from."""
    snapshot = known()
    target = replace(snapshot.servers[0].target, discovered=True, pid=42)
    text = render_table(replace(snapshot, servers=(replace(snapshot.servers[0], target=target),)))
    assert "chat was found by itself: process 42" in text
