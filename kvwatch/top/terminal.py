"""The terminal: draws lines, reads keys, and is left as it was found. The only place that knows curses."""

from __future__ import annotations

import contextlib
import curses
import locale
import os
import sys
from typing import TYPE_CHECKING, Self

from kvwatch.top.cells import Style, width
from kvwatch.top.glyphs import ASCII, UNICODE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from kvwatch.top.cells import Line
    from kvwatch.top.glyphs import Glyphs

_ESCAPE_DELAY_MS = 100
"""For how long an Escape may be the beginning of an arrow key: a slow ssh sends them in pieces."""
_SPARE_TYPES = ("xterm-256color", "xterm", "vt100")
"""Tried where this machine does not know the terminal's own type: newer than its terminfo, as over ssh."""
_MANY_COLOURS = 256

# Okabe and Ito's palette, made to be told apart by every kind of colour vision: nearest of the 256, of the 8.
_BLUE, _ORANGE, _SKY, _GREEN, _YELLOW, _RED, _PURPLE = 32, 172, 74, 36, 178, 166, 175
_COLOURS: Mapping[Style, tuple[int, int]] = {
    Style.BAD: (_RED, curses.COLOR_RED),
    Style.WARN: (_ORANGE, curses.COLOR_YELLOW),
    Style.GOOD: (_GREEN, curses.COLOR_CYAN),
    Style.UNKNOWN: (_PURPLE, curses.COLOR_MAGENTA),
    Style.ALARM: (_RED, curses.COLOR_RED),
    Style.KV_CACHE: (_BLUE, curses.COLOR_BLUE),
    Style.WEIGHTS: (_ORANGE, curses.COLOR_YELLOW),
    Style.WORKING: (_YELLOW, curses.COLOR_YELLOW),
    Style.OTHER: (_PURPLE, curses.COLOR_MAGENTA),
    Style.ORPHAN: (_RED, curses.COLOR_RED),
    Style.RESERVED: (_SKY, curses.COLOR_CYAN),
}
_WEIGHTS: Mapping[Style, int] = {
    Style.TITLE: curses.A_BOLD,
    Style.BAD: curses.A_BOLD,
    Style.WARN: curses.A_BOLD,
    Style.ALARM: curses.A_BOLD | curses.A_REVERSE,
    Style.KEYS: curses.A_REVERSE,
    Style.ORPHAN: curses.A_BOLD,
    Style.DIM: curses.A_DIM,
}
_KEYS: Mapping[int, str] = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_LEFT: "left",
    curses.KEY_RIGHT: "right",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
    curses.KEY_PPAGE: "pgup",
    curses.KEY_NPAGE: "pgdn",
    curses.KEY_ENTER: "enter",
    curses.KEY_BACKSPACE: "backspace",
}
_CHARACTERS = {
    "\n": "enter",
    "\r": "enter",
    "\x1b": "esc",
    "\x7f": "backspace",
    "\b": "backspace",
    "\f": "redraw",
}


class TerminalError(Exception):
    """There is no terminal that can be drawn on; the message is for the reader."""


class Terminal:
    """The screen for as long as a `with` lasts.

    Args:
        glyphs: the characters to draw with.
        colour: whether colours may be used.

    Raises:
        TerminalError: on entering, where there is no terminal or it cannot place text.

    """

    def __init__(self, glyphs: Glyphs, *, colour: bool) -> None:
        self.glyphs = glyphs
        self._colour = colour
        self._attributes: dict[Style, int] = {}
        self._window: curses.window | None = None

    def __enter__(self) -> Self:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise TerminalError("kvwatch top needs a terminal; `kvwatch once` prints one look at everything")
        _set_up_locale(self.glyphs)
        _set_up_type()
        sys.stdout.flush()
        self._window = curses.initscr()
        try:
            self._set_up(self._window)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _set_up(self, window: curses.window) -> None:
        curses.noecho()
        curses.cbreak()
        curses.nonl()
        curses.set_escdelay(_ESCAPE_DELAY_MS)
        window.keypad(True)  # noqa: FBT003 - curses takes it so
        window.nodelay(True)  # noqa: FBT003
        with contextlib.suppress(curses.error):  # a terminal without it shows its cursor
            curses.curs_set(0)
        self._attributes = {style: _WEIGHTS.get(style, curses.A_NORMAL) for style in Style}
        if self._colour and curses.tigetnum("colors") > 1:
            self._add_colours()

    def _add_colours(self) -> None:
        curses.start_color()
        background = -1
        try:
            curses.use_default_colors()
        except curses.error:
            background = curses.COLOR_BLACK
        many = _MANY_COLOURS <= curses.COLORS
        for pair, (style, (of_many, of_few)) in enumerate(_COLOURS.items(), start=1):
            with contextlib.suppress(curses.error):  # that style stays without a colour
                curses.init_pair(pair, of_many if many else of_few, background)
                self._attributes[style] |= curses.color_pair(pair)

    def _close(self) -> None:
        """Put the terminal back; one that has gone needs nothing any more."""
        with contextlib.suppress(curses.error):
            if self._window is not None:
                self._window.keypad(False)  # noqa: FBT003
            curses.nocbreak()
            curses.echo()
        with contextlib.suppress(curses.error):
            curses.endwin()
        self._window = None

    def size(self) -> tuple[int, int]:
        """Return columns and rows; (80, 24) where the terminal does not tell."""
        try:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return 80, 24
        return (columns, rows) if columns > 0 and rows > 0 else (80, 24)

    def resized(self) -> None:
        """Take up the size that the terminal has now."""
        columns, rows = self.size()
        if self._window is not None:
            with contextlib.suppress(curses.error):
                curses.resizeterm(rows, columns)
            self._window.clearok(True)  # noqa: FBT003

    def pause(self) -> None:
        """Hand the terminal back for a while, as for Ctrl-Z."""
        curses.endwin()

    def resume(self) -> None:
        """Take the terminal again and draw everything anew at the next `draw`."""
        if self._window is not None:
            curses.reset_prog_mode()
            self.resized()

    def redraw(self) -> None:
        """Draw everything anew at the next `draw`: another program may have written on the screen."""
        if self._window is not None:
            self._window.clearok(True)  # noqa: FBT003

    def draw(self, lines: tuple[Line, ...]) -> None:
        """Draw the lines from the top."""
        window = self._window
        if window is None:
            return
        window.erase()
        _, columns = window.getmaxyx()
        for at, line in enumerate(lines):
            # The last cell of the last line scrolls on some terminals, and a resize may be under way.
            with contextlib.suppress(curses.error):
                window.move(at, 0)
                self._draw_line(window, line, columns)
        window.refresh()

    def _draw_line(self, window: curses.window, line: Line, columns: int) -> None:
        flag = curses.A_REVERSE if line.selected else 0
        attribute = curses.A_NORMAL
        for span in line.spans:
            attribute = self._attributes[span.style] | flag
            window.addstr(span.text, attribute)
        if line.filled or line.selected:
            # Not by the cursor: after the last cell of a line it is on the next one.
            window.addstr(" " * (columns - width(line.text)), attribute)

    def keys(self) -> list[str]:
        """Return the keys pressed since the last call: characters, and names such as `up`."""
        pressed: list[str] = []
        window = self._window
        while window is not None:
            try:
                key = window.get_wch()
            except (curses.error, UnicodeError):  # none left; or bytes that are no character
                break
            name = _KEYS.get(key) if isinstance(key, int) else _CHARACTERS.get(key, key)
            if name is not None:
                pressed.append(name)
        return pressed


def glyphs_for(asked: str, environment: Mapping[str, str]) -> Glyphs:
    """Return the characters that were asked for; with `auto` Unicode only where the locale says UTF-8."""
    if asked != "auto":
        return ASCII if asked == "ascii" else UNICODE
    name = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or "C"
    return UNICODE if name.lower().replace("-", "").endswith(("utf8", ".utf8@euro")) else ASCII


def first_environment() -> Mapping[str, str]:
    """Return the environment that this process was started with.

    With LANG=C Python itself sets LC_CTYPE=C.UTF-8 (PEP 538): what the terminal shows is not known by that.
    """
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - as short as can be
            pairs = file.read().decode("utf-8", errors="replace").split("\0")
    except OSError:
        return os.environ
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _set_up_locale(glyphs: Glyphs) -> None:
    """Set the locale by which curses turns characters into bytes."""
    for name in ("", "C.UTF-8"):
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, name)
            if glyphs.ascii_only or locale.nl_langinfo(locale.CODESET).upper() == "UTF-8":
                return


def _set_up_type() -> None:
    """Find out what the terminal can do, before curses would end the process for want of it."""
    own = os.environ.get("TERM", "")
    for name in (own, *_SPARE_TYPES) if own not in ("", "dumb") else ():
        try:
            curses.setupterm(name)
        except curses.error:
            continue
        if curses.tigetstr("cup"):
            os.environ["TERM"] = name
            return
        break
    raise TerminalError(
        f"the terminal (TERM={own}) cannot place text; `kvwatch once` prints one look at everything"
    )
