"""Take values out of YAML nodes: by path, as text, as words with their variables replaced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Place
from kvwatch.check.reading.expansion import Variables, expand, value_of
from kvwatch.check.reading.shell_lexer import split, whole
from kvwatch.check.reading.shell_tokens import WORDS_ONLY
from kvwatch.check.reading.words import Marks, Word, lines_of, unknown
from kvwatch.check.reading.yaml_nodes import Mapping, Node, Sequence, Text
from kvwatch.flags.secrets import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)


def at(node: Node | None, *path: str) -> Node | None:
    """Return what stands at a path of keys; None where there is nothing, or YAML's nothing."""
    for key in path:
        node = node.items.get(key) if isinstance(node, Mapping) else None
    return None if isinstance(node, Text) and node.is_null else node


def text_at(node: Node | None, *path: str) -> str | None:
    """Return the text at a path; None where there is none, or a template."""
    found = at(node, *path)
    return found.text if isinstance(found, Text) and not found.template else None


def items_at(node: Node | None, *path: str) -> list[Node]:
    """Return the items of the list at a path; none where there is no list."""
    found = at(node, *path)
    return found.items if isinstance(found, Sequence) else []


def keys_at(node: Node | None, *path: str) -> Iterator[tuple[str, Node, int]]:
    """Yield key, value and the key's line of the mapping at a path."""
    found = at(node, *path)
    if isinstance(found, Mapping):
        for key, value in found.items.items():
            yield key, value, found.lines[key]


def span(node: Node) -> tuple[int, int]:
    """Return the first and the last line of a node."""
    return node.line, node.last_line


def plain_word(node: Text, file: str) -> Word:
    """Return a scalar as one word, nothing replaced; what a template writes in it is unknown."""
    place = Place(file=file, line=node.line)
    if node.template or "{{" in node.text or "{%" in node.text:
        found = tuple(_shown(template) for template in _TEMPLATE.findall(node.text))
        # A template is put on one line here, so that the lines of the rest stay.
        text = _TEMPLATE.sub(lambda match: HIDDEN + "\n" * match[0].count("\n"), node.text)
        return Word(text=text, place=place, unresolved=found or (_shown(node.text),), marks=_kept(node, text))
    return Word(text=node.text, place=place, marks=node.marks)


def _kept(node: Text, text: str) -> Marks | None:
    """Return the lines of a text in which templates were replaced."""
    return lines_of(text, node.lines(0) or node.line) if "\n" in text else None


def interpolated(node: Text, variables: Variables, file: str) -> Word:
    """Return a scalar as one word with compose's variables replaced."""
    if node.template or "{{" in node.text or "{%" in node.text:
        return plain_word(node, file)
    return value_of(whole(node.text), variables, file, node.lines)


def words_of(node: Node | None, variables: Variables, file: str) -> list[Word] | None:
    """Return compose's `command` or `entrypoint`: a list of words, or text that is split at spaces.

    None where there is neither.
    """
    if isinstance(node, Text):
        if node.template:
            return [unknown(_shown(node.text), Place(file=file, line=node.line), is_open=True)]
        tokens = split(node.text, WORDS_ONLY)
        return [word for token in tokens for word in expand(token, variables, file, node.lines)]
    if isinstance(node, Sequence):
        return [interpolated(item, variables, file) for item in node.items if isinstance(item, Text)]
    return None


def _shown(template: str) -> str:
    return template if len(template) <= 60 else f"{template[:57]}..."  # noqa: PLR2004
