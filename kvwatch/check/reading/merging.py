"""Give servers their names, and join what two files say of the same one. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.declaration import DeclaredServer
    from kvwatch.check.reading.settle import Settled
    from kvwatch.flags.launch import Launch

_SPELLED = {"share_ratio": "share", "pin_bytes": "kv_cache_memory_bytes"}
"""Fields that kvwatch's configuration spells otherwise."""


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

    What a command states, and what it takes by default, goes before what the configuration states: the
    command is what starts. Other servers of the configuration come last.
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
        if field.name in more.stated and not _decided(launch, field.name)
    }
    places = {name: where for name, where in other.server.places.items() if not _decided(launch, name)}
    places |= one.server.places
    launch = replace(
        launch,
        stated=launch.stated | added.keys(),
        defaulted=launch.defaulted - added.keys(),
        **added,
    )
    server: DeclaredServer = replace(one.server, launch=launch, places=places)
    start = replace(one.start, model_path=other.start.model_path or one.start.model_path)
    return replace(one, server=server, start=start)


def overruled(settled: Sequence[Settled], own: Sequence[Settled]) -> list[Problem]:
    """Return what the configuration says of servers whose commands decide it otherwise."""
    problems = []
    for one in settled:
        same = next((other for other in own if other.server.name == one.server.name), None)
        if same is None:
            continue
        launch, more = one.server.launch, same.server.launch
        for name in sorted(more.stated, key=lambda name: same.server.where(name).line or 0):
            value = getattr(launch, name)
            if not _decided(launch, name) or value == getattr(more, name):
                continue
            if name in launch.stated and value is None:
                continue  # told as not known
            how = "states another" if name in launch.stated else "states none and takes the default"
            key = _SPELLED.get(name, name)
            message = f"{key} is not taken from here: the command of {one.server.name} {how}"
            problems.append(Problem(place=same.server.where(name), message=message))
    return problems


def _decided(launch: Launch, name: str) -> bool:
    """Tell whether a command settles a field, by what it states or by leaving it at the default."""
    if name in launch.stated or name in launch.defaulted:
        return True
    # The share's default differs by release: where that is not known, it is one of two.
    return name == "share_ratio" and "pin_bytes" in launch.defaulted


def _served(one: Settled) -> tuple[str, ...]:
    launch = one.server.launch
    return (launch.served_names or ()) if "served_names" in launch.stated else ()


def _stem(file: str) -> str:
    name = file.rpartition("/")[2]
    return name.partition(".")[0] or name
