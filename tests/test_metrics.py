"""The catalogue of metrics."""

from __future__ import annotations

import re
import subprocess

import pytest

from kvwatch import metrics
from kvwatch.exposition import Exposition, ReloadState, SnapshotCollector
from kvwatch.metrics import CATALOGUE
from kvwatch.readings import Reason
from tests.daemon import parse
from tests.snapshots import known


def exposition() -> Exposition:
    """Return the exposition of a snapshot in which everything is known."""
    snapshot = known()
    return Exposition(
        SnapshotCollector(
            current=lambda: snapshot,
            reload_state=lambda: ReloadState(successful=True, succeeded_at=1.0),
            clock=lambda: 51.0,
        ),
        clock=lambda: 51.0,
    )


def test_each_name_is_there_once_and_follows_the_conventions() -> None:
    """Lower-case words with the prefix; counters and only counters end in _total; labels do not repeat."""
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        assert re.fullmatch(r"kvwatch(_[a-z0-9]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert len(set(metric.labels)) == len(metric.labels)
        assert metric.help.endswith("."), metric.name
        assert not set(metric.labels) & {"instance", "job", "hostname", "le", "quantile", "cmdline", "argv"}
        assert "pid" not in metric.labels or metric in (metrics.PROCESS_INFO, metrics.PROCESS_MEMORY)


def test_a_suffix_of_a_summary_is_no_familys_name() -> None:
    """A summary's _sum and _count would clash with a family of that name."""
    names = {metric.name for metric in CATALOGUE}
    for metric in CATALOGUE:
        if metric.kind == "summary":
            assert not names & {f"{metric.name}_sum", f"{metric.name}_count"}


def test_every_family_is_emitted_when_everything_is_known() -> None:
    """No family is promised that nothing fills, and each has the labels that the catalogue gives."""
    body, _ = exposition().render(openmetrics=False, compressed=False)
    series = parse(body.decode())
    for metric in CATALOGUE:
        names = [f"{metric.name}_sum", f"{metric.name}_count"] if metric.kind == "summary" else [metric.name]
        for name in names:
            assert name in series, name
            for labels in series[name]:
                assert {label for label, _ in labels} == set(metric.labels), name


def test_the_window_is_named_in_the_help() -> None:
    """A reader of the page learns over which time the typical request is the mean."""
    body, _ = exposition().render(openmetrics=False, compressed=False)
    assert b"finished in the last 15 min." in body
    assert b"{typical_window}" not in body


def test_reasons_are_a_closed_list_of_label_values() -> None:
    """The contract's list, word for word."""
    contract = (
        "unreachable timeout unauthorized not_found not_enabled loading http_error redirect too_large "
        "parse_error no_engine_series sleeping library_not_found driver_not_loaded version_mismatch "
        "permission device_lost not_supported implausible namespace ambiguous unknown_architecture "
        "missing_field unknown_pool disk internal_error"
    )
    assert sorted(str(reason) for reason in Reason) == sorted(contract.split())


@pytest.mark.prometheus
def test_promtool_has_nothing_to_say() -> None:
    """Prometheus' own linter is silent on the whole catalogue."""
    body, _ = exposition().render(openmetrics=False, compressed=False)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=body, capture_output=True, check=False, timeout=20
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
