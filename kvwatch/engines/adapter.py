"""What an engine's module provides: which pages to fetch, and a pure function that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.readings import Page, Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvwatch.readings import EngineReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One engine.

    Attributes:
        name: value of the `engine` label and of the configuration key.
        first_path: the page that is fetched first, and that `recognises` is asked about.
        recognises: whether the body of `first_path` is this engine's.
        next_path: given the pages fetched so far, the next one to fetch, or None when there is enough.
            It decides what may be asked of a server at all, so it never names a page that does harm.
        read: the pages as one reading; raises SourceError when they do not make one.

    """

    name: str
    first_path: str
    recognises: Callable[[str], bool]
    next_path: Callable[[Mapping[str, Page]], str | None]
    read: Callable[[Mapping[str, Page]], EngineReading]


def required_body(pages: Mapping[str, Page], path: str) -> str:
    """Return the body of a page without which there is no reading; raise its reason otherwise."""
    page = pages.get(path)
    if page is None:
        raise SourceError(Reason.INTERNAL_ERROR, f"{path} was not fetched")
    if page.body is None:
        raise SourceError(page.reason or Reason.INTERNAL_ERROR, f"{path}: {page.detail}")
    return page.body
