"""Fleet: which server cannot take one more full-length request, what is not known, where memory went."""

# ruff: noqa: N999 - the suffix by which grafanalib finds definitions

from __future__ import annotations

from dashboards import queries as q
from dashboards import queries_card as card
from dashboards import queries_triage as triage
from dashboards.fields import (
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    BAD,
    GOOD,
    HEADROOM,
    LEAST,
    NEUTRAL,
    NONE_IS_BAD,
    ROOM,
    WARN,
    coloured,
    words,
)
from dashboards.findings import DEVICE_LINKS, SERVER_LINKS, findings_table
from dashboards.layout import Row, arrange
from dashboards.layout import dashboard as house_dashboard
from dashboards.panels import series, stat
from dashboards.sources import UP_OR_DOWN, fleet_sources
from dashboards.tables import Column, table
from dashboards.variables import device_variable, node_variables

_SERVERS_WATCHED = stat(
    "Servers watched",
    q.SERVERS_WATCHED,
    unit="none",
    description=(
        "Servers that the chosen daemons were told to watch, whether they answer or not. Fewer than you "
        "run: add the missing ones to `servers` in the daemon's configuration."
    ),
)
_WITHOUT_ROOM = stat(
    "Cannot take one more",
    q.SERVERS_WITHOUT_ROOM,
    unit="none",
    steps=ANY_IS_BAD,
    description=(
        "Servers that cannot be promised one more request of full length. Open them from the table below; "
        "if requests wait there too, send load elsewhere or add a replica. Servers whose room is unknown "
        "are not counted here but in the next panel."
    ),
)
_UNKNOWN_ROOM = stat(
    "Room unknown",
    q.SERVERS_UNKNOWN,
    unit="none",
    steps=ANY_IS_BAD,
    description=(
        "Servers of which nobody can say whether one more request fits: down, asleep, or not stating their "
        "pool. Treat them as full until the table of sources says why."
    ),
)
_SOURCES_DOWN = stat(
    "Sources down",
    q.SOURCES_DOWN,
    unit="none",
    steps=ANY_IS_BAD,
    description=(
        "Drivers, engines, model files and process tables that could not be read, those not enabled left "
        "out. The table of sources names each one and its reason."
    ),
)
_DAEMONS_SILENT = stat(
    "Daemons silent",
    q.DAEMONS_SILENT,
    unit="none",
    steps=ANY_IS_BAD,
    description=(
        "Daemons of the chosen jobs that Prometheus cannot scrape. Everything about their nodes is "
        "unknown: see docs/runbooks/KvwatchDaemonAbsent.md."
    ),
)

_NARROW = {"custom.width": 75}
_PERCENT = {"unit": "percentunit", "decimals": 0}
_SERVERS = table(
    "Servers, those without room first",
    [
        Column(title="Server", label="server", settings={"links": SERVER_LINKS}),
        Column(title="Answers", expr=q.ANSWERS, settings={**UP_OR_DOWN, **_NARROW}),
        Column(title="Guaranteed", expr=q.ROOM, settings={**coloured(NONE_IS_BAD), "custom.width": 95}),
        Column(title="Fit now", expr=q.FIT_NOW, settings=_NARROW),
        Column(title="Resident limit", expr=q.RESIDENT_LIMIT, settings={"custom.width": 115}),
        Column(
            title="Headroom",
            expr=q.HEADROOM,
            settings={**coloured(HEADROOM), "custom.width": 85},
        ),
        Column(title="Running", expr=q.RUNNING, settings=_NARROW),
        Column(title="Waiting", expr=q.WAITING, settings={**coloured(ANY_IS_A_WARNING), **_NARROW}),
        Column(title="Fullest pool", expr=q.USAGE, settings={**_PERCENT, "custom.width": 100}),
        Column(
            title="Asleep",
            expr=q.ASLEEP,
            settings={**words({"0": ("no", GOOD), "1": ("asleep", WARN)}), **_NARROW},
        ),
        Column(title="Model", label="model", expr=q.IDENTITY, settings={"custom.width": 150}),
        Column(title="Engine", label="engine", settings=_NARROW),
        Column(title="Daemon", label="instance"),
        Column(title="Job", label="job", settings=_NARROW),
    ],
    description=(
        "Guaranteed 0: do not send this server another request of full length. Negative headroom: what it "
        "accepted cannot all grow to full length, so expect preemption (vLLM) or failed requests "
        "(llama.cpp). unknown is not room: find the reason in the table of sources. Click a server to open "
        "it."
    ),
    sort_by="Guaranteed",
)

_CARD = series(
    "Memory of card $device",
    {"{{component}} {{server}}": q.OWNED_PARTS, "free": q.FREE_PART, "total": q.DEVICE_TOTAL},
    unit="bytes",
    stacked=True,
    lines=["/^total$/"],
    tints={"/^free$/": ROOM},
    repeat_over="device",
    description=(
        "Who holds the card's memory. A gap between the stack and the dashed total is memory that cannot "
        "be attributed: see the nvml and procfs rows in the table of sources. other is processes of no "
        "known server: find their PIDs in kvwatch_process_info. A server whose kv_cache shrank after a "
        "restart lost a start-up race: pin its pool with kv_cache_memory_bytes."
    ),
)

_FINDINGS = stat(
    "Findings",
    card.FINDING_COUNT,
    unit="none",
    steps=((None, NEUTRAL), (1, BAD)),
    description=(
        "Rules that hold now, on any node chosen; the table below names them. 0 is no all-clear: a rule "
        "whose inputs are unknown cannot hold, so look at the sources that are down as well."
    ),
)
_FELL = {**coloured(((None, NEUTRAL), (-1, BAD), (-0.1, NEUTRAL), (0.1, GOOD))), **_PERCENT}
_SHRANK = {**coloured(((None, NEUTRAL), (-1, BAD), (-0.02, NEUTRAL))), **_PERCENT}
_GREW = {**coloured(((None, NEUTRAL), (0.1, BAD))), **_PERCENT}
_CHANGES = table(
    "What changed in the time range shown",
    [
        Column(title="Server", label="server", settings={"links": SERVER_LINKS}),
        Column(
            title="Typical requests it holds",
            expr=triage.FLEET_CAPACITY,
            settings={**_FELL, "custom.width": 195},
        ),
        Column(title="Pool", expr=triage.FLEET_POOL, settings=_SHRANK),
        Column(title="Bytes a token", expr=triage.FLEET_COST, settings=_GREW),
        Column(title="Request length", expr=triage.FLEET_LENGTH, settings=_GREW),
        Column(title="Started ago", expr=triage.FLEET_SINCE_START, settings={"unit": "s", "decimals": 0}),
        Column(
            title="Others grew at its start",
            expr=triage.FLEET_GROWTH,
            settings={"unit": "bytes", "custom.width": 180, **coloured(((None, NEUTRAL), (1 << 28, WARN)))},
        ),
        Column(title="Daemon", label="instance"),
        Column(title="Job", label="job", settings=_NARROW),
    ],
    description=(
        "Now against the mean of the time range; pool and bytes a token against their best. Red pool: it "
        "shrank at its last start; if others grew meanwhile they took the memory, so restart it alone and "
        "pin it. Red bytes: a deploy. Red length: ask the clients. Click a server for Triage, which reckons "
        "exactly."
    ),
    sort_by="Typical requests it holds",
)
_CARDS = table(
    "Cards, and who claims too much",
    [
        Column(title="Device", label="device", settings={"links": DEVICE_LINKS, "custom.width": 320}),
        Column(title="Memory", expr=card.TOTAL, settings={"unit": "bytes"}),
        Column(title="Free", expr=card.FREE, settings={"unit": "bytes"}),
        Column(title="Claimed", expr=card.SHARE_SUM, settings={"unit": "percentunit"}),
        Column(title="Limit", expr=card.SHARE_LIMIT, settings={"unit": "percentunit"}),
        Column(
            title="Over the limit by",
            expr=card.SHARE_OVER,
            settings={"unit": "percentunit", **coloured(((None, NEUTRAL), (LEAST, GOOD), (0.000001, BAD)))},
        ),
        Column(title="Claimed asleep", expr=card.SHARE_ASLEEP, settings={"unit": "percentunit"}),
        Column(title="Daemon", label="instance"),
        Column(title="Job", label="job", settings=_NARROW),
    ],
    description=(
        "Over the limit: the next restart on this card may find no memory, or a smaller pool; lower a "
        "gpu_memory_utilization or move a server. unknown: a server's share is not known. Click "
        "a card to open it."
    ),
    sort_by="Device",
)

dashboard = house_dashboard(
    uid="kvwatch-fleet",
    title="kvwatch / Fleet",
    description="Which server cannot take one more full-length request, what is unknown, where memory is.",
    variables=[*node_variables(), device_variable()],
    panels=arrange(
        Row(title="Can the fleet take more?"),
        (
            4,
            [_WITHOUT_ROOM, _UNKNOWN_ROOM, _FINDINGS, _SOURCES_DOWN, _DAEMONS_SILENT, _SERVERS_WATCHED],
        ),
        (6, [_SERVERS]),
        Row(title="What is wrong, and what changed"),
        (6, [findings_table("Findings, the worst first", card.ALL_FINDINGS)]),
        (5, [_CHANGES]),
        Row(title="Where the memory of the cards went"),
        (4, [_CARDS]),
        (10, [_CARD]),
        Row(title="What is not known, and why"),
        (9, [fleet_sources()]),
    ),
)
