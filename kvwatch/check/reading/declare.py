"""Read the files of a run and say what they declare: the one entrance of this package."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Declaration, Place, Problem
from kvwatch.check.reading.card_options import CardOption, lay_out
from kvwatch.check.reading.command_words import MAX_SCRIPT_CHARACTERS, follow
from kvwatch.check.reading.compose import is_compose, read_compose
from kvwatch.check.reading.config_keys import is_engine_config, start_of_config
from kvwatch.check.reading.env_files import Style, looks_like_variables, read_variables
from kvwatch.check.reading.given_files import GivenFile, Shelf, UnopenedError, read_file
from kvwatch.check.reading.ignores import nearest, read_ignores
from kvwatch.check.reading.kubernetes import is_manifest, objects_of, read_cluster, read_pods
from kvwatch.check.reading.merging import merged, named, overruled
from kvwatch.check.reading.models import ModelFinder
from kvwatch.check.reading.notebook import Notebook
from kvwatch.check.reading.own_config import is_own_config, read_own_config
from kvwatch.check.reading.settle import Settled, settle
from kvwatch.check.reading.shell_script import Script, run_script
from kvwatch.check.reading.starts import Start
from kvwatch.check.reading.systemd import is_unit, read_units
from kvwatch.check.reading.words import lines_of
from kvwatch.check.reading.yaml_nodes import read_documents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.check.declaration import DeclaredServer, Ignore
    from kvwatch.check.reading.live import Live
    from kvwatch.check.reading.words import Word
    from kvwatch.check.reading.yaml_nodes import Node

_YAML_NAME = re.compile(r".*\.(?:ya?ml|json)", re.IGNORECASE)
_YAML_LINE = re.compile(r"(?:---|%YAML|\{|[\w.-]+:(?:\s|$))")
_STARTING = ("vllm serve", "llama-server", "vllm.entrypoints", "docker", "podman")
_ENV_NAME = re.compile(r"\.env(?:\..+)?|.+\.env", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says beside the files."""

    cards: tuple[CardOption, ...] = ()
    versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Engine -> release, for servers whose files do not state it."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Name of a server or a model -> path."""
    live: Live | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the files declare; `unopened` are those that could not be read at all, each also a problem."""

    declaration: Declaration
    unopened: tuple[str, ...] = ()


def read(names: Sequence[str], given: Given) -> Reading:
    """Read files by name."""
    files: dict[str, GivenFile] = {}
    problems: list[Problem] = []
    unopened: list[str] = []
    for name in dict.fromkeys(names):
        try:
            found = read_file(name)
        except UnopenedError as error:
            unopened.append(name)
            problems.append(Problem(place=Place(file=name), message=f"cannot be read: {error}"))
            continue
        if isinstance(found, GivenFile):
            files[name] = found
        else:
            problems.append(found)
    return Reading(declaration=declare(files, given, problems), unopened=tuple(unopened))


def declare(files: Mapping[str, GivenFile], given: Given, problems: Sequence[Problem] = ()) -> Declaration:
    """Return what files declare; `problems` are those that came before."""
    sorting = _Sorting(files, given)
    sorting.sort()
    reading = sorting.read(frozenset())
    if reading.notebook.shelf.used & sorting.variables.keys():
        # A file that a service names is that service's; only the others settle what is open elsewhere.
        reading = sorting.read(frozenset(reading.notebook.shelf.used))
    return reading.declaration(problems)


class _Sorting:
    """The files by kind."""

    def __init__(self, files: Mapping[str, GivenFile], given: Given) -> None:
        self.files = files
        self.given = given
        self.problems: list[Problem] = []
        self.units: list[GivenFile] = []
        self.scripts: list[GivenFile] = []
        self.variables: dict[str, dict[str, Word]] = {}
        """File -> the variables that it sets for others."""
        self.composes: list[tuple[str, Node]] = []
        self.objects: list[tuple[str, Node]] = []
        self.engine_configs: list[tuple[GivenFile, Node]] = []
        self.own_configs: list[tuple[GivenFile, Node]] = []

    def sort(self) -> None:
        """Recognise each file by its content, with its name as a hint."""
        for file in self.files.values():
            if is_unit(file.text):
                self.units.append(file)
            elif _is_yaml(file):
                self._sort_documents(file)
            elif _ENV_NAME.fullmatch(file.path.name) or looks_like_variables(file.text):
                self.variables[file.name] = read_variables(file, Style.COMPOSE)
            elif settings := _settings_of(file):
                self.variables[file.name] = settings
            else:
                self.scripts.append(file)

    def _sort_documents(self, file: GivenFile) -> None:
        documents, problems = read_documents(file.text, file.name)
        self.problems += problems
        known = bool(problems)
        for document in documents:
            if is_manifest(document):
                self.objects += [(file.name, one) for one in objects_of(document)]
            elif is_compose(document):
                self.composes.append((file.name, document))
            elif is_own_config(document):
                self.own_configs.append((file, document))
            elif is_engine_config(document):
                self.engine_configs.append((file, document))
            else:
                continue
            known = True
        if not known:
            message = (
                "of no kind that is known here (vLLM's configuration, compose, Kubernetes, kvwatch's own);"
                " values of a chart are read when they are rendered, as with `helm template`"
                if documents
                else "nothing is in it"
            )
            self.problems.append(Problem(place=Place(file=file.name, line=1), message=message))

    def read(self, used: frozenset[str]) -> _Read:
        """Read all files; variables of those in `used` are for who names them only."""
        variables: dict[str, Word] = {}
        for name, values in self.variables.items():
            if name not in used:
                variables |= values
        notebook = Notebook(Shelf(files=dict(self.files), variables=variables))
        notebook.problems |= dict.fromkeys(self.problems)
        return _Read(self, notebook)


class _Read:
    """One pass over the sorted files."""

    def __init__(self, sorting: _Sorting, notebook: Notebook) -> None:
        self.sorting = sorting
        self.notebook = notebook
        self.given = sorting.given
        self.share_limit: float | None = None
        self.settled: list[Settled] = []
        self.own: list[Settled] = []
        starts = self._starts()
        self.settled = [
            one for start in starts if (one := settle(start, notebook, self.given.versions)) is not None
        ]
        self._settle_configs()
        for file, document in sorting.own_configs:
            servers, limit = read_own_config(file, document, notebook)
            self.own += servers
            self.share_limit = limit if limit is not None else self.share_limit

    def _starts(self) -> list[Start]:
        sorting, notebook = self.sorting, self.notebook
        starts: list[Start] = []
        for group in _groups(sorting.composes):
            starts += read_compose(group, notebook)
        cluster = read_cluster(sorting.objects)
        for name, one in sorting.objects:
            starts += read_pods(name, one, cluster, notebook)
        starts += read_units(sorting.units, notebook)
        for file in sorting.scripts:
            # Those that others run come first, so that nobody counts them twice.
            starts += self._script_starts(file)
        return starts

    def _script_starts(self, file: GivenFile) -> list[Start]:
        start = Start(
            name="",
            place=Place(file=file.name, line=1),
            words=(),
            environ=self.notebook.shelf.variables,
            script=file.name,
        )
        found = follow(start, file.text, lines_of(file.text), self.notebook)
        if not found and file.name not in self.notebook.shelf.used:
            message = "no command of vLLM or llama-server was found in it"
            self.notebook.note(Problem(place=Place(file=file.name, line=1), message=message))
        return found

    def _settle_configs(self) -> None:
        """Take configuration files that no command names for servers of their own."""
        for file, document in self.sorting.engine_configs:
            if file.name in self.notebook.shelf.used:
                continue
            start = start_of_config(file, document)
            one = settle(start, self.notebook, self.given.versions)
            if one is not None:
                self.settled.append(one)

    def declaration(self, before: Sequence[Problem]) -> Declaration:
        """Return what was read, on its cards."""
        shelf = self.notebook.shelf
        settled = [one for one in self.settled if not self._is_run_by_another(one)]
        settled = named(settled)
        conflicts = overruled(settled, self.own)
        settled = merged(settled, self.own)
        live = self.given.live
        limit = self.share_limit
        if limit is None and live is not None:
            limit = live.share_limit_ratio
        finder = ModelFinder(self.given.models)
        settled = [self._complete(one, finder) for one in settled]
        board = lay_out(settled, self.given.cards, live.cards if live else (), limit)
        servers = _with_ignores(board.servers, settled, shelf.files)
        remarks = []
        for name in self.given.models.keys() - finder.used:
            message = f"no server and no model is called {name!r:.60}"
            remarks.append(Problem(place=Place(file="--model"), message=message))
        problems = [*before, *self.notebook.problems, *conflicts, *board.problems, *remarks]
        return Declaration(servers=tuple(servers), cards=board.cards, problems=tuple(dict.fromkeys(problems)))

    def _is_run_by_another(self, one: Settled) -> bool:
        """Say whether a server was found by reading a script that something else in the files runs."""
        return one.start.script in self.notebook.shelf.used

    def _complete(self, one: Settled, finder: ModelFinder) -> Settled:
        model, detail = finder.find(one.server, one.start)
        live = self.given.live
        measured = live.footprints.get(one.server.name) if live else None
        server = replace(one.server, model=model, model_detail=detail, measured_bytes=measured)
        return replace(one, server=server)


def _settings_of(file: GivenFile) -> dict[str, Word]:
    """Return what a script exports that starts nothing, such as set_env.sh; nothing of any other."""
    if len(file.text) > MAX_SCRIPT_CHARACTERS or any(hint in file.text for hint in _STARTING):
        return {}
    script = Script(file=file.name, lines=lines_of(file.text))
    run_script(script, file.text)
    known = script.variables.values
    return {name: known[name] for name in sorted(script.exported) if name in known}


def _is_yaml(file: GivenFile) -> bool:
    if _YAML_NAME.fullmatch(file.path.name):
        return True
    rows = (row for row in file.text.split("\n") if row.strip() and not row.lstrip().startswith("#"))
    first = next(rows, "")
    return not file.text.startswith("#!") and bool(_YAML_LINE.match(first))


def _groups(composes: list[tuple[str, Node]]) -> list[list[tuple[str, Node]]]:
    """Return compose files that belong together: an override goes with the others of its folder."""
    overrides = [one for one in composes if ".override." in one[0]]
    groups: list[list[tuple[str, Node]]] = []
    for name, document in composes:
        if ".override." not in name:
            folder = name.rpartition("/")[0]
            groups.append([(name, document), *(o for o in overrides if o[0].rpartition("/")[0] == folder)])
    taken = {name for group in groups for name, _ in group}
    return [*groups, *([one] for one in overrides if one[0] not in taken)]


def _with_ignores(
    servers: Sequence[DeclaredServer], settled: Sequence[Settled], files: Mapping[str, GivenFile]
) -> list[DeclaredServer]:
    """Return the servers with the comments that speak of them."""
    found: dict[str, list[Ignore]] = {}
    for file in files.values():
        mine = [
            (one.server.name, one.server.place.line, one.start.span)
            for one in settled
            if file.name in {one.server.place.file, *(p.file for p in one.server.places.values())}
        ]
        for ignore in read_ignores(file):
            for name in nearest(ignore, file.text, mine):
                found.setdefault(name, []).append(ignore)
    return [replace(one, ignores=tuple(found.get(one.name, ()))) for one in servers]
