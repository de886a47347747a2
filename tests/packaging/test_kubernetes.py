"""The Kubernetes manifests as kubectl renders them: valid, with no needless privilege, of this kvwatch."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from deploy.kubernetes import check_crds, rules
from kvwatch import __version__, cli
from kvwatch.config import parse_config
from kvwatch.engines import ADAPTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "kubernetes"
FOLDERS = {str(folder.relative_to(HERE)): folder for folder in check_crds.kustomizations()}
# The oldest and the newest that these are said to be for: see docs/kubernetes.md.
VERSIONS = ("1.31.0", "1.37.0")
# What kubectl apply keeps of an object in an annotation of it.
ANNOTATION_LIMIT_BYTES = 256 << 10

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
each_folder = pytest.mark.parametrize("name", FOLDERS)

Thing = dict[str, Any]


@cache
def rendered(name: str) -> list[Thing]:
    """Return the objects of an overlay, or of an autoscaling example."""
    return check_crds.rendered(FOLDERS[name])


def of_kind(name: str, *kinds: str) -> list[Thing]:
    """Return an overlay's objects of some kinds."""
    return [thing for thing in rendered(name) if thing["kind"] in kinds]


def pods(name: str) -> Iterator[tuple[dict[str, str], Thing]]:
    """Yield the labels and the specification of each pod that an overlay starts."""
    for thing in of_kind(name, "DaemonSet", "Deployment", "StatefulSet"):
        template = thing["spec"]["template"]
        yield template["metadata"]["labels"], template["spec"]


def our_containers(name: str) -> Iterator[tuple[Thing, Thing]]:
    """Yield each container of kvwatch's image with its pod."""
    for _, pod in pods(name):
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            if container["image"].partition(":")[0] == "kvwatch":
                yield pod, container


def resource_files() -> list[Path]:
    """Return the files that hold whole objects: those that a kustomization names as resources."""
    found = []
    for file in sorted(HERE.rglob("kustomization.yaml")):
        names = yaml.safe_load(file.read_text(encoding="utf-8")).get("resources", ())
        found += [file.parent / name for name in names if name.endswith(".yaml")]
    return found


def assert_valid(thing: Thing) -> None:
    """Refuse a field that Kubernetes does not know, or a value of the wrong type."""
    for version in VERSIONS:
        kubernetes_validate.validate(thing, version, strict=True)


@pytest.mark.parametrize("file", resource_files(), ids=lambda file: str(file.relative_to(HERE)))
def test_every_object_is_valid_as_it_is_written(file: Path) -> None:
    """Each object that is no custom one passes the strict schema; this needs no kubectl."""
    for thing in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        assert thing["metadata"]["name"]
        if not check_crds.is_custom(thing):
            assert_valid(thing)


def test_a_wrong_field_is_refused() -> None:
    """The strict schema that these tests trust does refuse a field that it does not know."""
    thing = yaml.safe_load((HERE / "base" / "daemonset.yaml").read_text(encoding="utf-8"))
    thing["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        assert_valid(thing)


@needs_kubectl
@each_folder
def test_what_kubectl_renders_is_valid(name: str) -> None:
    """Every rendered object passes the strict schema, or uses only fields that were proven."""
    for thing in rendered(name):
        if not check_crds.is_custom(thing):
            assert_valid(thing)
        assert len(json.dumps(thing)) < ANNOTATION_LIMIT_BYTES, thing["metadata"]["name"]
    proven = set(check_crds.PROVEN.read_text(encoding="utf-8").splitlines())
    assert check_crds.proven_fields(rendered(name)) <= proven, "prove it with check_crds.py, then --record"


@needs_kubectl
@each_folder
def test_no_gpu_is_taken_and_no_privilege_is_left_over(name: str) -> None:
    """No container of ours asks for a GPU; each is read-only, without capabilities but the node's two."""
    for pod, container in our_containers(name):
        assert "nvidia.com/gpu" not in json.dumps(container["resources"])
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert "privileged" not in security
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        added = security["capabilities"].get("add", [])
        assert security["capabilities"]["drop"] == ["ALL"]
        if pod.get("hostPID") and container["name"] == "kvwatch":
            assert added == ["SYS_PTRACE", "DAC_READ_SEARCH"]
        else:
            assert (added, security["runAsNonRoot"], security["runAsUser"]) == ([], True, 65532)
        assert container["resources"]["limits"]["memory"]
        assert container["image"] == f"kvwatch:{__version__}"


@needs_kubectl
@each_folder
def test_everything_that_is_named_is_there(name: str) -> None:
    """Mounts name volumes, volumes ConfigMaps of the overlay, policies, services and monitors ports."""
    maps = {thing["metadata"]["name"] for thing in of_kind(name, "ConfigMap")}
    for _, pod in pods(name):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            for mount in container["volumeMounts"]:
                assert mount["name"] in volumes
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
    for thing in of_kind(name, "NetworkPolicy", "Service"):
        chosen = thing["spec"].get("selector") or thing["spec"]["podSelector"]["matchLabels"]
        found = [pod for labels, pod in pods(name) if chosen.items() <= labels.items()]
        assert found, thing["metadata"]["name"]
        ports = {port["name"] for pod in found for box in pod["containers"] for port in box["ports"]}
        named = re.findall(r'"(?:targetPort|port)": "(\w+)"', json.dumps(thing))
        assert named
        assert set(named) <= ports
    for monitor in of_kind(name, "ServiceMonitor"):
        (service,) = of_kind(name, "Service")
        chosen = monitor["spec"]["selector"]["matchLabels"]
        assert chosen.items() <= service["metadata"]["labels"].items()
        assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "kvwatch"
        ports = [port["name"] for port in service["spec"]["ports"]]
        assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ports
    for monitor in of_kind(name, "PodMonitor"):
        chosen = monitor["spec"]["selector"]["matchLabels"]
        found = [pod for labels, pod in pods(name) if chosen.items() <= labels.items()]
        (port,) = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
        assert found
        assert all(port in {p["name"] for box in pod["containers"] for p in box["ports"]} for pod in found)


@needs_kubectl
@each_folder
def test_kvwatch_understands_its_arguments_and_its_configuration(name: str, tmp_path: Path) -> None:
    """Kvwatch's own parser takes each container's arguments, its own reader each configuration."""
    for _, container in our_containers(name):
        if "args" in container:
            words = [word.replace("$(NODE_ADDRESS)", "192.0.2.7") for word in container["args"]]
            options = cli._parser().parse_args(words)
            assert str(options.config) == "/etc/kvwatch/kvwatch.yaml"
            assert options.listen.port == container["ports"][0]["containerPort"]
    token, authority = tmp_path / "token", ROOT / "tests" / "config" / "ca.pem"
    token.write_text("secret", encoding="utf-8")
    for thing in of_kind(name, "ConfigMap"):
        text = thing["data"].get("kvwatch.yaml")
        if text is None:
            continue
        text = text.replace("NODE_ADDRESS", "192.0.2.7")
        text = text.replace("/var/run/secrets/kubernetes.io/serviceaccount/token", str(token))
        text = text.replace("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", str(authority))
        parse_config(text, "kvwatch.yaml", ADAPTERS)


@needs_kubectl
def test_the_daemon_set_sees_the_node() -> None:
    """Node pods share the node's processes, and its network where servers are to be found."""
    for name in ("overlays/plain", "overlays/operator", "overlays/pod-names", "overlays/pod-network"):
        (daemon_set,) = of_kind(name, "DaemonSet")
        pod = daemon_set["spec"]["template"]["spec"]
        (config,) = (
            yaml.safe_load(thing["data"]["kvwatch.yaml"])
            for thing in of_kind(name, "ConfigMap")
            if "kvwatch.yaml" in thing["data"]
        )
        assert pod["hostPID"] is True
        assert config["discovery"] is pod.get("hostNetwork", False)
        # On the node's network no policy holds; off it there is one.
        assert bool(of_kind(name, "NetworkPolicy")) is not pod.get("hostNetwork", False)


@needs_kubectl
@each_folder
def test_rights_are_given_for_the_names_of_pods_only(name: str) -> None:
    """Only the overlay with pod names has a token and a role: to read the list of a node's pods."""
    roles = of_kind(name, "ClusterRole", "Role")
    tokens = [
        pod.get("automountServiceAccountToken", False) for pod, _ in our_containers(name) if "hostPID" in pod
    ]
    if name == "overlays/pod-names":
        assert [role["rules"] for role in roles] == [
            [{"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]}]
        ]
        (binding,) = of_kind(name, "ClusterRoleBinding")
        (account,) = of_kind(name, "ServiceAccount")
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (
            account["metadata"]["name"],
            account["metadata"]["namespace"],
        )
        assert binding["roleRef"]["name"] == roles[0]["metadata"]["name"]
        assert all(tokens)
    else:
        assert not roles
        assert not any(tokens)


def test_the_rules_are_those_that_promtool_tests() -> None:
    """Each rule file is one PrometheusRule with exactly its groups, and the manifest is current."""
    assert rules.TARGET.read_text(encoding="utf-8") == rules.render(), (
        "run: python deploy/kubernetes/rules.py"
    )
    made = list(yaml.safe_load_all(rules.TARGET.read_text(encoding="utf-8")))
    files = sorted(rules.SOURCES.glob("*.rules.yml"))
    assert [thing["spec"] for thing in made] == [
        yaml.safe_load(file.read_text(encoding="utf-8")) for file in files
    ]
    names = [thing["metadata"]["name"] for thing in made]
    assert len(set(names)) == len(names)
    assert "kvwatch" in names


@needs_kubectl
def test_the_dashboards_are_those_of_the_repository() -> None:
    """Each dashboard is a ConfigMap with the label by which Grafana's sidecar finds it."""
    found = {}
    for thing in of_kind("overlays/operator", "ConfigMap"):
        if thing["metadata"].get("labels", {}).get("grafana_dashboard") == "1":
            found.update(thing["data"])
    files = (ROOT / "dashboards" / "json").glob("*.json")
    assert found == {file.name: file.read_text(encoding="utf-8") for file in files}
