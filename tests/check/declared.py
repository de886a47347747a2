"""What the readers make of texts: declarations of files that exist in a test only."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kvwatch.check.reading.declare import Given, declare
from kvwatch.check.reading.given_files import GivenFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.check.declaration import Declaration, DeclaredServer


def declared(**texts: str) -> Declaration:
    """Return what files declare; `start__sh` is the file start.sh."""
    return declared_files({name.replace("__", "."): text for name, text in texts.items()})


def declared_files(texts: Mapping[str, str], given: Given | None = None) -> Declaration:
    """Return what files declare, by name; texts may be indented."""
    files = {name: GivenFile(name=name, text=textwrap.dedent(text)) for name, text in texts.items()}
    return declare(files, given or Given())


def only(declaration: Declaration) -> DeclaredServer:
    """Return the one server."""
    [server] = declaration.servers
    return server


def stated(server: DeclaredServer) -> dict[str, Any]:
    """Return what the server was told, by field."""
    return {name: getattr(server.launch, name) for name in sorted(server.launch.stated)}


def lines(server: DeclaredServer) -> dict[str, int | None]:
    """Return the line in which each field is set."""
    return {name: place.line for name, place in server.places.items() if not name.startswith("-")}


def messages(declaration: Declaration) -> list[str]:
    """Return what could not be read, with its place."""
    return [f"{one.place.file}:{one.place.line}: {one.message}" for one in declaration.problems]
