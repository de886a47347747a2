"""Read docker compose files: services with their image, command, variables, devices and mounts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Place, Problem
from kvwatch.check.reading.command_words import find_starts, of_image, visible
from kvwatch.check.reading.container_run import first, listed
from kvwatch.check.reading.env_files import Style, read_variables
from kvwatch.check.reading.expansion import Variables
from kvwatch.check.reading.starts import Devices, Mount, Sight, Start
from kvwatch.check.reading.words import Word, unknown
from kvwatch.check.reading.yaml_nodes import Mapping, Node, Sequence, Text
from kvwatch.check.reading.yaml_values import at, interpolated, items_at, keys_at, text_at, words_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from kvwatch.check.reading.notebook import Notebook

_MAX_EXTENDS = 8


def is_compose(document: Node) -> bool:
    """Say whether a document is a compose file's."""
    services = at(document, "services")
    return isinstance(services, Mapping) and all(
        isinstance(service, Mapping) or (isinstance(service, Text) and service.is_null)
        for service in services.items.values()
    )


def read_compose(documents: Items[tuple[str, Node]], notebook: Notebook) -> list[Start]:
    """Return the servers of compose files that belong together: `(file, document)`, later ones override."""
    services: dict[str, tuple[str, Mapping]] = {}
    first_lines: dict[str, int] = {}
    for file, document in documents:
        for name, service, line in keys_at(document, "services"):
            if isinstance(service, Mapping):
                known = services.get(name)
                services[name] = (file, service if known is None else _merged(known[1], service))
                first_lines[name] = line
    starts: list[Start] = []
    for name, (file, service) in services.items():
        reader = _Service(name, file, _extended(service, services, file, notebook), notebook)
        starts += [replace(one, span=(first_lines[name], service.last_line)) for one in reader.starts()]
    return starts


def _merged(base: Mapping, over: Mapping) -> Mapping:
    """Return a service with what another file or `extends` changes: mappings merge, the rest is replaced."""
    items, lines = dict(base.items), dict(base.lines)
    for key, value in over.items.items():
        known = items.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        lists = isinstance(known, Sequence) and isinstance(value, Sequence)
        if both and isinstance(known, Mapping) and isinstance(value, Mapping):
            items[key] = _merged(known, value)
        elif lists and key not in ("command", "entrypoint", "device_ids"):
            extra = known.items if isinstance(known, Sequence) else []
            mine = value.items if isinstance(value, Sequence) else []
            items[key] = Sequence(items=[*extra, *mine], line=value.line, last_line=value.last_line)
        else:
            items[key] = value
        lines[key] = over.lines[key]
    return Mapping(items=items, lines=lines, line=over.line, last_line=over.last_line)


def _extended(
    service: Mapping, services: dict[str, tuple[str, Mapping]], file: str, notebook: Notebook
) -> Mapping:
    """Return a service with what it extends; only services of the files given can be followed."""
    for _ in range(_MAX_EXTENDS):
        extends = at(service, "extends")
        if extends is None:
            return service
        base = text_at(extends) if isinstance(extends, Text) else text_at(extends, "service")
        elsewhere = text_at(extends, "file")
        known = services.get(base or "")
        rest = Mapping(
            items={key: value for key, value in service.items.items() if key != "extends"},
            lines=service.lines,
            line=service.line,
            last_line=service.last_line,
        )
        if known is None or (elsewhere is not None and PurePosixPath(elsewhere).name not in known[0]):
            message = f"extends {base!r:.60}, which is in no file given: what it sets is not known"
            notebook.note(Problem(place=Place(file=file, line=extends.line), message=message))
            return rest
        service = _merged(known[1], rest)
    return service


class _Service:
    def __init__(self, name: str, file: str, service: Mapping, notebook: Notebook) -> None:
        self.name = name
        self.file = file
        self.service = service
        self.notebook = notebook
        self.variables = Variables()
        beside = notebook.shelf.find(".env", file)
        if beside is not None:
            self.variables.values |= read_variables(beside, Style.COMPOSE)
        self.variables.values |= notebook.shelf.variables

    def starts(self) -> list[Start]:
        """Return the servers that the service starts, under its own name."""
        image = at(self.service, "image")
        word = interpolated(image, self.variables, self.file) if isinstance(image, Text) else None
        environ, missing = self._environment()
        command = words_of(at(self.service, "command"), self.variables, self.file)
        entrypoint = words_of(at(self.service, "entrypoint"), self.variables, self.file)
        if command is None and at(self.service, "command") is not None:
            return []
        words, version = of_image(word, entrypoint or None, command or [], self.notebook)
        line = self.service.lines.get("command") or self.service.lines.get("image") or self.service.line
        start = Start(
            name=self.name,
            place=Place(file=self.file, line=line),
            words=words,
            environ=environ,
            missing_environment=missing,
            version=version,
            devices=visible(self._devices(), environ),
            mounts=self._mounts(),
            contained=True,
            replicas=self._replicas(),
            profiles=tuple(filter(None, (text_at(one) for one in items_at(self.service, "profiles")))),
        )
        return find_starts(start, self.notebook)

    def _environment(self) -> tuple[dict[str, Word], tuple[str, ...]]:
        environ: dict[str, Word] = {}
        missing: list[str] = []
        for path in self._env_files():
            found = self.notebook.shelf.find(path, self.file)
            if found is not None:
                environ |= read_variables(found, Style.COMPOSE)
            else:
                missing.append(path)
        for key, value, line in keys_at(self.service, "environment"):
            place = Place(file=self.file, line=line)
            if isinstance(value, Text) and value.is_null:
                environ[key] = self.variables.values.get(key) or unknown(f"${key}", place)
            elif isinstance(value, Text):
                environ[key] = interpolated(value, self.variables, self.file)
        for item in items_at(self.service, "environment"):
            if not isinstance(item, Text):
                continue
            word = interpolated(item, self.variables, self.file)
            name, equals, value_text = word.text.partition("=")
            if equals:
                environ[name] = replace(word, text=value_text, marks=None)
            else:
                environ[name] = self.variables.values.get(name) or unknown(f"${name}", word.place)
        return environ, tuple(missing)

    def _env_files(self) -> list[str]:
        node = at(self.service, "env_file")
        items = [node] if isinstance(node, Text) else items_at(node)
        paths = [text_at(item) if isinstance(item, Text) else text_at(item, "path") for item in items]
        return [path for path in paths if path]

    def _devices(self) -> Devices:
        wishes = items_at(self.service, "deploy", "resources", "reservations", "devices")
        gpus = at(self.service, "gpus")
        if isinstance(gpus, Text):
            return Devices(sight=Sight.ALL) if gpus.text == "all" else Devices(sight=Sight.UNKNOWN)
        for wish in [*wishes, *items_at(gpus)]:
            capabilities = {item.text for item in items_at(wish, "capabilities") if isinstance(item, Text)}
            driver = text_at(wish, "driver") or "nvidia"
            if driver == "cdi":
                return self._listed([item.text.partition("=")[2] for item in self._ids(wish)], wish)
            if driver != "nvidia" or (capabilities and not capabilities & {"gpu", "nvidia", "compute"}):
                continue
            ids = self._ids(wish)
            if ids:
                return self._listed([item.text for item in ids], wish)
            return self._counted(wish)
        return Devices()

    def _ids(self, wish: Node) -> list[Word]:
        items = items_at(wish, "device_ids")
        return [interpolated(item, self.variables, self.file) for item in items if isinstance(item, Text)]

    def _listed(self, names: list[str], wish: Node) -> Devices:
        if any(word.unresolved for word in self._ids(wish)):
            return Devices(sight=Sight.UNKNOWN)
        return listed([part for name in names for part in name.split(",")])

    def _counted(self, wish: Node) -> Devices:
        node = at(wish, "count")
        if node is None:
            # compose: without a count and IDs it is all of them
            return Devices(sight=Sight.ALL)
        word = interpolated(node, self.variables, self.file) if isinstance(node, Text) else None
        if word is None or word.unresolved:
            return Devices(sight=Sight.UNKNOWN)
        if word.text in ("all", "-1"):
            return Devices(sight=Sight.ALL)
        return first(int(word.text)) if word.text.isdecimal() else Devices(sight=Sight.UNKNOWN)

    def _mounts(self) -> tuple[Mount, ...]:
        mounts: list[Mount] = []
        folder = Path(self.file).parent
        for item in items_at(self.service, "volumes"):
            if isinstance(item, Text):
                host, colon, rest = interpolated(item, self.variables, self.file).text.partition(":")
                inside = rest.partition(":")[0]
            else:
                host, inside = text_at(item, "source") or "", text_at(item, "target") or ""
                colon = ":" if text_at(item, "type") == "bind" else ""
            # A name without a slash is a volume of docker's own.
            if colon and inside and ("/" in host or host.startswith(("~", "."))):
                path = Path(host).expanduser() if host.startswith("~") else folder / host
                mounts.append(Mount(inside=inside, host=str(path)))
        return tuple(mounts)

    def _replicas(self) -> int:
        node = at(self.service, "deploy", "replicas") or at(self.service, "scale")
        if not isinstance(node, Text):
            return 1
        word = interpolated(node, self.variables, self.file)
        if word.unresolved:
            written = ", ".join(word.unresolved)
            message = f"{written} is set in no file given: how many start is not known, one is counted"
            self.notebook.note(Problem(place=word.place, message=message))
        return int(word.text) if word.text.isdecimal() and len(word.text) < 4 else 1  # noqa: PLR2004
