"""Card: who holds one card's memory, who claims it, what happened at starts, what is left over."""

# ruff: noqa: N999 - the suffix by which grafanalib finds definitions

from __future__ import annotations

from dashboards import queries_card as q
from dashboards.fields import ANY_IS_BAD, NEUTRAL, ROOM, WARN
from dashboards.findings import SERVER_LINKS, findings_table
from dashboards.layout import Row, annotation, arrange
from dashboards.layout import dashboard as house_dashboard
from dashboards.panels import bars, series, stat
from dashboards.queries import FREE_PART, OWNED_PARTS
from dashboards.sources import card_sources
from dashboards.tables import Column, table
from dashboards.variables import node_variables, one_device_variable

_LEGEND = "{{instance}}"

_LEDGER_NOW = bars(
    "Where the memory is now",
    q.LEDGER_NOW,
    unit="bytes",
    rows="device",
    columns="part",
    tints={"/^free ?$/": ROOM},
    bounds={"min": 0},
    description=(
        "One bar that adds up to the card. orphan: a server is gone and its memory is not; end what is "
        "left of it. other: processes of no known server; see the table below. unattributed: memory in use "
        "that no visible process holds. A part that is missing is unknown, not zero: see the next panel."
    ),
)
_UNCOVERED = stat(
    "Not in the ledger",
    q.UNCOVERED,
    unit="bytes",
    legend=_LEGEND,
    steps=((None, NEUTRAL), (1, WARN)),
    description=(
        "Memory of the card that no part of the bar covers, because a part is unknown. 0 B: the bar is the "
        "whole card. More: find the reason in the table of sources, nvml and procfs first."
    ),
)
_FREE = stat(
    "Free",
    q.FREE,
    unit="bytes",
    legend=_LEGEND,
    description=(
        "What another process can still allocate. A server that starts here needs its whole share of it; "
        "compare before you start one."
    ),
)
_ORPHANS = stat(
    "Orphan memory",
    q.ORPHAN_SUM,
    unit="bytes",
    steps=ANY_IS_BAD,
    description=(
        "Memory of servers that are gone. Any of it: find the PIDs below, make sure that the server is "
        "really gone, end them. unknown: no orphan was seen, or the processes could not be read."
    ),
)
_NOBODYS = stat(
    "Of no known server",
    q.NOBODYS,
    unit="bytes",
    description=(
        "Memory of processes that belong to no server kvwatch watches. Find them in the table of processes; "
        "add a server to the configuration, or move the job to another card."
    ),
)
_SHARES = series(
    "What servers claim of the card",
    {"claimed": q.SHARE_SUM, "claimed by servers asleep": q.SHARE_ASLEEP, "limit": q.SHARE_LIMIT},
    unit="percentunit",
    lines=["/^limit$/"],
    description=(
        "Above the dashed limit the next restart may find no memory: lower gpu_memory_utilization or move a "
        "server. Add the sleepers' claim before you wake one. A gap: the share of a server is unknown."
    ),
)
_LEDGER_OVER_TIME = series(
    "Memory by owner over time",
    {"{{component}} {{server}}": OWNED_PARTS, "free": FREE_PART, "total": q.TOTAL, "in use": q.USED},
    unit="bytes",
    stacked=True,
    lines=["/^(total|in use)$/"],
    tints={"/^free$/": ROOM},
    description=(
        "Look left of the moment when capacity fell: whose part grew? A kv_cache that shrank at a restart "
        "lost a start-up race: pin it with kv_cache_memory_bytes. A gap under the total is unknown."
    ),
)
_PROCESSES = table(
    "Processes on the card",
    [
        Column(title="PID", label="pid", expr=q.PROCESSES),
        Column(title="Name", label="name"),
        Column(title="Server", label="server", settings={"links": SERVER_LINKS, "noValue": "-"}),
        Column(title="Matched by", label="match"),
        Column(title="Container", label="container", settings={"noValue": "-"}),
        Column(title="Unit", label="unit", settings={"noValue": "-"}),
        Column(title="Memory", expr=q.PROCESS_MEMORY, settings={"unit": "bytes"}),
        Column(title="Device", label="device"),
        Column(title="Daemon", label="instance"),
        Column(title="Job", label="job"),
    ],
    description=(
        "Who holds the card, with the PID to look at on the node. No server: nobody kvwatch knows; ask "
        "whose job it is. unknown memory: the driver does not say; it is not zero."
    ),
    sort_by="PID",
)
_NEIGHBOURS = series(
    "Memory of the servers around each start",
    {"{{server}}": q.SERVER_MEMORY, "free": q.FREE},
    unit="bytes",
    lines=["/^free$/"],
    description=(
        "Marks are starts. A server that started while another one grew measured less free memory and made "
        "a smaller pool: start them one after another, or pin their pools."
    ),
)
_STARTS = table(
    "Start windows",
    [
        Column(title="Server", label="server", settings={"links": SERVER_LINKS}),
        Column(title="Memory now", expr=q.SERVER_MEMORY, settings={"unit": "bytes"}),
        Column(
            title="Others grew meanwhile by",
            expr=q.START_GROWTH,
            settings={"unit": "bytes", "custom.width": 190},
        ),
        Column(title="Started ago", expr=q.START_AGE, settings={"unit": "s"}),
        Column(
            title="Share", expr=q.SHARE_OF_SERVER, settings={"unit": "percentunit", "noValue": "none known"}
        ),
        Column(
            title="Pinned pool", expr=q.PIN_OF_SERVER, settings={"unit": "bytes", "noValue": "none known"}
        ),
        Column(title="Device", label="device"),
        Column(title="Daemon", label="instance"),
        Column(title="Job", label="job"),
    ],
    description=(
        "Others grew while a server started: its pool is smaller by that much; restart it alone, or pin it. "
        "None known: a server has a share or a pinned pool, or its command line could not be read."
    ),
    sort_by="Server",
)
_INFO = table(
    "The card",
    [
        Column(title="Device", label="device", expr=q.INFO, settings={"custom.width": 320}),
        Column(title="Index", label="index"),
        Column(title="Name", label="name"),
        Column(title="Driver", label="driver"),
        Column(title="Part of", label="parent", settings={"noValue": "-"}),
        Column(title="Daemon", label="instance"),
        Column(title="Job", label="job"),
    ],
    description=(
        "Which card this is; the index is that of nvidia-smi on the node. Part of: a MIG instance has a "
        "GPU, and only instances have a ledger. unknown: the driver was not read."
    ),
    sort_by="Index",
)

dashboard = house_dashboard(
    uid="kvwatch-card",
    title="kvwatch / Card",
    description="One card: a ledger that adds up, claims against the limit, processes, starts, orphans.",
    variables=[*node_variables(), one_device_variable()],
    annotations=[
        annotation(
            "Server starts",
            q.STARTS_MS,
            color="blue",
            title="start",
            text="{{server}} started",
            at_value=True,
        )
    ],
    panels=arrange(
        Row(title="Who holds the card?"),
        (4, [_FREE, _UNCOVERED, _ORPHANS, _NOBODYS]),
        (6, [_LEDGER_NOW]),
        (6, [findings_table("Findings about this card and its servers, the worst first", q.FINDINGS)]),
        Row(title="Over time"),
        (10, [_LEDGER_OVER_TIME, _NEIGHBOURS, _SHARES]),
        Row(title="Starts and processes"),
        (5, [_STARTS]),
        (7, [_PROCESSES]),
        Row(title="The card, and what is not known"),
        (4, [_INFO]),
        (9, [card_sources()]),
    ),
)
