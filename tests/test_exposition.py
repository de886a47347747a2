"""The exposition: a snapshot as families, rendered once for every scraper."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from kvwatch import metrics
from kvwatch.exposition import Exposition, ReloadState, SnapshotCollector
from kvwatch.families import Families
from kvwatch.readings import SumCount
from tests.daemon import parse, value
from tests.snapshots import known, unknown

if TYPE_CHECKING:
    from kvwatch.snapshot import Snapshot


@dataclass
class World:
    """What a collector sees, and the exposition over it."""

    snapshot: Snapshot | None = field(default_factory=known)
    reload_state: ReloadState = field(default_factory=lambda: ReloadState(successful=True, succeeded_at=1.0))
    now: float = 51.0

    def __post_init__(self) -> None:
        collector = SnapshotCollector(
            current=lambda: self.snapshot,
            reload_state=lambda: self.reload_state,
            clock=lambda: self.now,
        )
        self.collector = collector
        self.exposition = Exposition(collector, clock=lambda: self.now)

    def render(self, *, openmetrics: bool = False, names: tuple[str, ...] = ()) -> str:
        """Return the text."""
        return self.exposition.render(openmetrics=openmetrics, compressed=False, names=names)[0].decode()


# Families


def samples(families: Families) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return what was added."""
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in families.used()
    }


def test_unknown_is_absent_and_zero_is_present() -> None:
    """The rule above all others."""
    families = Families("15 min")
    families.add(metrics.FIT_NOW, ("chat", "0"), None)
    families.add(metrics.FIT_NOW, ("chat", "1"), 0)
    families.add(metrics.FIT_GUARANTEED, ("chat", "0"), None)
    families.add(metrics.QUEUE_SECONDS, ("chat", "0"), None)
    assert samples(families) == {
        "kvwatch_full_length_requests_fit_now": [({"server": "chat", "rank": "1"}, 0)]
    }


def test_an_unknown_label_is_empty() -> None:
    """The series stays, what identifies it less is said less."""
    families = Families("15 min")
    families.add(metrics.DEVICE_INFO, ("GPU-0", "0", None, None, None), 1)
    ((labels, _),) = samples(families)["kvwatch_device_info"]
    assert labels == {"device": "GPU-0", "index": "0", "name": "", "driver": "", "parent": ""}


def test_a_series_is_there_once() -> None:
    """The library would write both, and Prometheus refuse the whole page."""
    families = Families("15 min")
    families.add(metrics.FIT_NOW, ("chat", "0"), 1)
    families.add(metrics.FIT_NOW, ("chat", ""), 1)
    for labels in (("chat", "0"), ("chat", None)):
        with pytest.raises(ValueError, match="twice"):
            families.add(metrics.FIT_NOW, labels, 2)


@pytest.mark.parametrize("labels", [(), ("chat",), ("chat", "0", "x")])
def test_a_wrong_number_of_labels_is_a_bug(labels: tuple[str, ...]) -> None:
    """The library would drop or leave out one without a word."""
    with pytest.raises(ValueError, match="labels"):
        Families("").add(metrics.FIT_NOW, labels, 1)


def test_a_value_is_of_its_familys_kind() -> None:
    """A summary is a sum and a count, and nothing else is."""
    families = Families("")
    with pytest.raises(TypeError):
        families.add(metrics.FIT_NOW, ("chat", "0"), SumCount(sum=1, count=1))
    with pytest.raises(TypeError):
        families.add(metrics.QUEUE_SECONDS, ("chat", "0"), 1)


# What is collected


def test_everything_known_is_exported_as_it_is() -> None:
    """A sample of each kind of family arrives with its value."""
    series = parse(World().render())
    for name, labels, expected in (
        ("up", {}, 1),
        ("source_up", {"source": "engine", "target": "chat"}, 1),
        ("source_up", {"source": "model", "target": "chat"}, 0),
        ("source_reason", {"target": "chat", "reason": "unknown_architecture"}, 1),
        ("source_failures_total", {"source": "engine", "reason": "timeout"}, 1),
        ("device_ledger_bytes", {"component": "other"}, 0),
        ("server_share_ratio", {"server": "chat"}, 0.92),
        ("server_share_ratio", {"server": "pinned"}, None),
        ("server_pin_bytes", {"server": "pinned"}, 5 << 20),
        ("full_length_requests_fit_guaranteed", {"rank": "1"}, 0),
        ("full_length_requests_headroom", {"rank": "1"}, -1),
        ("fit_bound_by", {"rank": "0", "bound": "queue"}, 1),
        ("fit_basis", {"server": "chat"}, 1),
        ("preemptions_total", {"rank": "0"}, 42),
        ("recompute_suspected_total", {"rank": "1"}, 0),
        ("requests_waiting", {"rank": "0", "reason": "deferred"}, 0),
        ("request_queue_seconds_sum", {"rank": "0"}, 165.25),
        ("request_queue_seconds_count", {"rank": "0"}, 20),
        ("typical_request_tokens", {"rank": "0", "part": "prompt"}, 200.5),
        ("kv_group_info", {"kind": "window", "window": "128"}, 1),
        ("kv_group_info", {"kind": "full", "window": ""}, 1),
        ("process_info", {"pid": "42", "match": "tree"}, 1),
    ):
        assert value(series, name, **labels) == expected, (name, labels)


def test_where_nothing_is_known_nothing_is_claimed() -> None:
    """Identity and health only; no number stands in for an unknown one, and no NaN."""
    text = World(unknown()).render()
    names = {name.removeprefix("kvwatch_") for name in parse(text)}
    assert names == {
        "build_info", "up", "config_last_reload_successful", "config_last_reload_timestamp_seconds",
        "source_up", "source_reason", "source_failures_total", "device_info", "device_share_limit_ratio",
        "process_info", "server_info",
        "server_config_info", "typical_request_tokens",
    }  # fmt: skip
    assert not re.search(r" [+-]?(nan|inf)$", text, re.IGNORECASE | re.MULTILINE)


def test_before_the_first_poll_there_is_only_kvwatch_itself() -> None:
    """No device, server or source is claimed to be anything yet."""
    series = parse(World(None).render())
    assert series.keys() == {
        "kvwatch_build_info", "kvwatch_up", "kvwatch_config_last_reload_successful",
        "kvwatch_config_last_reload_timestamp_seconds",
    }  # fmt: skip


@pytest.mark.parametrize("age, fresh", [(0.0, True), (15.0, True), (15.001, False), (1e6, False)])
def test_old_data_is_withdrawn_and_health_stays(age: float, fresh: bool) -> None:  # noqa: FBT001 - drawn
    """A poll that hangs leaves no stale figure behind."""
    series = parse(World(now=50.0 + age).render())
    assert (value(series, "full_length_requests_fit_now", server="chat", rank="0") == 1) == fresh
    assert ("kvwatch_device_memory_used_bytes" in series) == fresh
    assert ("kvwatch_server_info" in series) == fresh
    assert value(series, "source_up", source="engine", target="chat") == 1
    assert value(series, "up") == 1


HOSTILE = 'a"b\\c\nkvwatch_up 7\n# EOF\r\x00\u2028'


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_hostile_label_stays_a_label(openmetrics: bool) -> None:  # noqa: FBT001 - both formats
    """Quotes, backslashes and line feeds are escaped and come back as they were."""
    snapshot = known()
    chat = snapshot.servers[0]
    assert chat.reading is not None
    chat = replace(chat, reading=replace(chat.reading, model=HOSTILE))
    text = World(replace(snapshot, servers=(chat,))).render(openmetrics=openmetrics)
    (line,) = [line for line in text.split("\n") if line.startswith("kvwatch_server_info{")]
    assert r'model="a\"b\\c\nkvwatch_up 7\n# EOF' in line
    assert [line for line in text.split("\n") if line.startswith("kvwatch_up ")] == ["kvwatch_up 1.0"]


# Formats


def test_openmetrics_parses_and_ends() -> None:
    """The stricter parser reads every family, with the same values as the plain format."""
    world = World()
    text = world.render(openmetrics=True)
    assert text.endswith("\n# EOF\n")
    strict = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_openmetrics(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }
    plain = {
        (name, labels): number
        for name, series in parse(world.render()).items()
        for labels, number in series.items()
    }
    assert strict == plain


@pytest.mark.parametrize(
    "text", [World().render(), World().render(openmetrics=True)], ids=["plain", "openmetrics"]
)
def test_no_sample_has_a_time_and_no_family_a_creation_time(text: str) -> None:
    """Prometheus stamps what it scrapes; _created doubles a page for nothing."""
    for line in text.splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"\w+(\{.*\})? \S+", line), line
            assert "_created" not in line.partition("{")[0]


def test_content_types_and_compression() -> None:
    """Each format says what it is; gzip holds the same bytes and the same ones every time."""
    exposition = World().exposition
    for openmetrics, expected in ((False, "text/plain"), (True, "application/openmetrics-text")):
        plain, content_type = exposition.render(openmetrics=openmetrics, compressed=False)
        packed, packed_type = exposition.render(openmetrics=openmetrics, compressed=True)
        assert content_type == packed_type
        assert content_type.startswith(expected)
        assert gzip.decompress(packed) == plain
        assert len(packed) < len(plain)
        assert World().exposition.render(openmetrics=openmetrics, compressed=True)[0] == packed


# Names


NAMES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "a gauge": (("kvwatch_up",), {"kvwatch_up"}),
    "a counter": (("kvwatch_preemptions_total",), {"kvwatch_preemptions_total"}),
    "a part of a summary": (("kvwatch_request_queue_seconds_sum",), {"kvwatch_request_queue_seconds_sum"}),
    "both parts of a summary": (
        ("kvwatch_request_queue_seconds_sum", "kvwatch_request_queue_seconds_count"),
        {"kvwatch_request_queue_seconds_sum", "kvwatch_request_queue_seconds_count"}),
    "several": (("kvwatch_up", "kvwatch_build_info"), {"kvwatch_up", "kvwatch_build_info"}),
    "a name that does not exist": (("kvwatch_nothing",), set()),
    "one that does and one that does not": (("kvwatch_up", "node_load1"), {"kvwatch_up"}),
}  # fmt: skip


@pytest.mark.parametrize("situation", NAMES)
def test_a_scraper_may_ask_for_some_by_name(situation: str) -> None:
    """As elsewhere, name[] takes the names of series."""
    names, expected = NAMES[situation]
    world = World()
    assert parse(world.render(names=names)).keys() == expected
    assert world.render(openmetrics=True, names=names).endswith("# EOF\n")
    packed, _ = world.exposition.render(openmetrics=False, compressed=True, names=names)
    assert gzip.decompress(packed).decode() == world.render(names=names)


def test_every_series_can_be_asked_for_alone() -> None:
    """What the page has, name[] finds; more than so many in one poll are refused elsewhere."""
    world = World()
    names = parse(world.render())
    world.exposition.MOST_SELECTIONS = len(names)
    for name in names:
        assert parse(world.render(names=(name,))).keys() == {name}


def test_some_by_name_does_not_disturb_the_whole() -> None:
    """A filtered answer is never kept for those who ask for everything."""
    world = World()
    whole = world.render()
    world.render(names=("kvwatch_up",))
    assert world.render() == whole


# Keeping


def test_a_page_is_rendered_once_for_each_snapshot() -> None:
    """Every scraper gets the very same bytes until something changes."""
    world = World()

    def body() -> bytes:
        return world.exposition.render(openmetrics=False, compressed=False)[0]

    first = body()
    assert body() is first
    world.now = 60.0
    assert body() is first, "time alone changes nothing while the data is fresh"
    assert world.snapshot is not None
    world.snapshot = replace(world.snapshot, sequence=2)
    second = body()
    assert second is not first
    world.reload_state = ReloadState(successful=False, succeeded_at=1.0)
    third = body()
    assert b"kvwatch_config_last_reload_successful 0.0" in third
    world.now = 66.0
    stale = body()
    assert b"kvwatch_server_info" not in stale
    assert body() is stale
    world.snapshot = None
    assert b"kvwatch_source_up" not in body()


def test_all_formats_change_together() -> None:
    """A new snapshot withdraws the kept bytes of every format."""
    world = World()
    kinds = [(openmetrics, compressed) for openmetrics in (False, True) for compressed in (False, True)]

    def bodies() -> list[bytes]:
        return [world.exposition.render(openmetrics=one, compressed=two)[0] for one, two in kinds]

    first = bodies()
    assert all(one is two for one, two in zip(bodies(), first, strict=True))
    world.snapshot = unknown()
    world.snapshot = replace(world.snapshot, sequence=2)
    assert all(one != two for one, two in zip(bodies(), first, strict=True))


def test_what_scrapers_ask_for_is_ready_before_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format asked for lately is rendered after each poll, one that nobody wants any more is not."""
    world = World()
    rendered: list[bool] = []
    generate = world.exposition._generate
    monkeypatch.setattr(
        world.exposition,
        "_generate",
        lambda **asked: (rendered.append(asked["openmetrics"]), generate(**asked))[1],
    )
    world.exposition.refresh()
    assert rendered == []
    world.render()
    world.snapshot = replace(known(), sequence=known().sequence + 1)
    world.exposition.refresh()
    assert rendered == [False, False]
    world.render()
    assert rendered == [False, False]
    world.now += Exposition.KEEP_READY_SECONDS + 1
    world.snapshot = replace(known(), sequence=known().sequence + 2)
    world.exposition.refresh()
    assert rendered == [False, False]
