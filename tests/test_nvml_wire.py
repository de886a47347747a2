"""What may stand on the wire, and what of it is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.readings import DeviceReading, Outcome, Reason, SourceError
from kvwatch.sources.nvml_device import PID_LIMIT
from kvwatch.sources.nvml_reasons import REASONS, failure_of
from kvwatch.sources.nvml_wire import read_line

GIB = 1 << 30
MEMORY = {"version": 2, "total": 80 * GIB, "reserved": GIB, "free": 49 * GIB, "used": 30 * GIB}


def record(**changes: Any) -> dict[str, Any]:
    """Return a good record of one GPU with changes."""
    lists = {"compute": [[7, GIB]], "graphics": [], "mps": []}
    good = {"index": 0, "uuid": "GPU-1", "name": "L40S", "seconds": 0.01, "errors": {}}
    return {**good, "memory": MEMORY, "lists": lists, **changes}


def read(**changes: Any) -> tuple[DeviceReading, Outcome]:
    """Return what becomes of a record that has an identity."""
    gpu = read_line(json.dumps({"poll": 1, "device": record(**changes)}).encode()).gpu
    assert gpu is not None
    return gpu.devices[0], gpu.outcomes[0]


@pytest.mark.parametrize(
    "compute, detail",
    [
        pytest.param([[0, GIB]], "PID 0", id="no PID"),
        pytest.param([[PID_LIMIT + 1, GIB]], "PID 4194305", id="PID beyond the kernel's limit"),
        pytest.param([[7, 81 * GIB]], "PID 7 uses", id="more than the device has"),
        pytest.param([[7, GIB], [8, GIB], [7, None]], "PID 7 twice", id="PID twice in one list"),
    ],
)
def test_implausible_process_list(compute: list[list[int | None]], detail: str) -> None:
    """One impossible entry discredits all lists of the device, not its memory."""
    device, outcome = read(lists={"compute": compute, "graphics": [[9, GIB]], "mps": []})

    assert (device.processes, device.processes_reason) == ((), Reason.IMPLAUSIBLE)
    assert (device.used_bytes, device.memory_reason) == (30 * GIB, None)
    assert (outcome.reason, detail in outcome.detail) == (Reason.IMPLAUSIBLE, True)


def test_limits_are_plausible() -> None:
    """The highest PID and a process that holds the whole device are believed."""
    device, outcome = read(lists={"compute": [[PID_LIMIT, 80 * GIB]], "graphics": [], "mps": []})

    assert (len(device.processes), outcome.reason) == (1, None)


@pytest.mark.parametrize(
    "changes, plausible",
    [
        pytest.param({}, True, id="exact"),
        pytest.param({"free": 49 * GIB - (60 << 20)}, True, id="a rounding off"),
        pytest.param({"free": 40 * GIB}, False, id="nine GiB missing"),
        pytest.param({"used": 81 * GIB, "free": 0}, False, id="used more than total"),
        pytest.param({"total": 0, "free": 0, "used": 0, "reserved": 0}, False, id="no memory at all"),
        pytest.param(
            {"version": 1, "reserved": None, "used": 31 * GIB}, True, id="v1: used includes reserved"
        ),
        pytest.param({"used": 0, "free": 79 * GIB}, True, id="nothing used"),
    ],
)
def test_memory_adds_up(changes: dict[str, Any], *, plausible: bool) -> None:
    """Memory is believed where its parts make up the total; measured zero stays zero."""
    memory = {key: value for key, value in {**MEMORY, **changes}.items() if value is not None}
    device, outcome = read(memory=memory)

    assert device.memory_reason == outcome.reason == (None if plausible else Reason.IMPLAUSIBLE)
    assert device.used_bytes == (memory["used"] if plausible else None)


def test_both_parts_fail() -> None:
    """The outcome shows what can be repaired before what the device never had, and details both."""
    errors = {"memory": [3, "memory"], "compute": [15, "compute"]}
    device, outcome = read(memory=None, lists={"graphics": [], "mps": []}, errors=errors)

    assert (device.memory_reason, device.processes_reason) == (Reason.NOT_SUPPORTED, Reason.DEVICE_LOST)
    assert (outcome.reason, outcome.detail) == (Reason.DEVICE_LOST, "memory (3); compute (15)")


def test_unlisted_codes() -> None:
    """Every code that the table does not know is `unreachable`."""
    assert {failure_of([code, ""]).reason for code in range(1001) if code not in REASONS} == {
        Reason.UNREACHABLE
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    key=st.sampled_from(["index", "uuid", "name", "seconds", "errors", "memory", "lists", "instances"]),
    value=JSON,
)
def test_any_field_may_be_anything(key: str, value: Any) -> None:
    """A record with any value in any place is read or refused, by no other exception."""
    line = json.dumps({"poll": 1, "device": record(**{key: value})}).encode()
    try:
        refused = None if read_line(line).gpu else "no GPU"
    except SourceError as error:
        refused = error.reason
    assert refused in {None, Reason.PARSE_ERROR}


@given(st.binary(max_size=40))
def test_any_line_may_be_anything(line: bytes) -> None:
    """Bytes that are none of the child's lines are refused."""
    with pytest.raises(SourceError):
        read_line(line)
