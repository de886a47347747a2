"""vLLM's `--config` files: recognised by their keys, read by the flag readers, located here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Place
from kvwatch.check.reading.starts import Start
from kvwatch.check.reading.words import Word
from kvwatch.check.reading.yaml_nodes import Mapping, Node, read_documents
from kvwatch.flags.placement import config_fields, is_config_key
from kvwatch.flags.secrets import HIDDEN

if TYPE_CHECKING:
    from kvwatch.check.reading.given_files import GivenFile
    from kvwatch.check.reading.words import Lines

_TEMPLATE = re.compile(r"\{\{.*?\}\}")
_TEMPLATE_VALUE = re.compile(r"(:[ \t]+)\{\{.*?\}\}(?=[ \t]*(?:#.*)?$)", re.MULTILINE)


def is_engine_config(document: Node) -> bool:
    """Say whether a document looks like what `vllm serve --config` reads: most keys are its options."""
    if not isinstance(document, Mapping) or not document.items:
        return False
    known = sum(is_config_key(key) for key in document.items)
    return known * 2 > len(document.items)


def start_of_config(file: GivenFile, document: Node) -> Start:
    """Return the server that a configuration file by itself would start."""
    place = Place(file=file.name, line=1)
    words = tuple(Word(text=text, place=place) for text in ("vllm", "serve", "--config", file.name))
    first = min(document.lines.values(), default=1) if isinstance(document, Mapping) else 1
    return Start(
        name="",
        place=Place(file=file.name, line=first),
        words=words,
        span=(1, file.text.count("\n") + 1),
    )


def config_keys(text: str, file: str, lines: Lines, places: dict[str, Place]) -> None:
    """Fill in where the keys of a file set fields; what stands there already wins over the file."""
    documents, _ = read_documents(text, file)
    document = documents[0] if documents else None
    if not isinstance(document, Mapping):
        return
    starts = [0]
    for row in text.split("\n"):
        starts.append(starts[-1] + len(row) + 1)
    for key, line in document.lines.items():
        offset = starts[min(line - 1, len(starts) - 1)]
        for name in config_fields(key) or (f"--{key.replace('_', '-')}",):
            places.setdefault(name, Place(file=file, line=lines(offset)))


def without_templates(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Return a file with its templates (`{{ ... }}`) as values that are not known, and where they stood."""
    found = [(match.start(), match[0]) for match in _TEMPLATE.finditer(text)]
    if not found:
        return text, []
    # By itself it has to be put in quotes: a star begins an alias.
    text = _TEMPLATE_VALUE.sub(rf'\1"{HIDDEN}"', text)
    return _TEMPLATE.sub(HIDDEN, text), found
