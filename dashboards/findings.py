"""Tables of what the daemons found, with links to where it is looked into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.fields import BAD, NEUTRAL, WARN, Json, words
from dashboards.queries_card import NO_RULE
from dashboards.tables import Column, table
from kvwatch.finding import RuleId

if TYPE_CHECKING:
    from dashboards.panels import Panel

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
MEANINGS = {
    RuleId.WAITING_POOL_FULL: "requests wait and the pool is full; send load elsewhere, add a replica",
    RuleId.NO_ROOM_FOR_ONE: "the empty pool takes no request of full length; lower max_model_len",
    RuleId.NO_ROOM_NOW: "no room for one more request; send new load elsewhere",
    RuleId.RECOMPUTE_SUSPECTED: "requests are thrown out and computed again; lower max_num_seqs or the load",
    RuleId.PREEMPTING: "the engine counts preemptions; lower max_num_seqs or the load",
    RuleId.REQUEST_LIMIT_REACHED: "requests wait for a slot, not for memory; raise max_num_seqs (-np)",
    RuleId.STALLED_POOL_FREE: "requests wait beside free memory, no capacity problem; read the log",
    RuleId.WORST_CASE_OVER_POOL: "the slots may claim more than the pool; take fewer (-np), or split it",
    RuleId.SHARE_SUM_OVER_LIMIT: "servers claim more than the card's limit; lower a gpu_memory_utilization",
    RuleId.SHARE_SUM_UNKNOWN: "what the servers claim together is not known; see the sources",
    RuleId.UNPINNED_NEIGHBOURS: "servers without a pinned pool; pin them, or start one after another",
    RuleId.PIN_OUT_OF_STEP: "the pool is not what its pin or share says; correct the flag or restart",
    RuleId.ORPHAN_MEMORY: "a server is gone, its process holds memory; end it, see the card's processes",
    RuleId.POOL_CHANGED_SAME_FLAGS: "the pool shrank at a restart, flags are the same; restart alone, pin it",
    RuleId.CAPACITY_HALVED: "half the capacity of before and no deploy; open Triage",
    RuleId.MODEL_DISAGREES: "our blocks of a request differ from the engine's; check model_config",
    RuleId.ENGINE_METRIC_MISSING: "series are missing that this version should have; see /debug/target",
    RuleId.SOURCE_DOWN: "a source gives no answer; its reason is in the table of sources",
    RuleId.DATA_STALE: "no poll has ended lately, all data are withdrawn; read the daemon's log",
}
"""What each rule says and the next step, for somebody who has not read docs/findings.md."""


def findings_table(title: str, expr: str) -> Panel:
    """Return one row a finding; the values of `expr` are ranks of severity, and NO_RULE is no finding."""
    severities = words(
        {
            "0": ("-", NEUTRAL),
            "1": ("critical", BAD),
            "2": ("warning", WARN),
            "3": ("info", NEUTRAL),
        }
    )
    return table(
        title,
        [
            Column(title="Severity", expr=expr, settings={**severities, "custom.width": 90}),
            Column(title="Rule, and what to do", label="rule", settings={**_meanings(), "custom.width": 720}),
            Column(title="Server", label="server", settings={"links": SERVER_LINKS, **_NONE}),
            Column(title="Device", label="device", settings={"links": DEVICE_LINKS, **_NONE}),
            Column(title="Daemon", label="instance"),
            Column(title="Job", label="job"),
        ],
        description=(
            "Rules that hold now, the worst first, with the next step; docs/findings.md explains each. None "
            "is no all-clear: a rule whose inputs are unknown cannot hold, so look at the sources that are "
            "down. unknown: no daemon answers."
        ),
        sort_by="Severity",
    )


def _meanings() -> Json:
    texts = {str(rule): f"{rule}: {meaning}" for rule, meaning in MEANINGS.items()}
    texts[NO_RULE] = "none holds of those whose inputs are known"
    options = {rule: {"index": index, "text": text} for index, (rule, text) in enumerate(texts.items())}
    return {"mappings": [{"options": options, "type": "value"}]}
