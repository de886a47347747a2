"""Tables of what the daemons found, with links to where it is looked into."""

from __future__ import annotations

from dashboards.fields import BAD, WARN, Json, words
from dashboards.panels import Column, Panel, table

_NODE = "var-datasource=${datasource}&var-job=${__data.fields.Job}&var-instance=${__data.fields.Daemon}"


def link(title: str, uid: str, variable: str, field: str) -> Json:
    """Return a link from a row to a dashboard about one server or device."""
    url = f"/d/{uid}?{_NODE}&var-{variable}=${{__data.fields.{field}}}&${{__url_time_range}}"
    return {"targetBlank": False, "title": title, "url": url}


SERVER_LINKS = [
    link("Open this server", "kvwatch-server", "server", "Server"),
    link("Its capacity fell? Triage", "kvwatch-triage", "server", "Server"),
]
DEVICE_LINKS = [link("Open this card", "kvwatch-card", "device", "Device")]
_NONE: Json = {"noValue": "-"}


def findings_table(title: str, expr: str) -> Panel:
    """Return one row a finding."""
    severities = {"critical": ("critical", BAD), "warning": ("warning", WARN)}
    return table(
        title,
        [
            Column(title="Rule", label="rule", expr=expr),
            Column(title="Severity", label="severity", settings=words(severities)),
            Column(title="Server", label="server", settings={"links": SERVER_LINKS, **_NONE}),
            Column(title="Device", label="device", settings={"links": DEVICE_LINKS, **_NONE}),
            Column(title="Daemon", label="instance"),
            Column(title="Job", label="job"),
        ],
        description=(
            "Rules that hold now, the worst first. Look the rule up in docs/findings.md: what it means and "
            "what to do next. An empty table is no all-clear: a rule whose inputs are unknown cannot hold; "
            "look at the sources that are down."
        ),
        sort_by="Severity",
    )
