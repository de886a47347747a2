"""Triage: capacity fell. What took it away, when, and what happened then."""

# ruff: noqa: N999 - the suffix by which grafanalib finds definitions

from __future__ import annotations

from dashboards import queries_triage as q
from dashboards.fields import FALL
from dashboards.layout import Row, annotation, arrange
from dashboards.layout import dashboard as house_dashboard
from dashboards.panels import bars, series, stat, text
from dashboards.sources import server_sources
from dashboards.tables import Column, table
from dashboards.variables import back_variable, baseline_variable, node_variables, server_variable

_LEGEND = "{{instance}}"

_READ_FIRST = text(
    "Read this first",
    """\
1. **Longest red bar** on the right: that factor took the capacity away.
   - **pool**: memory. See *Pool* and *Neighbours*: was there a restart (blue mark) while a neighbour grew?
     Pin the pool, or start servers one after another.
   - **cost per token**: the cache's type, model or parallelism changed. A red or orange mark is a deploy.
   - **prompt or generation length**: clients send more. No deploy undoes it: ask their owners.
2. **No bar**: capacity did not fall. Look at *Requests*: more load, a lower limit, fewer prefix hits.
3. **unknown**: there is nothing to compare with. The table at the bottom says why.

On the command line: `kvwatch triage --prometheus URL --server $server`
""",
    description=(
        "The order in which to read this page; the command prints the same verdict with its evidence and "
        "what to do. Change the baseline at the top to compare with another day."
    ),
)
_CHANGE = stat(
    "Capacity since the baseline",
    q.CHANGE,
    unit="percentunit",
    legend=_LEGEND,
    steps=FALL,
    description=(
        "Typical requests that the pool holds now against then; -50 % is half. Red: read the bars beside "
        "it. unknown: no history of that time or nothing finished lately, so nothing can be compared."
    ),
)
_FACTORS = bars(
    "What changed capacity since $baseline",
    q.FACTORS,
    unit="percentunit",
    rows="factor",
    steps=FALL,
    bounds={"decimals": 1},
    description=(
        "What each factor alone did; multiplied (1 + each) they give together. Act on the longest red bar: "
        "pool, look at the card; cost per token, look for a deploy; lengths, ask the clients. "
        "A factor that is missing is unknown."
    ),
)
_TWO_MOMENTS = bars(
    "The same between now and $back before",
    q.TWO_MOMENTS,
    unit="percentunit",
    rows="factor",
    steps=FALL,
    bounds={"decimals": 1},
    description=(
        "For any two moments: set the end of the time range to the later one, and choose how far before "
        "the earlier one lies. Made by Prometheus from full-length cost, so hybrids are approximate; act on "
        "it where kvwatch's own bars are unknown."
    ),
)
_CAPACITY = series(
    "Typical requests that the pool holds",
    {"rank {{rank}}": q.CAPACITY, "$back before, rank {{rank}}": q.CAPACITY_THEN},
    unit="short",
    lines=["/before/"],
    description=(
        "When did it fall? A step at a blue mark is a restart; a slope without a mark is traffic. Put the "
        "end of the time range just after the fall. A gap is unknown."
    ),
)
_IDENTITY = table(
    "What runs now",
    [
        Column(title="Server", label="server"),
        Column(title="Engine", label="engine", expr=q.IDENTITY, settings={"custom.width": 65}),
        Column(title="Version", label="version", settings={"custom.width": 75}),
        Column(title="Model", label="model"),
        Column(title="Fingerprint", label="fingerprint", settings={"custom.width": 110}),
        Column(title="Started ago", expr=q.SINCE_START, settings={"unit": "s"}),
        Column(
            title="Flags changed ago",
            expr=q.SINCE_CHANGE,
            settings={"unit": "s", "noValue": "not seen", "custom.width": 135},
        ),
        Column(title="Pinned pool", expr=q.PIN, settings={"unit": "bytes", "noValue": "none known"}),
        Column(title="Cache type", label="cache_dtype", expr=q.SETTINGS),
        Column(title="Tensor parallel", label="tensor_parallel", settings={"custom.width": 125}),
        Column(title="Block size", label="block_size", settings={"custom.width": 85}),
        Column(title="Batched tokens", label="max_num_batched_tokens", settings={"custom.width": 125}),
        Column(title="Daemon", label="instance", settings={"custom.width": 125}),
        Column(title="Job", label="job", settings={"custom.width": 70}),
    ],
    description=(
        "Started about when capacity fell, with the same fingerprint: a restart, not a deploy; look at the "
        "neighbours. Another fingerprint or version: ask who deployed. No pin known: not pinned, or not "
        "read."
    ),
    sort_by="Server",
)
_POOL = series(
    "Pool on each device",
    {"rank {{rank}}": q.POOL},
    unit="bytes",
    description=(
        "Moves only with a restart. Smaller with the same flags: the server found less free memory; look at "
        "the neighbours at that mark, then pin it with kv_cache_memory_bytes."
    ),
)
_COST = series(
    "Bytes of pool for each token",
    {"rank {{rank}}": q.COST},
    unit="bytes",
    description=(
        "Of a full-length request. Doubled: the cache's type went from 8 to 16 bits; other steps: another "
        "model or parallelism. It never moves without a deploy: find that deploy."
    ),
)
_LENGTH = series(
    "Typical request (tokens)",
    {"{{part}}, rank {{rank}}": q.PARTS},
    unit="short",
    stacked=True,
    description=(
        "Longer prompts or answers take capacity with no deploy. Ask the clients' owners what changed at "
        "the moment of the step. A gap: too few requests finished."
    ),
)
_NEIGHBOURS = series(
    "Neighbours on its cards",
    {"{{server}} on {{device}}": q.NEIGHBOURS, "{{component}} on {{device}}": q.STRANGERS},
    unit="bytes",
    lines=["/^free /"],
    description=(
        "Who grew just before a blue mark? That one took the memory that this pool lost. orphan or other "
        "growing: open the Card dashboard and look at the processes."
    ),
)
_GROWTH = series(
    "By how much others grew while it started",
    {"on {{device}}": q.GROWTH},
    unit="bytes",
    description=(
        "More than nothing: its pool lost about as much. Restart it alone, or pin its pool. A gap: that "
        "start was not watched."
    ),
)
_REQUESTS = series(
    "Requests",
    {
        "running, rank {{rank}}": q.RUNNING,
        "waiting for {{reason}}, rank {{rank}}": q.WAITING,
        "limit, rank {{rank}}": q.LIMIT,
    },
    unit="none",
    lines=["/^limit/"],
    description=(
        "A lower dashed line is a changed flag, not lost memory. Waiting for capacity since the fall: users "
        "feel it; send load elsewhere first, then look for the cause."
    ),
)
_REDONE = series(
    "Work redone, per minute",
    {"suspected, rank {{rank}}": q.SUSPECTED, "counted, rank {{rank}}": q.PREEMPTIONS},
    unit="cpm",
    description=(
        "Began at the fall: the pool is too small for its load; lower max_num_seqs until the cause is "
        "found. See docs/runbooks/KvwatchRecomputeSuspected.md."
    ),
)
_REUSE = series(
    "Pool in use and prefix hits",
    {"in use, rank {{rank}}": q.USAGE, "prefix hits, rank {{rank}}": q.PREFIX_HITS},
    unit="percentunit",
    bounds={"min": 0, "max": 1},
    description=(
        "Hits fell and the pool is fuller with equal traffic: prompts no longer share a beginning; ask what "
        "changed in the template or the router. A gap: nothing was looked up."
    ),
)

dashboard = house_dashboard(
    uid="kvwatch-triage",
    title="kvwatch / Triage: capacity fell",
    description="One server whose capacity fell: which factor took it, when, and what happened then.",
    variables=[*node_variables(), server_variable(), baseline_variable(), back_variable()],
    annotations=[
        annotation(
            "Starts", q.STARTS_MS, color="blue", title="start", text="{{server}} started", at_value=True
        ),
        annotation(
            "Changed flags",
            q.CHANGES_MS,
            color="red",
            title="fingerprint changed",
            text="kvwatch saw other flags of {{server}}",
            at_value=True,
        ),
        annotation(
            "New versions",
            q.VERSION_CHANGES,
            color="orange",
            title="version or fingerprint",
            text="{{server}}: {{version}}, {{fingerprint}}",
            at_value=False,
        ),
    ],
    panels=arrange(
        Row(title="What took the capacity of $server?"),
        (10, [_READ_FIRST, _FACTORS, _TWO_MOMENTS]),
        (8, [_CHANGE, _CAPACITY]),
        Row(title="The factors over time"),
        (8, [_POOL, _COST, _LENGTH]),
        Row(title="What happened then"),
        (4, [_IDENTITY]),
        (8, [_NEIGHBOURS, _GROWTH]),
        (8, [_REQUESTS, _REDONE, _REUSE]),
        Row(title="What is not known"),
        (5, [server_sources()]),
    ),
)
