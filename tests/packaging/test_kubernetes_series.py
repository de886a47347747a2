"""What Prometheus makes of the monitors, and what autoscalers make of the series."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kvwatch.config import parse_config
from kvwatch.engines import ADAPTERS
from tests.daemon import reason, running, value
from tests.replay import replaying, vllm_pages

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "kubernetes"
RECORDING = ROOT / "deploy" / "prometheus" / "kvwatch.recording.rules.yml"

# What the operator itself adds to a target before the relabelings of a monitor.
OPERATOR_LABELS = {
    "namespace": "kvwatch",
    "pod": "kvwatch-x7k2p",
    "container": "kvwatch",
    "endpoint": "metrics",
    "job": "kvwatch",
}
DISCOVERED = {
    "__meta_kubernetes_namespace": "inference",
    "__meta_kubernetes_pod_name": "chat-6f9-abcde",
    "__meta_kubernetes_pod_node_name": "gpu-7",
}


def load(path: str) -> Any:
    """Return a YAML file of the manifests."""
    return yaml.safe_load((HERE / path).read_text(encoding="utf-8"))


def snake(relabeling: Mapping[str, Any]) -> dict[str, Any]:
    """Spell a monitor's relabeling as Prometheus' own configuration does."""
    return {re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), key): item for key, item in relabeling.items()}


def labels_of_target(relabelings: list[Mapping[str, Any]], extra: Mapping[str, str], folder: Path) -> Any:
    """Let promtool say what labels a target of the operator ends with."""
    target = {"targets": ["10.1.2.3:9836"], "labels": {**OPERATOR_LABELS, **DISCOVERED, **extra}}
    job = {
        "job_name": "any",
        "static_configs": [target],
        "relabel_configs": [snake(relabeling) for relabeling in relabelings],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump({"scrape_configs": [job]}), encoding="utf-8")
    command = ["promtool", "check", "service-discovery", "--timeout=1s", file, "any"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)
    return found["labels"]


@pytest.mark.prometheus
def test_a_node_keeps_its_name_and_kvwatch_its_labels(tmp_path: Path) -> None:
    """A node's series have job and instance only: `pod`, `container`, `namespace` stay kvwatch's own."""
    (endpoint,) = load("components/prometheus-operator/service-monitor.yaml")["spec"]["endpoints"]
    labels = labels_of_target(endpoint["relabelings"], {"service": "kvwatch"}, tmp_path)
    visible = {name: text for name, text in labels.items() if not name.startswith("__")}
    assert visible == {"job": "kvwatch", "instance": "gpu-7"}


@pytest.mark.prometheus
def test_a_sidecar_belongs_to_the_job_that_the_rules_know(tmp_path: Path) -> None:
    """A sidecar's series have the job kvwatch and its pod for an instance."""
    (endpoint,) = load("overlays/sidecar/pod-monitor.yaml")["spec"]["podMetricsEndpoints"]
    labels = labels_of_target(endpoint["relabelings"], {"job": "inference/kvwatch-sidecar"}, tmp_path)
    visible = {name: text for name, text in labels.items() if not name.startswith("__")}
    assert visible == {"job": "kvwatch", "instance": "inference/chat-6f9-abcde"}


def autoscaling_queries() -> dict[str, str]:
    """Return the query of each autoscaling example, for the model `chat`."""
    (trigger,) = load("autoscaling/keda/scaled-object.yaml")["spec"]["triggers"]
    (rule,) = load("autoscaling/prometheus-adapter/config.yaml")["externalRules"]
    return {
        "keda": trigger["metadata"]["query"],
        "prometheus-adapter": rule["metricsQuery"].replace("<<.LabelMatchers>>", 'model="chat"'),
    }


def server(name: str, *, model: str = "chat", limits: list[int], headrooms: list[int | None]) -> list[Any]:
    """Return the series of a server, a limit and a headroom for each rank; None is unknown."""
    own = f'job="kvwatch",instance="gpu-7",server="{name}"'
    series = [{"series": f'kvwatch_server_info{{{own},model="{model}"}}', "values": "1x10"}]
    for rank, (limit, headroom) in enumerate(zip(limits, headrooms, strict=True)):
        ranked = f'{own},rank="{rank}"'
        series.append({"series": f"kvwatch_requests_running{{{ranked}}}", "values": "1x10"})
        name_of_limit = "kvwatch_full_length_requests_resident_limit"
        series.append({"series": f"{name_of_limit}{{{ranked}}}", "values": f"{limit}x10"})
        if headroom is not None:
            name_of_headroom = "kvwatch_full_length_requests_headroom"
            series.append({"series": f"{name_of_headroom}{{{ranked}}}", "values": f"{headroom}x10"})
    return series


SITUATIONS: dict[str, tuple[list[Any], float | None]] = {
    "two replicas, half claimed": (
        [*server("a", limits=[10], headrooms=[2]), *server("b", limits=[10], headrooms=[8])],
        0.5,
    ),
    "more accepted than can grow": (server("a", limits=[10], headrooms=[-5]), 1.5),
    "another model is not counted": (
        [*server("a", limits=[10], headrooms=[5]), *server("x", model="other", limits=[9], headrooms=[0])],
        0.5,
    ),
    "a server with an unknown rank is left out, above and below": (
        [*server("a", limits=[10], headrooms=[5]), *server("b", limits=[10, 10], headrooms=[0, None])],
        0.5,
    ),
    "nothing is known": (server("a", limits=[10, 10], headrooms=[0, None]), None),
    "a pool too small for one request": (server("a", limits=[0], headrooms=[0]), None),
    "no replica": ([], None),
}


@pytest.mark.prometheus
def test_autoscalers_follow_the_share_that_is_claimed(tmp_path: Path) -> None:
    """Each query gives the claimed share of the room that is known, and nothing where none is."""
    shutil.copy(RECORDING, tmp_path)
    tests = [
        {
            "name": f"{name}, {situation}",
            "interval": "15s",
            "input_series": series,
            "promql_expr_test": [
                {
                    "expr": query,
                    "eval_time": "1m",
                    "exp_samples": [] if share is None else [{"labels": "{}", "value": share}],
                }
            ],
        }
        for name, query in autoscaling_queries().items()
        for situation, (series, share) in SITUATIONS.items()
    ]
    file = tmp_path / "autoscaling.test.yml"
    head = {"rule_files": [RECORDING.name], "evaluation_interval": "15s", "tests": tests}
    file.write_text(yaml.safe_dump(head), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_share_scales_nothing() -> None:
    """KEDA is told that no answer is not zero, and keeps the last replica; both ask the same."""
    scaled = load("autoscaling/keda/scaled-object.yaml")["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert (trigger["metricType"], scaled["minReplicaCount"]) == ("Value", 1)
    scaler = load("autoscaling/prometheus-adapter/autoscaler.yaml")["spec"]
    (metric,) = scaler["metrics"]
    assert metric["external"]["target"] == {"type": "Value", "value": "800m"}
    assert float(trigger["metadata"]["threshold"]) == 0.8
    assert scaler["behavior"] == scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    queries = autoscaling_queries()
    assert queries["keda"].split() == queries["prometheus-adapter"].split()


@pytest.mark.anyio
async def test_a_sidecar_reaches_the_first_right_number() -> None:
    """By the sidecar's own configuration a vLLM's fits are right; only its model's files are not known."""
    text = (HERE / "components" / "sidecar" / "kvwatch.yaml").read_text(encoding="utf-8")
    async with replaying(vllm_pages("idle")) as engine:
        text = text.replace("http://127.0.0.1:8000", engine.url)
        config = parse_config("listen: 127.0.0.1:0\n" + text, "kvwatch.yaml", ADAPTERS)
        async with running(config) as daemon:
            series = await daemon.until(lambda found: "kvwatch_full_length_requests_fit_now" in found)
    # 99 usable blocks of 32 tokens for requests of 1,024.
    assert value(series, "kv_capacity_blocks", server="chat", rank="0") == 99
    assert value(series, "full_length_requests_fit_empty", server="chat", rank="0") == 99 // 32
    down = [dict(labels)["source"] for labels, up in series["kvwatch_source_up"].items() if not up]
    assert (down, reason(series, "model", "chat")) == (["model"], "not_enabled")
