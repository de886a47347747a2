"""Read systemd units and their drop-ins: ExecStart with its variables, quoted as systemd.service(5) says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.check.reading.command_words import find_starts
from kvwatch.check.reading.env_files import Style, read_variables
from kvwatch.check.reading.expansion import Variables, expand, value_of
from kvwatch.check.reading.shell_lexer import split
from kvwatch.check.reading.shell_tokens import WORDS_ONLY
from kvwatch.check.reading.starts import Start
from kvwatch.check.reading.words import Word, lines_of
from kvwatch.flags.secrets import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.reading.given_files import GivenFile
    from kvwatch.check.reading.notebook import Notebook
    from kvwatch.check.reading.words import Marks

_SECTION = re.compile(r"\[([\w-]+)\]\s*")
_SETTING = re.compile(r"([A-Za-z]\w*)\s*=[ \t]*", re.ASCII)
_PREFIXES = "-@:+!|"
_SPECIFIER = re.compile(r"%([A-Za-z%])")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One assignment of a unit; `text` has its continuation lines joined, without changing any offset."""

    section: str
    name: str
    text: str
    offset: int
    lines: Marks


@dataclass(slots=True, kw_only=True)
class _Unit:
    files: list[GivenFile] = field(default_factory=list)
    settings: list[tuple[GivenFile, _Setting]] = field(default_factory=list)


def is_unit(text: str) -> bool:
    """Say whether a text is a unit, or a part of one, that may start a command."""
    return re.search(r"^\[Service\]\s*$", text, re.MULTILINE) is not None


def unit_name(file: GivenFile) -> str:
    """Return the unit that a file is of, without `.service`: a drop-in's folder names it."""
    folder = file.path.parent.name
    name = folder.removesuffix(".d") if folder.endswith(".service.d") else file.path.name
    return name.removesuffix(".service").removesuffix(".conf")


def read_units(files: Sequence[GivenFile], notebook: Notebook) -> list[Start]:
    """Return the servers of units; a unit's drop-ins, in the order of their names, change it."""
    units: dict[str, _Unit] = {}
    for file in sorted(files, key=lambda one: (one.path.parent.name.endswith(".d"), one.path.name)):
        unit = units.setdefault(unit_name(file), _Unit())
        unit.files.append(file)
        unit.settings += [(file, setting) for setting in _settings(file.text)]
    return [start for name, unit in units.items() for start in _starts(name, unit, notebook)]


def _starts(name: str, unit: _Unit, notebook: Notebook) -> list[Start]:
    instance = name.partition("@")[2]
    environ: dict[str, Word] = {}
    missing: list[str] = []
    commands: list[tuple[GivenFile, _Setting]] = []
    from_files: list[tuple[GivenFile, _Setting]] = []
    for file, setting in unit.settings:
        if setting.section != "Service":
            continue
        match setting.name:
            case "Environment":
                if not setting.text.strip():
                    environ.clear()
                environ |= _assignments(file, setting, instance)
            case "EnvironmentFile":
                from_files = [*from_files, (file, setting)] if setting.text.strip() else []
            case "ExecStart":
                commands = [*commands, (file, setting)] if setting.text.strip() else []
    # Variables of files win over those of the unit (systemd.exec(5), EnvironmentFile=).
    for file, setting in from_files:
        # With a `-` it may be missing, which does not say that it is.
        path = setting.text.strip().removeprefix("-")
        path = path.replace("%i", instance) if instance else path
        found = notebook.shelf.find(path, file.name)
        if found is not None:
            environ |= read_variables(found, Style.SYSTEMD)
        else:
            missing.append(path)
    starts: list[Start] = []
    for file, setting in commands:
        words = _words(file, setting, environ, instance)
        if not words:
            continue
        start = Start(
            name=name,
            place=words[0].place,
            words=words,
            environ=environ,
            missing_environment=tuple(missing),
            span=(1, file.text.count("\n") + 1),
        )
        found_starts = find_starts(start, notebook)
        starts += [replace(one, name=name) for one in found_starts]
    return starts


def _settings(text: str) -> list[_Setting]:
    """Return a unit's assignments; comments inside a continued line are blanked."""
    found: list[_Setting] = []
    lines = lines_of(text)
    section = ""
    offset = 0
    rows = text.split("\n")
    at = 0
    while at < len(rows):
        row, start = rows[at], offset
        offset += len(row) + 1
        at += 1
        if row.lstrip().startswith(("#", ";")):
            continue
        match = _SECTION.fullmatch(row.strip())
        if match:
            section = match[1]
            continue
        parts = [row]
        while parts[-1].endswith("\\") and at < len(rows):
            row = rows[at]
            offset += len(row) + 1
            at += 1
            is_comment = row.lstrip().startswith(("#", ";"))
            # Blanks of the same length, and the continuation kept, leave every offset where it was.
            parts.append(" " * (len(row) - 1) + "\\" if is_comment and row else row)
        whole = "\n".join(parts)
        setting = _SETTING.match(whole.lstrip())
        if setting:
            begin = len(whole) - len(whole.lstrip()) + setting.end()
            found.append(
                _Setting(
                    section=section,
                    name=setting[1],
                    text=whole[begin:].replace("\\\n", " \n").rstrip("\\"),
                    offset=start + begin,
                    lines=lines,
                )
            )
    return found


def _words(file: GivenFile, setting: _Setting, environ: dict[str, Word], instance: str) -> tuple[Word, ...]:
    variables = Variables(values=environ)
    words: list[Word] = []
    for token in split(setting.text, WORDS_ONLY):
        expanded = expand(token, variables, file.name, lambda at: setting.lines(setting.offset + at))
        # Inside quotes, too, a continued line is one line: a shell would end its command at a line feed.
        words += [_specified(replace(word, text=word.text.replace("\n", " ")), instance) for word in expanded]
    if words:
        words[0] = replace(words[0], text=words[0].text.lstrip(_PREFIXES))
    return tuple(words)


def _assignments(file: GivenFile, setting: _Setting, instance: str) -> dict[str, Word]:
    """Return `Environment=`'s variables: nothing is replaced in them but specifiers."""
    found: dict[str, Word] = {}
    for token in split(setting.text.replace("$", "$$"), WORDS_ONLY):
        word = value_of(token, Variables(), file.name, lambda at: setting.lines(setting.offset + at))
        name, equals, value = word.text.partition("=")
        if equals:
            found[name] = _specified(replace(word, text=value, marks=None), instance)
    return found


def _specified(word: Word, instance: str) -> Word:
    """Replace `%i` where the unit's name has an instance, and `%%`; other specifiers are unknown."""
    unsettled: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        if match[1] in "iI" and instance:
            return instance
        unsettled.append(match[0])
        return HIDDEN

    if "%" not in word.text:
        return word
    text = _SPECIFIER.sub(value, word.text)
    return replace(word, text=text, unresolved=(*word.unresolved, *unsettled))
