"""YAML and JSON as values that know their lines: anchors, merge keys and templates included, all bounded.

Built from the parser's events, so that depth costs no recursion and an alias that doubles is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from kvwatch.check.declaration import Place, Problem
from kvwatch.check.reading.words import Marks, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.check.reading.words import Lines

MAX_DEPTH = 60
MAX_NODES = 100_000
"""Of a file, with its aliases written out."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LITERAL = "|"
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(slots=True, kw_only=True)
class Text:
    """A scalar as it is written, without quotes."""

    text: str
    line: int
    last_line: int
    plain: bool = False
    template: bool = False
    """It is a template (`{{ ... }}`) rather than a value."""
    marks: Marks | None = None

    @property
    def lines(self) -> Lines:
        """Return the lines of its characters."""
        return self.marks or Marks(((0, self.line),))

    @property
    def is_null(self) -> bool:
        """Say whether it is YAML's nothing."""
        return self.plain and self.text in _NULLS


@dataclass(slots=True, kw_only=True)
class Sequence:
    """A list."""

    items: list[Node]
    line: int
    last_line: int


@dataclass(slots=True, kw_only=True)
class Mapping:
    """A mapping; `lines` are those of its keys."""

    items: dict[str, Node]
    lines: dict[str, int]
    line: int
    last_line: int


Node = Text | Sequence | Mapping


@dataclass(slots=True)
class _Open:
    """A collection that is still being read."""

    node: Sequence | Mapping
    anchor: str | None
    start: int
    key: Text | None = None
    merges: list[Node] = field(default_factory=list)


class _RefusedError(Exception):
    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read_documents(text: str, file: str) -> tuple[list[Node], list[Problem]]:
    """Return a file's documents, and what keeps the rest from being read."""
    builder = _Builder(text)
    documents: list[Node] = []
    problems: list[Problem] = []
    try:
        documents.extend(builder.documents())
    except _RefusedError as error:
        problems.append(Problem(place=Place(file=file, line=error.line), message=error.message))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        problems.append(
            Problem(
                place=Place(file=file, line=line), message=_syntax(error.problem or "unreadable", text, line)
            )
        )
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0][:80] if str(error) else "unreadable"
        problems.append(Problem(place=Place(file=file), message=f"not YAML: {reason}"))
    documents = documents or builder.done
    return documents, [*problems, *(_placed(problem, file) for problem in builder.problems)]


def _placed(problem: tuple[int, str], file: str) -> Problem:
    return Problem(place=Place(file=file, line=problem[0]), message=problem[1])


def _syntax(reason: str, text: str, line: int | None) -> str:
    lines = text.split("\n")
    near = "\n".join(lines[max(0, (line or 1) - 3) : (line or 1) + 1])
    if "{{" in near or "{%" in near:
        return "a template stands here; render it first (such as with `helm template`) and check the result"
    if "{{" in text or "{%" in text:
        return f"not YAML: {reason}; the file holds templates: render it first"
    return f"not YAML: {reason}"


class _Builder:
    def __init__(self, text: str) -> None:
        self.text = text
        self.count = 0
        self.done: list[Node] = []
        self.problems: list[tuple[int, str]] = []
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.open: list[_Open] = []
        self.root: Node | None = None

    def documents(self) -> list[Node]:
        events: Iterator[Any] = yaml.parse(self.text, Loader=_Loader)
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors, self.open, self.root = {}, [], None
            elif isinstance(event, yaml.DocumentEndEvent):
                if self.root is not None:
                    self.done.append(self.root)
            elif isinstance(event, yaml.AliasEvent):
                known = self.anchors.get(event.anchor or "")
                if known is None:
                    raise _RefusedError("an alias (*) without its anchor (&)", line)
                self._counted(known[1], line)
                self._add(known[0], line)
            elif isinstance(event, yaml.ScalarEvent):
                self._counted(1, line)
                scalar = self._scalar(event)
                if event.anchor:
                    self.anchors[event.anchor] = (scalar, 1)
                self._add(scalar, line)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                self._begin(event, line)
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                self._end(event)
        return self.done

    def _begin(self, event: Any, line: int) -> None:
        self._counted(1, line)
        if len(self.open) >= MAX_DEPTH:
            raise _RefusedError(f"more than {MAX_DEPTH} levels", line)
        node: Sequence | Mapping = (
            Sequence(items=[], line=line, last_line=line)
            if isinstance(event, yaml.SequenceStartEvent)
            else Mapping(items={}, lines={}, line=line, last_line=line)
        )
        self.open.append(_Open(node, event.anchor, event.start_mark.index))

    def _end(self, event: Any) -> None:
        opened = self.open.pop()
        node: Node = opened.node
        line = node.line
        # A block ends where the next thing starts; what it holds ends before.
        node.last_line = max([line, *_last_lines(opened.node)])
        if isinstance(opened.node, Mapping):
            _merge(opened.node, opened.merges)
            if self.text.startswith("{{", opened.start):
                written = self.text[opened.start : event.end_mark.index]
                node = Text(text=written, line=line, last_line=line, template=True)
        if opened.anchor:
            self.anchors[opened.anchor] = (node, _size(node))
        self._add(node, line)

    def _counted(self, nodes: int, line: int) -> None:
        self.count += nodes
        if self.count > MAX_NODES:
            raise _RefusedError(f"more than {MAX_NODES} values, with aliases written out", line)

    def _add(self, node: Node, line: int) -> None:
        if not self.open:
            self.root = node
            return
        top = self.open[-1]
        if isinstance(top.node, Sequence):
            top.node.items.append(node)
        elif top.key is None:
            # A template in the place of a key is one, like any other value that is no text.
            top.key = node if isinstance(node, Text) else Text(text="", line=line, last_line=line)
        else:
            key, top.key = top.key, None
            if key.text == "<<" and key.plain:
                top.merges.append(node)
                return
            if key.text in top.node.items:
                first = top.node.lines[key.text]
                self.problems.append((key.line, f"{key.text!r:.60} is given twice, first in line {first}"))
            top.node.items[key.text] = node
            top.node.lines[key.text] = key.line

    def _scalar(self, event: Any) -> Text:
        first, last = event.start_mark.line + 1, event.end_mark.line + 1
        text = event.value
        marks = None
        if event.style == _LITERAL:
            marks = lines_of(text, first + 1)
            last = first + text.count("\n")
        elif last > first:
            raw = self.text[event.start_mark.index : event.end_mark.index]
            marks = _aligned(text, raw, first)
        return Text(
            text=text,
            line=first,
            last_line=last,
            plain=event.style in (None, ""),
            template=text.startswith(("{{", "{%")),
            marks=marks,
        )


def _aligned(text: str, raw: str, line: int) -> Marks:
    """Return the lines of a text that was folded: what is no space stands in both in the same order."""
    marks: list[tuple[int, int | None]] = [(0, line)]
    at = 0
    for offset, character in enumerate(text):
        if character in " \n\t":
            continue
        found = raw.find(character, at)
        if found < 0:
            break
        breaks = raw.count("\n", at, found)
        if breaks:
            line += breaks
            marks.append((offset, line))
        at = found + 1
    return Marks(tuple(marks))


def _last_lines(node: Sequence | Mapping) -> Iterator[int]:
    if isinstance(node, Sequence):
        yield from (item.last_line for item in node.items)
    else:
        yield from node.lines.values()
        # An alias stands where its anchor is.
        yield from (item.last_line for item in node.items.values() if item.line >= node.line)


def _merge(node: Mapping, merges: list[Node]) -> None:
    """Take over what `<<` names: a mapping or a list of them; what is there already stays."""
    for merged in merges:
        for other in merged.items if isinstance(merged, Sequence) else [merged]:
            if isinstance(other, Mapping):
                for key, value in other.items.items():
                    if key not in node.items:
                        node.items[key] = value
                        node.lines[key] = other.lines[key]


def _size(node: Node) -> int:
    """Count the values of a node, aliases written out; what is too many is cut off."""
    count, stack = 0, [node]
    while stack and count <= MAX_NODES:
        count += 1
        one = stack.pop()
        if isinstance(one, Sequence):
            stack += one.items
        elif isinstance(one, Mapping):
            stack += one.items.values()
    return count
