"""YAML with positions: plain values, where each one stands, and every structural problem.

Scalars follow the YAML 1.2 core schema without octal and hexadecimal numbers: only `true` and `false` are
booleans, so that a server may be called `on`; `12:30` is text, not 750; `010` is text, neither 8 nor 10.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_NODES = 50_000
"""Values in a document with its aliases written out; 1,000 servers with every key need 40,000."""

YAML_HINT = (
    "write `key: value`, indent with spaces, and quote a value that starts with punctuation or holds `: `"
)

_TYPE_TAG = "tag:yaml.org,2002:"

Key = tuple[str | int, ...]
"""Where a value stands: `("servers", 0, "url")`."""


class Position(NamedTuple):
    """A place in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a configuration: where, and what is allowed instead."""

    file: str
    line: int | None
    """None where the file as a whole is meant."""
    key: str
    """Such as `servers[0].url`; empty where no key is meant."""
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.message) if part)


class UnreadableError(Exception):
    """No value can be had from the file at all: why, and where if that is known."""

    def __init__(self, message: str, position: Position | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The plain value of a YAML text, where each key and list item stands, and what is wrong with keys."""

    value: Any
    positions: dict[Key, Position] = field(default_factory=dict)
    problems: list[tuple[Key, Position, str]] = field(default_factory=list)

    def position(self, key: Key) -> Position | None:
        """Return where a key stands, or the nearest thing around it that stands anywhere."""
        for length in range(len(key), -1, -1):
            if key[:length] in self.positions:
                return self.positions[key[:length]]
        return None


def read_text(path: Path) -> str:
    """Read a configuration file; raise `UnreadableError` with what is wrong with the file."""
    try:
        # Without O_NONBLOCK the open of a FIFO waits for a writer that may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{opening_failure(error)}; give the path of a YAML file") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableError("this is a directory; give the path of a YAML file")
        if not stat.S_ISREG(mode):
            raise UnreadableError("this is not a regular file; give the path of a YAML file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnreadableError(f"{opening_failure(error)}; give the path of a YAML file") from None
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE_BYTES:
        raise UnreadableError(
            "the file is larger than 1 MiB, which no configuration needs; is it the right file?"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = content.rfind(b"\n", 0, error.start) + 1
        position = Position(content.count(b"\n", 0, error.start) + 1, error.start - start + 1)
        raise UnreadableError("this line is not UTF-8; save the file as UTF-8", position) from None


def opening_failure(error: OSError | ValueError) -> str:
    """Say in words why a file could not be opened, without its name, which may be a misplaced secret."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return "no such file"
        case PermissionError():
            return "permission denied to read the file"
        case OSError():
            return f"the file cannot be read ({error.strerror})"
    return "the path holds a NUL character"


def parse_yaml(text: str) -> Document:
    """Parse a YAML text; raise `UnreadableError` where it is no YAML or is larger than any configuration."""
    try:
        # _Loader is a SafeLoader, and only its nodes are used: nothing is ever constructed.
        loader = _Loader(text)
        root = loader.get_single_node()
        document = Document(value=None)
        value = None if root is None else _Walk(document).value(root, ())
    except yaml.MarkedYAMLError as error:
        raise UnreadableError(
            _syntax_message(error), _position(error.problem_mark or error.context_mark)
        ) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        position = Position(before.count("\n") + 1, error.position - before.rfind("\n"))
        message = f"the character U+{error.character:04X} is not allowed in YAML; remove it"
        raise UnreadableError(message, position) from None
    return Document(value=value, positions=document.positions, problems=document.problems)


def _syntax_message(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "unreadable"
    if isinstance(error, _RefusedError):
        return problem
    if r"'\t'" in problem:
        return "a tab where YAML wants spaces; indent with spaces"
    if "undefined alias" in problem:
        return "an alias (*) without its anchor (&); quote a value that starts with *"
    if "expected a single document" in (error.context or ""):
        return "a second document starts here; give one document a file"
    return f"not YAML: {problem}; {YAML_HINT}"


def _position(mark: Any) -> Position | None:
    return None if mark is None else Position(mark.line + 1, mark.column + 1)


class _RefusedError(yaml.MarkedYAMLError):
    """Legal YAML that no configuration needs."""


def _refusal(message: str, mark: Any) -> _RefusedError:
    return _RefusedError(problem=message, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """A composer that bounds depth and size while it reads, and refuses tags."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - filled by add_implicit_resolver below

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES or self.depth > MAX_DEPTH:
            raise _too_large(event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise _refusal("tags (!) are not supported; put text in quotes", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _too_large(mark: Any) -> _RefusedError:
    return _refusal(
        f"more than {MAX_DEPTH} levels or {MAX_NODES} values with aliases written out; use fewer",
        mark,
    )


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,18})", "-+0123456789"),
    ("float", r"[-+]?(?:(?:0|[1-9][0-9]{0,18})(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"{_TYPE_TAG}{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


class _Walk:
    """Turns nodes into plain values and notes positions and problems on the way."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.nodes = 0

    def value(self, node: yaml.Node, key: Key) -> Any:
        self.nodes += 1
        # An alias is the same node again: a few lines of aliases to aliases would make billions of values.
        if self.nodes > MAX_NODES or len(key) > MAX_DEPTH:
            raise _too_large(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.document.positions[*key, index] = Position(
                    item.start_mark.line + 1, item.start_mark.column + 1
                )
            return [self.value(item, (*key, index)) for index, item in enumerate(node.value)]
        return _scalar(node.tag.removeprefix(_TYPE_TAG), node.value)

    def mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name_node, value_node in node.value:
            position = Position(name_node.start_mark.line + 1, name_node.start_mark.column + 1)
            if not isinstance(name_node, yaml.ScalarNode):
                self.document.problems.append(
                    (key, position, "a key is a list or a mapping; allowed: a plain word")
                )
                continue
            name = name_node.value
            here = (*key, name)
            if name in values:
                first = self.document.positions[here].line
                message = f"the key is given twice, first in line {first}; keep one of the two"
                self.document.problems.append((here, position, message))
                continue
            if name == "<<" and name_node.style is None:
                message = "merge keys are not supported; write the keys out"
                self.document.problems.append((here, position, message))
                continue
            self.document.positions[here] = position
            values[name] = self.value(value_node, here)
        return values


def _scalar(kind: str, text: str) -> str | int | float | bool | None:
    match kind:
        case "bool":
            return text.lower() == "true"
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "null":
            return None
    return text
