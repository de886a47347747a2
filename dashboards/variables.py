"""The variables that the dashboards share, in the order in which they narrow each other down."""

from __future__ import annotations

from dashboards import queries as q
from dashboards.layout import Choice, Variable


def node_variables() -> list[Variable]:
    """Return data source, job and instance: which Prometheus, and which daemons in it."""
    return [
        Variable(name="datasource", label="Data source", query="prometheus", type="datasource"),
        _many("job", "Job", q.JOBS),
        _many("instance", "Daemon", q.INSTANCES),
    ]


def device_variable() -> Variable:
    """Return the devices, all of them at first."""
    return _many("device", "Device", q.DEVICES)


def server_variable() -> Variable:
    """Return one server at a time: its panels speak of one."""
    return Variable(name="server", label="Server", query=q.SERVERS)


def one_device_variable() -> Variable:
    """Return one device at a time."""
    return Variable(name="device", label="Device", query=q.DEVICES)


def baseline_variable() -> Choice:
    """Return what kvwatch compares with by itself."""
    return Choice(name="baseline", label="Baseline", query="1d,7d,start")


def back_variable() -> Choice:
    """Return how far before the end of the time range the other moment lies."""
    return Choice(name="back", label="The other moment, before", query="1h,1m,10m,6h,1d,7d,30d")


def _many(name: str, label: str, query: str) -> Variable:
    return Variable(name=name, label=label, query=query, multi=True, includeAll=True)
