"""Comments that ask to leave a rule out: `# kvwatch: ignore=RULE reason`. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Ignore, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvwatch.check.reading.given_files import GivenFile

_COMMENT = re.compile(
    r"(?:^|\s)[#;]\s*kvwatch:\s*ignore\s*=\s*([\w*-]+(?:,[\w*-]+)*)[ \t:]*(.*)$", re.MULTILINE
)


def read_ignores(file: GivenFile) -> list[Ignore]:
    """Return what a file's comments ask to leave out; the reason is empty where none is given."""
    ignores: list[Ignore] = []
    for match in _COMMENT.finditer(file.text):
        place = Place(file=file.name, line=file.text.count("\n", 0, match.start(1)) + 1)
        reason = match[2].strip()
        ignores += [Ignore(rule=rule, reason=reason, place=place) for rule in match[1].split(",")]
    return ignores


def nearest(
    ignore: Ignore, text: str, servers: Iterable[tuple[str, int | None, tuple[int, int] | None]]
) -> set[str]:
    """Return the servers of its file that a comment is about: `(name, line, span)` of each.

    Those in whose part of the file it stands; else those of the paragraph that it begins; else all of it.
    """
    line = ignore.place.line or 1
    servers = list(servers)
    around = [
        (last - first, name)
        for name, _, span in servers
        if span
        for first, last in [span]
        if first <= line <= last
    ]
    if around:
        smallest = min(around)[0]
        return {name for size, name in around if size == smallest}
    rows = text.split("\n")
    end = line
    while end < len(rows) and rows[end].strip() and rows[end].strip() != "---":
        end += 1
    if line < len(rows) and rows[line].strip() == "---":
        end = line + 1
    below = {name for name, at, span in servers if line <= (span[0] if span else at or 0) <= end + 1}
    same = {name for name, at, _ in servers if at == line}
    return same or below or {name for name, _, _ in servers}
