"""Read Kubernetes manifests: every pod template, whatever kind holds it, with the ConfigMaps beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Place, Problem
from kvwatch.check.reading.command_words import find_starts, of_image, visible
from kvwatch.check.reading.starts import Devices, Mount, Sight, Start
from kvwatch.check.reading.words import Marks, Word, join, unknown
from kvwatch.check.reading.yaml_nodes import Mapping, Node, Sequence, Text
from kvwatch.check.reading.yaml_values import at, items_at, keys_at, plain_word, span, text_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.check.reading.notebook import Notebook

_REFERENCE = re.compile(r"\$(\$)?\(([A-Za-z_.-][\w.-]*)\)", re.ASCII)
_WHOLE_DEVICE = "nvidia.com/gpu"
_MAX_DEPTH = 12
_HOST_LABEL = "kubernetes.io/hostname"
_REPLICATED = frozenset({"Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "Rollout"})


@dataclass(slots=True, kw_only=True)
class Cluster:
    """What the manifests of a run hold beside pods: ConfigMaps by name, and whether GPUs are shared."""

    maps: dict[str, dict[str, Word]] = field(default_factory=dict)
    shared: Place | None = None
    """Where a device plugin's configuration shares GPUs in time or by MPS."""


def is_manifest(document: Node) -> bool:
    """Say whether a document is a Kubernetes object."""
    return text_at(document, "kind") is not None and text_at(document, "apiVersion") is not None


def objects_of(document: Node) -> Iterator[Node]:
    """Yield the objects of a document: itself, or the items of a list."""
    if (text_at(document, "kind") or "").endswith("List") and items_at(document, "items"):
        yield from items_at(document, "items")
    else:
        yield document


def read_cluster(objects: list[tuple[str, Node]]) -> Cluster:
    """Return the ConfigMaps among the objects."""
    cluster = Cluster()
    for file, one in objects:
        if text_at(one, "kind") != "ConfigMap":
            continue
        data = {
            key: plain_word(value, file) for key, value, _ in keys_at(one, "data") if isinstance(value, Text)
        }
        cluster.maps[text_at(one, "metadata", "name") or ""] = data
        for value in data.values():
            if re.search(r"^\s*(timeSlicing|mps):\s*$", value.text, re.MULTILINE):
                cluster.shared = value.place
    return cluster


def read_pods(file: str, document: Node, cluster: Cluster, notebook: Notebook) -> list[Start]:
    """Return the servers of an object's pods."""
    name = text_at(document, "metadata", "name") or text_at(document, "metadata", "generateName") or "pod"
    starts: list[Start] = []
    for spec in _pod_specs(document, 0):
        containers = [
            *items_at(spec, "containers"),
            # A sidecar stays; any other init container is gone when the pod runs.
            *(one for one in items_at(spec, "initContainers") if text_at(one, "restartPolicy") == "Always"),
        ]
        for container in containers:
            starts += _Container(file, name, document, spec, container, cluster, notebook).starts()
    return starts


def _pod_specs(node: Node, depth: int) -> Iterator[Node]:
    """Yield what holds `containers`, in any kind: templates of custom resources look like all others."""
    if depth > _MAX_DEPTH or not isinstance(node, Mapping):
        return
    if isinstance(node.items.get("containers"), Sequence):
        yield node
        return
    for value in node.items.values():
        yield from _pod_specs(value, depth + 1)


@dataclass(slots=True)
class _Container:
    file: str
    owner: str
    document: Node
    spec: Node
    container: Node
    cluster: Cluster
    notebook: Notebook

    def starts(self) -> list[Start]:
        environ, missing = self._environment()
        image = at(self.container, "image")
        word = plain_word(image, self.file) if isinstance(image, Text) else None
        command = self._words("command", environ)
        words, version = of_image(word, command, self._words("args", environ) or [], self.notebook)
        name = f"{self.owner}/{text_at(self.container, 'name') or 'container'}"
        lines = self.container.lines if isinstance(self.container, Mapping) else {}
        line = lines.get("command") or lines.get("args") or lines.get("image") or self.container.line
        start = Start(
            name=name,
            place=Place(file=self.file, line=line),
            words=words,
            environ=environ,
            missing_environment=missing,
            version=version,
            mounts=self._mounts(),
            contained=True,
            span=span(self.document),
        )
        found = find_starts(start, self.notebook)
        if not found:
            return []
        devices = visible(self._devices(), environ)
        return [replace(one, devices=devices, replicas=self._replicas(devices)) for one in found]

    def _words(self, key: str, environ: dict[str, Word]) -> list[Word] | None:
        items = [item for item in items_at(self.container, key) if isinstance(item, Text)]
        node = at(self.container, key)
        if isinstance(node, Text) and node.template:
            # A list that a template writes: any words may stand there.
            return [unknown(node.text, Place(file=self.file, line=node.line), is_open=True)]
        return [referenced(plain_word(item, self.file), environ) for item in items] or None

    def _environment(self) -> tuple[dict[str, Word], tuple[str, ...]]:
        environ: dict[str, Word] = {}
        missing: list[str] = []
        for item in items_at(self.container, "envFrom"):
            name = text_at(item, "configMapRef", "name")
            data = self.cluster.maps.get(name or "")
            prefix = text_at(item, "prefix") or ""
            if name is not None and data is not None:
                environ |= {f"{prefix}{key}": value for key, value in data.items()}
            else:
                secret = text_at(item, "secretRef", "name")
                missing.append(f"ConfigMap {name}" if name else f"Secret {secret}")
        for item in items_at(self.container, "env"):
            name = text_at(item, "name")
            if name is None:
                continue
            environ[name] = referenced(self._value(item, name), environ)
        return environ, tuple(missing)

    def _value(self, item: Node, name: str) -> Word:
        place = Place(file=self.file, line=item.line)
        value = at(item, "value")
        if isinstance(value, Text):
            return plain_word(value, self.file)
        reference = at(item, "valueFrom", "configMapKeyRef")
        data = self.cluster.maps.get(text_at(reference, "name") or "", {})
        known = data.get(text_at(reference, "key") or "")
        if known is not None:
            return known
        if at(item, "valueFrom") is not None:
            return unknown(f"$({name})", place)
        return Word(text="", place=place)

    def _devices(self) -> Devices:
        node = text_at(self.spec, "nodeName")
        selected = at(self.spec, "nodeSelector")
        if node is None and isinstance(selected, Mapping):
            node = text_at(selected, _HOST_LABEL)
        for key, value, line in [
            *keys_at(self.container, "resources", "limits"),
            *keys_at(self.container, "resources", "requests"),
        ]:
            if not key.startswith("nvidia.com/"):
                continue
            place = Place(file=self.file, line=line)
            amount = value.text if isinstance(value, Text) and not value.template else ""
            if not amount.isdecimal() or len(amount) > 3:  # noqa: PLR2004
                return Devices(sight=Sight.UNKNOWN, node=node)
            if amount == "0":
                continue
            if key.startswith(f"{_WHOLE_DEVICE}.shared") or (key == _WHOLE_DEVICE and self.cluster.shared):
                message = (
                    f"{key} is a GPU that pods share: which of them meet on one card is not in the files"
                )
                self.notebook.note(Problem(place=place, message=f"{message}; say it with --card"))
                return Devices(sight=Sight.UNKNOWN, node=node)
            return Devices(sight=Sight.OWN, count=int(amount), node=node)
        return Devices(node=node)

    def _replicas(self, devices: Devices) -> int:
        """Count the pods that meet on the same cards: those of one node without devices of their own."""
        if devices.sight in (Sight.OWN, Sight.UNKNOWN) or devices.node is None:
            return 1
        if text_at(self.document, "kind") not in _REPLICATED:
            return 1
        text = text_at(self.document, "spec", "replicas") or "1"
        return int(text) if text.isdecimal() and len(text) < 4 else 1  # noqa: PLR2004

    def _mounts(self) -> tuple[Mount, ...]:
        volumes = {text_at(volume, "name"): volume for volume in items_at(self.spec, "volumes")}
        mounts: list[Mount] = []
        for item in items_at(self.container, "volumeMounts"):
            volume = volumes.get(text_at(item, "name"))
            inside = text_at(item, "mountPath")
            if volume is None or inside is None:
                continue
            sub = text_at(item, "subPath")
            host = text_at(volume, "hostPath", "path")
            data = self.cluster.maps.get(text_at(volume, "configMap", "name") or "", {})
            texts = {
                key: (value.text, Place(file=value.place.file, line=value.lines(0)))
                for key, value in data.items()
                if sub in (None, key)
            }
            mounts.append(
                Mount(
                    inside=inside
                    if sub is None or host is not None or not texts
                    else inside.rpartition("/")[0],
                    host=f"{host.rstrip('/')}/{sub}" if host and sub else host,
                    texts=texts,
                )
            )
        return tuple(mounts)


def referenced(word: Word, environ: dict[str, Word]) -> Word:
    """Return a word with `$(NAME)` replaced; a name that is not set stays, as in Kubernetes."""
    if "$(" not in word.text:
        return word
    parts: list[Word] = []
    position = 0
    for match in _REFERENCE.finditer(word.text):
        known = environ.get(match[2])
        if not match[1] and known is None:
            continue
        parts.append(_part(word, position, match.start()))
        parts.append(_part(word, match.start() + 1, match.end()) if match[1] else known or word)
        position = match.end()
    return replace(join([*parts, _part(word, position, len(word.text))]), place=word.place) if parts else word


def _part(word: Word, start: int, end: int) -> Word:
    """Return a part of a word, with its lines."""
    place = Place(file=word.place.file, line=word.lines(start))
    inside = word.marks.marks if word.marks else ()
    marks = ((0, place.line), *((at - start, line) for at, line in inside if start < at < end))
    return Word(
        text=word.text[start:end],
        place=place,
        unresolved=word.unresolved,
        marks=Marks(marks) if len(marks) > 1 else None,
    )
