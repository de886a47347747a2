"""What every format is turned into: a command, with all around it that decides its memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.check.declaration import Place
    from kvwatch.check.reading.words import Word


class Sight(Enum):
    """Which devices of its machine a start can see."""

    UNSAID = "unsaid"
    """Nothing says it."""
    ALL = "all"
    LISTED = "listed"
    OWN = "own"
    """Whole devices that nobody else gets; which ones is decided later."""
    UNKNOWN = "unknown"
    """Something says it that cannot be settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices that a container or a command is given.

    Attributes:
        names: indexes or UUIDs where they are listed.
        count: how many where they are its own.
        node: the machine, where it is fixed.

    """

    sight: Sight = Sight.UNSAID
    names: tuple[str, ...] = ()
    count: int = 0
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or a file of a container; `host` is None where what is behind it is not on this machine."""

    inside: str
    host: str | None = None
    texts: Mapping[str, tuple[str, Place]] = field(default_factory=dict)
    """File name -> its content and where that begins, where a manifest holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One command that a file would run.

    Attributes:
        name: as the file calls it; empty where it does not.
        words: the whole command, an image's own entrypoint included.
        environ: variables that it is given.
        missing_environment: files of variables that are not at hand: any variable may be set.
        version: the engine's release, as an image's tag states it.
        span: first and last line of what the file says of it.
        contained: it runs in a container, so that paths are the container's.

    """

    name: str
    place: Place
    words: tuple[Word, ...]
    environ: Mapping[str, Word] = field(default_factory=dict)
    missing_environment: tuple[str, ...] = ()
    version: tuple[int, ...] | None = None
    devices: Devices = Devices()
    mounts: tuple[Mount, ...] = ()
    contained: bool = False
    replicas: int = 1
    profiles: tuple[str, ...] = ()
    """Compose's: it starts only where one of them is asked for."""
    span: tuple[int, int] | None = None
    model_path: str | None = None
    """Where kvwatch's own configuration names the model's file."""
    script: str | None = None
    """The script that was read by itself; None where something else runs it."""
