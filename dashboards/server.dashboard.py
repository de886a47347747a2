"""Server: one server's pool, what fits, who waits, whether work is redone, and the engine's own figures."""

# ruff: noqa: N999 - the suffix by which grafanalib finds definitions

from __future__ import annotations

from dashboards import queries as q
from dashboards.fields import BAD, GOOD, HEADROOM, LEAST, NEUTRAL, NONE_IS_BAD, WARN, coloured, words
from dashboards.layout import Row, arrange
from dashboards.layout import dashboard as house_dashboard
from dashboards.panels import series, stat
from dashboards.sources import server_sources
from dashboards.tables import Column, table
from dashboards.variables import node_variables, server_variable

_LEGEND = "{{instance}}"

_ROOM = stat(
    "Guaranteed",
    q.ONE_ROOM,
    unit="none",
    legend=_LEGEND,
    steps=NONE_IS_BAD,
    description=(
        "Full-length requests that can be added and held to their end. 0: send new long requests "
        "elsewhere, and see below whether memory, slots or the queue is the bound. unknown: see the "
        "sources at the bottom."
    ),
)
_NOW = stat(
    "Fit now",
    q.ONE_NOW,
    unit="none",
    legend=_LEGEND,
    steps=NONE_IS_BAD,
    description=(
        "Full-length requests that today's free blocks take if the running ones do not grow. Larger than "
        "guaranteed: the room is there but already promised; do not admit by this figure."
    ),
)
_LIMIT = stat(
    "Resident limit",
    q.ONE_LIMIT,
    unit="none",
    legend=_LEGEND,
    description=(
        "Requests that can be held at full length together. Too few: shorten max_model_len, quantise the "
        "cache, or give the pool more memory."
    ),
)
_EMPTY = stat(
    "Fit when empty",
    q.ONE_EMPTY,
    unit="none",
    legend=_LEGEND,
    description=(
        "Full-length requests that the empty pool takes at once. It moves only with a restart: if it fell "
        "without a deploy, compare pool bytes below before and after."
    ),
)
_HEADROOM_STAT = stat(
    "Headroom",
    q.ONE_HEADROOM,
    unit="none",
    legend=_LEGEND,
    steps=HEADROOM,
    description=(
        "Resident limit minus running and waiting. Negative: what was accepted cannot all grow to full "
        "length. Scale out on this figure, before it is 0."
    ),
)
_FULL_LENGTH = stat(
    "Full length (tokens)",
    q.ONE_FULL_LENGTH,
    unit="locale",
    legend=_LEGEND,
    description=(
        "The longest request that the server admits. If no client needs that much, a smaller max_model_len "
        "(llama.cpp: -c) makes every figure here larger."
    ),
)

_RANKS = table(
    "By rank",
    [
        Column(title="Rank", label="rank"),
        Column(title="Guaranteed", expr=q.RANK_ROOM, settings=coloured(NONE_IS_BAD)),
        Column(title="Bound by", label="bound", expr=q.RANK_BOUND),
        Column(title="Fit now", expr=q.RANK_NOW),
        Column(title="Resident limit", expr=q.RANK_LIMIT),
        Column(title="Headroom", expr=q.RANK_HEADROOM, settings=coloured(HEADROOM)),
        Column(title="Running", expr=q.RANK_RUNNING),
        Column(title="Pool in use", expr=q.RANK_USAGE, settings={"unit": "percentunit", "decimals": 0}),
        Column(
            title="Worst case / pool",
            expr=q.RANK_WORST_CASE,
            settings={
                "unit": "percentunit",
                "custom.width": 140,
                **coloured(((None, NEUTRAL), (0, GOOD), (1.000001, WARN))),
            },
        ),
        Column(title="Daemon", label="instance"),
        Column(title="Job", label="job"),
        Column(title="Server", label="server"),
    ],
    description=(
        "Each data-parallel rank has a pool of its own. Bound by memory: more pool helps; slots: raise "
        "max_num_seqs; queue: requests wait already. Worst case above 100 %: full-length traffic at the "
        "request limit could preempt (llama.cpp: fail)."
    ),
    sort_by="Guaranteed",
)

_FITS = series(
    "Full-length requests that fit",
    {
        "guaranteed, rank {{rank}}": q.RANK_ROOM,
        "now, rank {{rank}}": q.RANK_NOW,
        "empty, rank {{rank}}": q.RANK_EMPTY,
        "resident limit, rank {{rank}}": q.RANK_LIMIT,
    },
    unit="none",
    lines=["/^resident limit/", "/^empty/"],
    description=(
        "Guaranteed at 0 for long while now is above it: running requests may still grow into that room. "
        "Both at 0: the pool is full. A dashed line that fell is a restart with a smaller pool. A gap is "
        "not known."
    ),
)
_USAGE = series(
    "Pool in use",
    {"rank {{rank}}": q.RANK_USAGE},
    unit="percentunit",
    bounds={"min": 0, "max": 1},
    description=(
        "Used part of the usable pool. Full by itself is no fault; full with requests waiting or work "
        "redone is: see the next panels."
    ),
)
_TOKENS = series(
    "Pool in tokens of full-length requests",
    {"free, rank {{rank}}": q.RANK_FREE_TOKENS, "capacity, rank {{rank}}": q.RANK_CAPACITY_TOKENS},
    unit="short",
    lines=["/^capacity/"],
    description=(
        "Tokens that full-length requests can hold. Compare free with the prompts you are about to send. "
        "Capacity changes only with a restart: if it did without a deploy, look at the card's memory then."
    ),
)

_REQUESTS = series(
    "Running and waiting",
    {
        "running, rank {{rank}}": q.RANK_RUNNING,
        "waiting for {{reason}}, rank {{rank}}": q.RANK_WAITING,
        "request limit, rank {{rank}}": q.RANK_REQUEST_LIMIT,
    },
    unit="none",
    lines=["/^request limit/"],
    description=(
        "Waiting for capacity: the pool or the request slots are exhausted; add a replica or send less. "
        "deferred: at llama.cpp a slot is missing, at vLLM remote KV data is. Running at the dashed limit "
        "with free blocks: raise the limit, not the memory."
    ),
)
_REDONE = series(
    "Work redone, per minute",
    {
        "suspected, rank {{rank}}": q.SUSPECTED_PER_MINUTE,
        "counted by the engine, rank {{rank}}": q.PREEMPTIONS_PER_MINUTE,
    },
    unit="cpm",
    description=(
        "Preempted requests are computed again: HTTP stays 200, latency does not. Suspected comes first, "
        "the engine counts when a victim resumes. Lower max_num_seqs or the load; see "
        "docs/runbooks/KvwatchRecomputeSuspected.md. llama.cpp has no such series: it fails requests "
        "instead."
    ),
)
_FINISHED = series(
    "Finished requests by reason, per minute",
    {"{{reason}}, rank {{rank}}": q.FINISHED_PER_MINUTE},
    unit="cpm",
    stacked=True,
    tints={"/^stop/": GOOD, "/^abort/": WARN, "/^error/": BAD},
    description=(
        "A growing share of length: answers are cut at the limit. abort: clients give up, often after "
        "waiting. error: read the engine's log. llama.cpp does not count finished requests."
    ),
)
_LATENCY = series(
    "Mean wait and mean time to first token",
    {
        "queue, rank {{rank}}": q.MEAN_QUEUE_SECONDS,
        "first token, rank {{rank}}": q.MEAN_FIRST_TOKEN_SECONDS,
    },
    unit="s",
    description=(
        "What users feel. Rising wait with room guaranteed: the bound is not memory; look at slots and "
        "compute. A gap: nothing finished in that interval, so there is no mean."
    ),
)

_LENGTHS = series(
    "Typical request (tokens)",
    {"{{part}}, rank {{rank}}": q.RANK_TYPICAL_TOKENS, "full length": q.ONE_FULL_LENGTH},
    unit="short",
    stacked=True,
    lines=["/^full length$/"],
    description=(
        "Mean prompt and answer of what finished lately. If this grew, capacity fell with no deploy: ask "
        "the clients' owners what changed. Far below full length: a smaller max_model_len costs nobody "
        "anything."
    ),
)
_TYPICAL = series(
    "Typical requests that fit",
    {
        "now, rank {{rank}}": q.RANK_TYPICAL_NOW,
        "resident limit, rank {{rank}}": q.RANK_TYPICAL_LIMIT,
        "capacity, rank {{rank}}": q.RANK_TYPICAL_CAPACITY,
    },
    unit="none",
    lines=["/^resident limit/", "/^capacity/"],
    description=(
        "The same in requests of today's typical length. Compare with running: near the dashed lines the "
        "pool fills in ordinary traffic, not only in the worst case; plan a replica."
    ),
)

_BESIDE = series(
    "The engine's figure beside ours",
    {
        "engine's maximum concurrency, rank {{rank}}": q.RANK_ENGINE_CONCURRENCY,
        "fit when empty, rank {{rank}}": q.RANK_EMPTY,
        "resident limit, rank {{rank}}": q.RANK_LIMIT,
        "textbook ceiling, rank {{rank}}": q.RANK_CEILING,
    },
    unit="none",
    description=(
        "The engine divides its whole pool by a start-up charge and does not round: 1.375 is one request. "
        "On models with sliding windows far more can be resident than it prints. Plan with the resident "
        "limit."
    ),
)
_BESIDE_TOKENS = series(
    "Pool tokens: the engine's count beside ours",
    {
        "engine's KV cache size, rank {{rank}}": q.RANK_ENGINE_TOKENS,
        "for full-length requests, rank {{rank}}": q.RANK_CAPACITY_TOKENS,
    },
    unit="short",
    description=(
        "The engine counts its null block and charges what it charges at start. On uniform models the two "
        "differ by a block; a wide gap is normal for hybrids. Use ours to plan, the engine's to read its "
        "log."
    ),
)
_MODEL_ERROR = stat(
    "Cost model against the engine",
    q.MODEL_ERROR,
    unit="percentunit",
    legend=_LEGEND,
    steps=((None, NEUTRAL), (LEAST, BAD), (0, GOOD), (0.000001, BAD)),
    description=(
        "The cost model's blocks of a full-length request against the engine's. Anything but 0 %: check "
        "that model_config is the model that is served; see "
        "docs/runbooks/KvwatchModelDisagreesWithEngine.md."
    ),
)
_BASIS = stat(
    "What the figures are",
    q.LOWER_BOUNDS,
    unit="none",
    legend=_LEGEND,
    shown=words({"0": ("exact", GOOD), "1": ("lower bounds", WARN)}),
    description=(
        "Lower bounds: only the engine's start-up charge is known, and a hybrid model fits more. Set "
        "model_config to the model's folder for exact figures. llama.cpp has no such series: its slots are "
        "counted."
    ),
)
_MEMORY = series(
    "Memory of the server",
    {
        "all processes on {{device}}": q.SERVER_MEMORY,
        "pool on each device, rank {{rank}}": q.POOL_BYTES,
        "smallest pool that starts": q.MINIMUM_POOL_BYTES,
    },
    unit="bytes",
    lines=["/^smallest pool/"],
    description=(
        "A pool that changed size with the same flags lost a start-up race: pin it with "
        "kv_cache_memory_bytes. Near the dashed line the next restart may fail. All processes growing "
        "while the pool does not: a leak or another neighbour; look at the card on the Fleet dashboard."
    ),
)

dashboard = house_dashboard(
    uid="kvwatch-server",
    title="kvwatch / Server",
    description="One server: its pool, what fits, who waits, what is redone, the engine's own figures.",
    variables=[*node_variables(), server_variable()],
    panels=arrange(
        Row(title="Can $server take one more full-length request?"),
        (4, [_ROOM, _NOW, _LIMIT, _EMPTY, _HEADROOM_STAT, _FULL_LENGTH]),
        (5, [_RANKS]),
        Row(title="Pool"),
        (8, [_FITS, _USAGE, _TOKENS]),
        Row(title="Requests"),
        (8, [_REQUESTS, _REDONE]),
        (8, [_FINISHED, _LATENCY]),
        Row(title="Typical lengths"),
        (8, [_LENGTHS, _TYPICAL]),
        Row(title="The engine's figures beside ours"),
        (8, [_BESIDE, _BESIDE_TOKENS]),
        (8, [_MODEL_ERROR, _BASIS, _MEMORY]),
        Row(title="What is not known"),
        (5, [server_sources()]),
    ),
)
