"""Give servers their names, and join what two files say of the same one. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.declaration import DeclaredServer
    from kvwatch.check.reading.settle import Settled


def named(settled: Sequence[Settled]) -> list[Settled]:
    """Return the servers with names that are unique in the run.

    A server without a name of its own has its file's stem; where a file has several, what each serves, else
    its number.
    """
    by_file = Counter(one.server.place.file for one in settled if not one.server.name)
    served = Counter(name for one in settled for name in _served(one))
    numbers: Counter[str] = Counter()
    wanted: list[str] = []
    for one in settled:
        name = one.server.name
        if not name:
            stem = _stem(one.server.place.file)
            numbers[one.server.place.file] += 1
            number = f"{stem}-{numbers[one.server.place.file]}"
            own = next((label for label in _served(one) if served[label] == 1), number)
            name = stem if by_file[one.server.place.file] == 1 else own
        wanted.append(name)
    twice = Counter(wanted)
    chosen = Counter(one.server.name for one in settled)
    taken: set[str] = set()
    result: list[Settled] = []
    for one, name in zip(settled, wanted, strict=True):
        # Of equal names the one that a file gives stays as it is.
        keeps = twice[name] == 1 or (one.server.name == name and chosen[name] == 1)
        unique = name if keeps else f"{_stem(one.server.place.file)}/{name}"
        count = 1
        while unique in taken:
            count += 1
            unique = f"{name}-{count}"
        taken.add(unique)
        result.append(replace(one, server=replace(one.server, name=unique)))
    return result


def merged(settled: Sequence[Settled], own: Sequence[Settled]) -> list[Settled]:
    """Return the servers with what kvwatch's configuration adds to those of the same name or port.

    What a command states goes before what the configuration states; other servers of it come last.
    """
    rest = list(own)
    result: list[Settled] = []
    for one in settled:
        same = next((other for other in rest if other.server.name == one.server.name), None)
        if same is not None:
            rest.remove(same)
            one = _joined(one, same)  # noqa: PLW2901
        result.append(one)
    return [*result, *rest]


def _joined(one: Settled, other: Settled) -> Settled:
    launch, more = one.server.launch, other.server.launch
    added = {
        field.name: getattr(more, field.name)
        for field in fields(more)
        if field.name in more.stated and field.name not in launch.stated
    }
    launch = replace(
        launch,
        stated=launch.stated | added.keys(),
        defaulted=launch.defaulted - added.keys(),
        **added,
    )
    places = {**other.server.places, **one.server.places}
    server: DeclaredServer = replace(one.server, launch=launch, places=places)
    start = replace(one.start, model_path=other.start.model_path or one.start.model_path)
    return replace(one, server=server, start=start)


def _served(one: Settled) -> tuple[str, ...]:
    launch = one.server.launch
    return (launch.served_names or ()) if "served_names" in launch.stated else ()


def _stem(file: str) -> str:
    name = file.rpartition("/")[2]
    return name.partition(".")[0] or name
