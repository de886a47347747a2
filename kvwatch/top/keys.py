"""Keys move about in what is shown. Pure: a state and a key give a state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kvwatch.top.order import Sort

if TYPE_CHECKING:
    from kvwatch.top.screen import Screen

_LONGEST_FILTER = 60


class Page(StrEnum):
    """What fills the screen."""

    OVERVIEW = "overview"
    SERVER = "server"
    CARDS = "cards"
    FINDINGS = "findings"
    UNKNOWNS = "unknowns"
    HELP = "help"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where the reader is."""

    page: Page = Page.OVERVIEW
    selected: str = ""
    """A server's name: it stays selected wherever it moves to. Empty: whichever is first."""
    sort: Sort = Sort.WORST
    backwards: bool = False
    filter: str = ""
    typing: bool = False
    """Whether keys go to the filter."""
    scroll: int = 0
    ended: bool = False


_PAGES = {
    "?": Page.HELP,
    "h": Page.HELP,
    "c": Page.CARDS,
    "f": Page.FINDINGS,
    "u": Page.UNKNOWNS,
    "o": Page.OVERVIEW,
}
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1}
_BACK = {"esc", "backspace", "left", "q"}


def press(state: State, key: str, screen: Screen) -> State:
    """Return the state after one key; `screen` is what the reader saw when it was pressed.

    A key is a character, or a name such as `up`, `enter`, `esc`.
    """
    if state.typing:
        return _typed(state, key)
    if key == "Q" or (key == "q" and state.page is Page.OVERVIEW):
        return replace(state, ended=True)
    if key in _PAGES:
        page = _PAGES[key]
        # The same key once more leads back.
        return replace(state, page=Page.OVERVIEW if page is state.page else page, scroll=0)
    return _on_overview(state, key, screen) if state.page is Page.OVERVIEW else _on_page(state, key, screen)


def _typed(state: State, key: str) -> State:
    if key == "enter":
        return replace(state, typing=False)
    if key == "esc":
        return replace(state, typing=False, filter="")
    if key == "backspace":
        return replace(state, filter=state.filter[:-1], typing=bool(state.filter))
    if len(key) == 1 and key.isprintable():
        return replace(state, filter=(state.filter + key)[:_LONGEST_FILTER])
    return state


def _on_overview(state: State, key: str, screen: Screen) -> State:
    if key in ("enter", "right"):
        shown = _selected(state, screen)
        return replace(state, page=Page.SERVER, selected=shown, scroll=0) if shown else state
    if key == "/":
        return replace(state, typing=True)
    if key == "esc":
        return replace(state, filter="")
    if key == "s":
        sorts = list(Sort)
        return replace(state, sort=sorts[(sorts.index(state.sort) + 1) % len(sorts)])
    if key == "r":
        return replace(state, backwards=not state.backwards)
    if key in ("home", "g"):
        return replace(state, selected="")
    steps = {
        **_MOVES,
        "pgup": -screen.page_rows,
        "pgdn": screen.page_rows,
        "end": len(screen.names),
        "G": len(screen.names),
    }
    return replace(state, selected=_beside(state, screen, steps[key])) if key in steps else state


def _on_page(state: State, key: str, screen: Screen) -> State:
    if key in _BACK:
        return replace(state, page=Page.OVERVIEW, scroll=0)
    if key in ("n", "p") and state.page is Page.SERVER:
        return replace(state, selected=_beside(state, screen, 1 if key == "n" else -1), scroll=0)
    steps = {**_MOVES, "pgup": -screen.page_rows, "pgdn": screen.page_rows, " ": screen.page_rows}
    steps |= dict.fromkeys(("home", "g"), -screen.scroll_limit) | dict.fromkeys(
        ("end", "G"), screen.scroll_limit
    )
    if key not in steps:
        return state
    here = min(state.scroll, screen.scroll_limit)
    return replace(state, scroll=min(max(0, here + steps[key]), screen.scroll_limit))


def _selected(state: State, screen: Screen) -> str:
    if state.selected in screen.names:
        return state.selected
    return screen.names[0] if screen.names else ""


def _beside(state: State, screen: Screen, step: int) -> str:
    """Return the server `step` places further on, or the last one in that direction."""
    if not screen.names:
        return state.selected
    at = screen.names.index(_selected(state, screen)) + step
    return screen.names[min(max(0, at), len(screen.names) - 1)]
