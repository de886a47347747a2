"""A start read by the engines' own rules: its launch, where each setting stands, and what stays unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvwatch.check.declaration import DeclaredServer, Place, Problem
from kvwatch.check.reading.cards import Placement, place
from kvwatch.check.reading.command_words import host_path
from kvwatch.check.reading.config_keys import config_keys, without_templates
from kvwatch.check.reading.words import lines_of
from kvwatch.flags import llamacpp, vllm
from kvwatch.flags.command import Command
from kvwatch.flags.placement import stated, takes_value, variable_fields
from kvwatch.flags.secrets import HIDDEN, says_secret
from kvwatch.readings import Reason, SourceError
from kvwatch.sources.launches import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvwatch.check.reading.notebook import Notebook
    from kvwatch.check.reading.starts import Start
    from kvwatch.check.reading.words import Word
    from kvwatch.flags.launch import Launch

_PARSERS: Mapping[str, Callable[..., Launch]] = {vllm.ENGINE: vllm.parse, llamacpp.ENGINE: llamacpp.parse}

# Unknown, they change nothing that is reckoned with.
_IRRELEVANT = frozenset(
    {"host", "port", "served_names", "api_prefix", "metrics_page", "slots_page", "socket_path", "api_servers"}
)
# What a llama-server's pool and slots follow from.
_DERIVED = (("pool_tokens", "ctx_size"), ("request_limit", "parallel"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A server with what its files say of its cards, which the cards of the run are still to be told from."""

    server: DeclaredServer
    placement: Placement
    start: Start


def settle(start: Start, notebook: Notebook, versions: Mapping[str, tuple[int, ...]]) -> Settled | None:
    """Return the server that a start's command starts; None where no engine knows the command.

    `versions` are the releases of engines that no file states.
    """
    words = _closed(start.words)
    argv = tuple(word.text for word in words)
    engine = engine_of(argv)
    if engine is None:
        return None
    version = start.version or versions.get(engine)
    places: dict[str, Place] = {}

    def config_text(path: str) -> str:
        try:
            return _config(path, start, notebook, places)
        except SourceError:
            called = "the file of --config" if HIDDEN in path else f"{path} (--config)"
            message = f"{called} is not among the files given: what it sets is not known"
            notebook.note(Problem(place=start.place, message=message))
            raise

    environ = {name: word.text for name, word in start.environ.items() if not word.open}
    hides_devices = "CUDA_VISIBLE_DEVICES" in environ and HIDDEN in environ["CUDA_VISIBLE_DEVICES"]
    if hides_devices:
        del environ["CUDA_VISIBLE_DEVICES"]
    launch = _PARSERS[engine](Command(argv=argv, environ=environ), version=version, config_text=config_text)
    for note in launch.notes:
        if note.startswith("--config: ") and note != "--config: cannot be read":
            notebook.note(Problem(place=start.place, message=f"{start.name or argv[0]}: {note}"))
    unresolved = _places(engine, words, start, places, notebook)
    _refused(launch, words, places, notebook)
    launch = _without_doubt(launch, start, words, engine, hides_devices=hides_devices)
    server = DeclaredServer(
        name=start.name,
        place=start.place,
        launch=launch,
        places={
            name: where for name, where in places.items() if name in launch.stated or name.startswith("-")
        },
        version=version,
        replicas=start.replicas,
        profiles=start.profiles,
        unresolved=unresolved,
    )
    placement = place(start.devices, launch, unsettled=hides_devices)
    return Settled(server=server, placement=placement, start=start)


def _refused(launch: Launch, words: Sequence[Word], places: Mapping[str, Place], notebook: Notebook) -> None:
    """Tell which values cannot be read, where it is not told already that a file leaves them open."""
    told = {problem.place for problem in notebook.problems}
    settled: dict[str, bool] = {}
    for option in stated(launch.engine, [word.text for word in words]):
        own = words[option.position : option.position + option.words]
        settled |= dict.fromkeys(option.fields, not any(word.unresolved for word in own))
    for note in launch.notes:
        name, _, why = note.partition(": ")
        for field in {field for option in stated(launch.engine, [name, "x"]) for field in option.fields}:
            where = places.get(field)
            if where is None or field not in launch.stated or field in _IRRELEVANT:
                continue
            # A template of a configuration file or a variable is told where it stands.
            if getattr(launch, field) is None and settled.get(field, where not in told):
                message = f"{name} cannot be read ({why}): what it sets is not known"
                notebook.note(Problem(place=where, message=message))


def _closed(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words without those that may be any number of options; one that is a value stays."""
    engine = engine_of([word.text for word in words]) or "vllm"
    return tuple(word for index, word in enumerate(words) if not _is_anything(words, index, engine))


def _is_anything(words: Sequence[Word], index: int, engine: str) -> bool:
    """Say whether any number of options may stand at a word."""
    before = words[index - 1].text if index else ""
    return words[index].open and not (takes_value(engine, before) or before == "serve")


def _places(
    engine: str, words: Sequence[Word], start: Start, places: dict[str, Place], notebook: Notebook
) -> tuple[str, ...]:
    """Fill in where fields are set, and return what is unknown and matters; each is a problem."""
    argv = [word.text for word in words]
    matters: list[tuple[Word, str]] = [
        (word, "any option may stand there")
        for index, word in enumerate(start.words)
        if _is_anything(start.words, index, engine)
    ]
    inside: set[int] = set()
    for option in stated(engine, argv):
        if option.position >= len(words):
            continue
        inside.update(range(option.position, option.position + option.words))
        own = words[option.position : option.position + option.words]
        for name in option.fields:
            places[name] = own[0].place
        if not option.fields:
            places[option.named] = own[0].place
        quiet = says_secret(option.named) or not set(option.fields) - _IRRELEVANT
        if not quiet:
            matters += [(word, f"{option.named} is not known") for word in own if word.unresolved]
    if "model" not in places and "serve" in argv[:-1]:
        behind = argv.index("serve") + 1
        if not argv[behind].startswith("-"):
            places["model"] = words[behind].place
    matters += [
        (word, "the model is not known" if index and argv[index - 1] == "serve" else "a word is not known")
        for index, word in enumerate(words)
        if word.unresolved and index not in inside
    ]
    for variable, fields in variable_fields(engine).items():
        word = start.environ.get(variable)
        if word is None:
            continue
        for name in fields:
            places.setdefault(name, word.place)
        if word.unresolved and set(fields) - _IRRELEVANT:
            matters.append((word, f"{variable} is not known"))
    for name, source in _DERIVED:
        if engine == llamacpp.ENGINE and source in places:
            places.setdefault(name, places[source])
    for word, meaning in matters:
        written = ", ".join(word.unresolved)
        notebook.note(Problem(place=word.place, message=f"{written} is set in no file given: {meaning}"))
    for missing in start.missing_environment:
        message = f"{missing} is not among the files given: the variables that it sets are not known"
        notebook.note(Problem(place=start.place, message=message))
    return tuple(dict.fromkeys(name for word, _ in matters for name in word.unresolved))


def _without_doubt(
    launch: Launch, start: Start, words: Sequence[Word], engine: str, *, hides_devices: bool
) -> Launch:
    """Take no default for granted where something that is not known may have set it."""
    doubtful: set[str] = set()
    if len(words) < len(start.words) or (start.missing_environment and engine == llamacpp.ENGINE):
        # The variables of vLLM set no field but the visible devices.
        doubtful |= set(launch.defaulted)
    if hides_devices or start.missing_environment:
        doubtful |= {"visible_devices"} & launch.defaulted
    if doubtful:
        nothing: dict[str, Any] = dict.fromkeys(doubtful)
        launch = replace(launch, defaulted=launch.defaulted - doubtful, **nothing)
    texts: dict[str, Any] = {
        name: None
        for name in ("model", "draft_model", "device", "visible_devices")
        if HIDDEN in (getattr(launch, name) or "")
    }
    if "model" in texts and launch.served_names and "served_names" in launch.defaulted:
        texts["served_names"] = None
    return replace(launch, **texts) if texts else launch


def _config(path: str, start: Start, notebook: Notebook, places: dict[str, Place]) -> str:
    """Return the text of vLLM's configuration file, and note where its keys stand."""
    text, where = _config_file(path, start, notebook)
    lines = lines_of(text, where.line or 1)
    config_keys(text, where.file, lines, places)
    text, templates = without_templates(text)
    for offset, written in templates:
        place = Place(file=where.file, line=lines(offset))
        message = f"{written:.60} is a template: what its key sets is not known"
        notebook.note(Problem(place=place, message=message))
    return text


def _config_file(path: str, start: Start, notebook: Notebook) -> tuple[str, Place]:
    for mount in start.mounts:
        name = path.removeprefix(mount.inside.rstrip("/") + "/")
        if name in mount.texts and path.startswith(mount.inside):
            return mount.texts[name]
    if path == start.place.file and path in notebook.shelf.files:
        return notebook.shelf.files[path].text, Place(file=path, line=1)
    found = notebook.shelf.find(host_path(path, start.mounts), start.place.file)
    if found is None:
        raise SourceError(Reason.NOT_FOUND, "not among the files given")
    return found.text, Place(file=found.name, line=1)
