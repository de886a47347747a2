"""Kubernetes manifests: containers of any kind, ConfigMaps, variables, GPUs."""

from __future__ import annotations

import pytest

from tests.check.declared import declared, lines, messages, only, stated

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat}}
spec:
  replicas: 2
  template:
    spec:
{spec}
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.28.0
{container}
"""


def deployment(container: str, spec: str = "      nodeSelector: {}") -> str:
    """Return a Deployment; every line of `container` is indented for it."""
    body = "\n".join(f"          {line}" for line in container.splitlines())
    return DEPLOYMENT.format(container=body, spec=spec)


ONE_SERVER = {
    "args": "args: [--model, acme/chat, --max-model-len, '8192']",
    "command": "command: [vllm, serve, acme/chat]\nargs: [--max-model-len=8192]",
    "shell": (
        "command: [/bin/sh, -c]\nargs:\n  - |\n    exec vllm serve acme/chat \\\n      --max-model-len 8192"
    ),
    "variables": (
        "args: [--model, $(MODEL), --max-model-len, $(LEN)]\n"
        "env: [{name: MODEL, value: acme/chat}, {name: BASE, value: '81'}, {name: LEN, value: $(BASE)92}]"
    ),
    "shell-variables": (
        "command: [bash, -c, 'vllm serve $MODEL --max-model-len ${LEN}']\n"
        "env: [{name: MODEL, value: acme/chat}, {name: LEN, value: '8192'}]"
    ),
}


@pytest.mark.parametrize("container", ONE_SERVER.values(), ids=ONE_SERVER)
def test_a_container_is_one_server(container: str) -> None:
    """Command and args replace the image's own entrypoint or follow it; `$(NAME)` comes from env."""
    server = only(declared(chat__yaml=deployment(container)))
    assert (server.name, server.version, server.replicas) == ("chat/vllm", (0, 28, 0), 1)
    assert (server.launch.model, server.launch.full_length_tokens) == ("acme/chat", 8192)


@pytest.mark.parametrize(
    "kind", ["StatefulSet", "DaemonSet", "Job", "ReplicaSet", "LeaderWorkerSet", "InferenceService"]
)
def test_every_kind_with_containers_is_read(kind: str) -> None:
    """Custom resources hold pod templates that look like all others."""
    text = deployment("args: [--model, acme/chat]").replace("kind: Deployment", f"kind: {kind}")
    assert only(declared(x__yaml=text)).launch.model == "acme/chat"


def test_documents_and_lists_are_all_read() -> None:
    """Several documents in a file, a List, a Pod; a Service and a Namespace are passed over."""
    pod = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"
        "spec: {containers: [{name: c, image: 'vllm/vllm-openai:v0.28.0', args: [--model, %s]}]}\n"
    )
    items = (
        "apiVersion: v1\nkind: List\nitems:\n- " + (pod % ("b", "mb")).replace("\n", "\n  ").rstrip() + "\n"
    )
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
    declaration = declared(all__yaml="---\n".join([pod % ("a", "ma"), service, items]))
    assert {server.name: server.launch.model for server in declaration.servers} == {"a/c": "ma", "b/c": "mb"}
    assert declaration.problems == ()


def test_configuration_and_variables_come_from_a_config_map() -> None:
    """A mounted --config file, envFrom and a single key, each with its own line."""
    config_map = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  LEN: "8192"
  vllm.yaml: |
    model: acme/chat
    gpu-memory-utilization: 0.7
    max-num-seqs: 32
---
"""
    container = (
        "args: [--config, /etc/vllm/vllm.yaml, --max-model-len, $(LEN), --max-num-seqs, "
        "'64', --block-size, $(B)]\n"
        "envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: tokens}}]\n"
        "env: [{name: B, valueFrom: {secretKeyRef: {name: x, key: y}}}]\n"
        "volumeMounts: [{name: c, mountPath: /etc/vllm}]"
    )
    spec = "      volumes: [{name: c, configMap: {name: settings}}]"
    declaration = declared(chat__yaml=config_map + deployment(container, spec))
    server = only(declaration)
    assert stated(server) == {
        "block_size": None,
        "full_length_tokens": 8192,
        "model": "acme/chat",
        "request_limit": 64,
        "share_ratio": 0.7,
    }
    assert lines(server) | {"request_limit": None} == {
        "block_size": 22,
        "full_length_tokens": 22,
        "model": 7,
        "request_limit": None,
        "share_ratio": 8,
    }
    assert messages(declaration) == [
        "chat.yaml:22: $(B) is set in no file given: --block-size is not known",
        "chat.yaml:22: Secret tokens is not among the files given: the variables that it sets are not known",
    ]


def test_a_whole_device_is_a_card_of_its_own() -> None:
    """Two pods that ask for a GPU each never meet; the card's name says whose it is."""
    one = deployment("args: [--model, a]\nresources: {limits: {nvidia.com/gpu: 1}}")
    two = deployment("args: [--model, b, -tp, '2']\nresources: {limits: {nvidia.com/gpu: '2'}}").replace(
        "name: chat", "name: big"
    )
    declaration = declared(all__yaml=f"{one}---\n{two}")
    assert [server.cards for server in declaration.servers] == [
        ("chat/vllm/gpu0",),
        ("big/vllm/gpu0", "big/vllm/gpu1"),
    ]


SHARED = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: device-plugin}
data:
  config: |
    sharing:
      timeSlicing:
        resources: [{name: nvidia.com/gpu, replicas: 4}]
---
"""


@pytest.mark.parametrize("before,resource", [(SHARED, "nvidia.com/gpu"), ("", "nvidia.com/gpu.shared")])
def test_a_gpu_that_pods_share_is_no_card_of_its_own(before: str, resource: str) -> None:
    """Time slices: which pods meet is not in the files, and that is said."""
    declaration = declared(
        all__yaml=before + deployment(f"args: [--model, a]\nresources: {{limits: {{{resource}: 1}}}}")
    )
    assert only(declaration).cards is None
    assert f"{resource} is a GPU that pods share" in messages(declaration)[0]


def test_pods_of_one_node_with_all_devices_meet() -> None:
    """NVIDIA_VISIBLE_DEVICES without a GPU limit: the node's own devices, for every replica."""
    server = only(
        declared(
            chat__yaml=deployment(
                "args: [--model, a]\nenv: [{name: NVIDIA_VISIBLE_DEVICES, value: '1'}]",
                "      nodeName: gpu-node",
            )
        )
    )
    assert (server.cards, server.replicas) == (("gpu-node/1",), 2)


def test_templates_are_never_guessed() -> None:
    """A chart's template that is no YAML is one problem; one that is leaves its value unknown."""
    broken = declared(chat__yaml="{{- if .Values.on }}\n" + deployment("args: [a]"))
    assert broken.servers == ()
    assert messages(broken) == [
        (
            "chat.yaml:1: a template stands here; render it first (such as with `helm "
            "template`) and check the result"
        )
    ]
    server = only(
        declared(
            chat__yaml=deployment(
                "args: [--model, acme/chat, '--max-model-len={{ .Values.len }}', "
                "--max-num-seqs, {{ .Values.n }}]"
            )
        )
    )
    assert stated(server) == {"full_length_tokens": None, "model": "acme/chat", "request_limit": None}
    assert server.unresolved == ("{{ .Values.len }}", "{{ .Values.n }}")


def test_a_shell_text_with_a_template_keeps_its_lines() -> None:
    """The rest of the text is read as it is."""
    server = only(
        declared(
            chat__yaml=deployment(
                "command: [sh, -c]\nargs:\n  - |\n    vllm serve acme/chat \\\n"
                "      --tensor-parallel-size {{ .Values.tp }} \\\n      --max-model-len 4096"
            )
        )
    )
    assert stated(server) == {"full_length_tokens": 4096, "model": "acme/chat", "tensor_parallel": None}
    assert lines(server) == {"full_length_tokens": 17, "model": 15, "tensor_parallel": 16}
