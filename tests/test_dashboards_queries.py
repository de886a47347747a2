"""The reckoning queries of Card and Triage, on series whose answer is known; promtool evaluates them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from dashboards import queries_card as card
from dashboards import queries_triage as triage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.prometheus

NODE = 'job="kvwatch", instance="n"'
FILLED = {
    "baseline": "1d",
    "back": "1h",
    "job": ".*",
    "instance": ".*",
    "server": "s",
    "device": "d",
    "__range": "2h",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Series by minute, a query, and its answer after two hours by label set."""

    series: dict[str, str]
    query: str
    answer: dict[str, float]


def factor(name: str, baseline: str = "1d") -> str:
    """Return a selector of a factor of the server."""
    return f'kvwatch_capacity_change_log{{{NODE}, server="s", baseline="{baseline}", factor="{name}"}}'


def of_rank(name: str, rank: int = 0, more: str = "") -> str:
    """Return a series of one rank of the server."""
    return f'kvwatch_{name}{{{NODE}, server="s", rank="{rank}"{more}}}'


def of_device(name: str, more: str = "") -> str:
    """Return a series of the device."""
    return f'kvwatch_{name}{{{NODE}, device="d"{more}}}'


def finding(rule: str, severity: str, *, server: str = "", device: str = "") -> str:
    """Return a finding."""
    about = f'rule="{rule}", severity="{severity}", server="{server}", device="{device}"'
    return f"kvwatch_finding{{{NODE}, {about}}}"


_RATIO = f'kvwatch_capacity_change_ratio{{{NODE}, server="s", baseline="1d"}}'
_VERSION = (
    f'kvwatch_server_info{{{NODE}, server="s", engine="vllm", model="m", version="%s", fingerprint="f"}}'
)
CASES = {
    "the pool halved": Case(
        series={factor("pool"): "-0.693147180559945x150", factor("pool", "7d"): "1x150", _RATIO: "0.5x150"},
        query=triage.FACTORS,
        answer={'{factor="pool"}': -0.5, '{factor="together"}': -0.5},
    ),
    "nothing is known": Case(series={}, query=triage.FACTORS, answer={}),
    "two ranks lost half of their pools": Case(
        series={
            of_rank("kv_capacity_bytes"): "100x100 50x60",
            of_rank("kv_capacity_bytes", 1): "100x100 50x60",
        },
        query=triage.TWO_MOMENTS,
        answer={'{factor="pool"}': -0.5},
    ),
    "cost and length doubled": Case(
        series={
            of_rank("kv_bytes_per_token"): "100x100 200x60",
            of_rank("typical_request_tokens", more=', part="prompt"'): "60x100 150x60",
            of_rank("typical_request_tokens", more=', part="generation"'): "40x100 50x60",
            of_rank("typical_capacity_requests"): "40x100 10x60",
        },
        query=triage.TWO_MOMENTS,
        answer={
            '{factor="cost per token"}': -0.5,
            '{factor="request length"}': -0.5,
            '{factor="together"}': -0.75,
        },
    ),
    "the other moment was not watched": Case(
        series={of_rank("kv_capacity_bytes"): "_x100 50x60"}, query=triage.TWO_MOMENTS, answer={}
    ),
    "a version is new": Case(
        series={_VERSION % "1": "1x117 _x40", _VERSION % "2": "_x117 1x40"},
        query=triage.VERSION_CHANGES,
        answer={f'{{{NODE}, server="s", version="2", fingerprint="f"}}': 1},
    ),
    "the same version after a gap is no change": Case(
        series={_VERSION % "1": "1x60 _x57 1x40"}, query=triage.VERSION_CHANGES, answer={}
    ),
    "a part of the ledger is unknown": Case(
        series={
            of_device("device_memory_total_bytes"): "100x150",
            of_device("device_ledger_bytes", ', server="s", component="kv_cache"'): "60x150",
            of_device("device_ledger_bytes", ', server="", component="free"'): "30x150",
        },
        query=card.UNCOVERED,
        answer={f'{{{NODE}, device="d"}}': 10},
    ),
    "a card over its limit": Case(
        series={
            of_device("device_share_sum_ratio"): "1.25x150",
            of_device("device_share_limit_ratio"): "1x150",
        },
        query=card.SHARE_OVER,
        answer={f'{{{NODE}, device="d"}}': 0.25},
    ),
    "a rank of two lost half of its pool in the time range": Case(
        series={of_rank("kv_capacity_bytes"): "100x150", of_rank("kv_capacity_bytes", 1): "300x100 100x60"},
        query=triage.FLEET_POOL,
        answer={f'{{{NODE}, server="s"}}': -0.5},
    ),
    "a rank that is not known now is no loss": Case(
        series={of_rank("kv_capacity_bytes"): "100x150", of_rank("kv_capacity_bytes", 1): "300x100 _x60"},
        query=triage.FLEET_POOL,
        answer={f'{{{NODE}, server="s"}}': 0},
    ),
    "bytes a token doubled in the time range": Case(
        series={of_rank("kv_bytes_per_token"): "100x100 200x60"},
        query=triage.FLEET_COST,
        answer={f'{{{NODE}, server="s"}}': 1},
    ),
    "a pool that is not known now has changed by nothing that is known": Case(
        series={of_rank("kv_capacity_bytes"): "100x100 _x60"}, query=triage.FLEET_POOL, answer={}
    ),
    "findings have a rank by severity": Case(
        series={
            f"kvwatch_up{{{NODE}}}": "1x150",
            finding("preempting", "warning", server="s"): "1x150",
            finding("share_sum_unknown", "info", device="d"): "1x150",
            finding("waiting_pool_full", "critical", server="s"): "1x150",
        },
        query=card.ALL_FINDINGS,
        answer={
            f'{{{NODE}, rule="waiting_pool_full", server="s"}}': 1,
            f'{{{NODE}, rule="preempting", server="s"}}': 2,
            f'{{{NODE}, rule="share_sum_unknown", device="d"}}': 3,
        },
    ),
    "a daemon that answers found nothing": Case(
        series={f"kvwatch_up{{{NODE}}}": "1x150"}, query=card.ALL_FINDINGS, answer={'{rule="none"}': 0}
    ),
    "no daemon answers, so nobody judged": Case(series={}, query=card.ALL_FINDINGS, answer={}),
    "a card has the findings of its servers, and no others": Case(
        series={
            of_device("device_memory_total_bytes"): "100x150",
            of_device("server_device_memory_bytes", ', server="s"'): "60x150",
            finding("preempting", "warning", server="s"): "1x150",
            finding("preempting", "warning", server="elsewhere"): "1x150",
            finding("orphan_memory", "warning", device="other"): "1x150",
        },
        query=card.FINDINGS,
        answer={f'{{{NODE}, rule="preempting", server="s"}}': 2},
    ),
    "nothing found by a daemon that answers is 0": Case(
        series={f"kvwatch_up{{{NODE}}}": "1x150"}, query=card.FINDING_COUNT, answer={"{}": 0}
    ),
    "nothing found by no daemon is unknown": Case(series={}, query=card.FINDING_COUNT, answer={}),
    "a process whose memory is not known has no row of 0": Case(
        series={
            of_device(
                "process_info", ', pid="7", name="p", server="s", container="", unit="", match="port"'
            ): "1x150",
        },
        query=card.PROCESS_MEMORY,
        answer={},
    ),
}


def filled(expr: str) -> str:
    """Return a query as Grafana would send it."""
    for name, value in FILLED.items():
        expr = re.sub(rf"\${name}\b", value, expr)
    return expr


@pytest.mark.parametrize("name", CASES)
def test_reckoning(name: str, tmp_path: Path) -> None:
    """The answer is what was reckoned by hand, to a thousandth."""
    case = CASES[name]
    samples = [{"labels": labels, "value": value} for labels, value in case.answer.items()]
    # promtool compares doubles exactly; a power of two loses nothing in rounding.
    question = {
        "expr": f"round({filled(case.query)}, 0.0009765625)",
        "eval_time": "2h",
        "exp_samples": samples,
    }
    series = [{"series": labels, "values": values} for labels, values in case.series.items()]
    file = tmp_path / "tests.yml"
    group = {"interval": "1m", "input_series": series, "promql_expr_test": [question]}
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [group]}), encoding="utf-8")
    answer = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
