"""Split shell text into words and operators, quotes and expansions kept apart; also compose's and systemd's.

POSIX shell grammar with bash's arrays. What is not understood is opaque, never an error.
"""

from __future__ import annotations

import re

from kvwatch.check.reading.shell_tokens import (
    SHELL,
    WORDS_ONLY,
    Dialect,
    Kind,
    Piece,
    Token,
    end_of,
    moved,
)

MAX_DEPTH = 20
"""Of expansions inside expansions."""

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPECIAL = "@*#?$!-0123456789"
_BRACED = re.compile(r"([A-Za-z_]\w*|[@*0-9])(\[[@*]\])?(:?[-=?+])?", re.ASCII)
_OPERATOR = re.compile(r"\n|;;&?|;&|;|&&|&>>?|&|\|\||\|&|\||\(|\)|<<<|<<-?|<&|<>|<|>>|>&|>\||>")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)


def split(text: str, dialect: Dialect = SHELL) -> list[Token]:
    """Return the words and operators of a text."""
    return _Lexer(text, dialect).tokens()


def whole(text: str, dialect: Dialect = WORDS_ONLY) -> Token:
    """Return a text as one word, with its variables: quotes and spaces are part of it."""
    lexer = _Lexer(text, dialect)
    lexer.quoted_until("")
    return Token(offset=0, pieces=tuple(lexer.pieces))


class _Lexer:
    def __init__(self, text: str, dialect: Dialect, depth: int = 0) -> None:
        self.text = text
        self.dialect = dialect
        self.depth = depth
        self.at = 0
        self.pieces: list[Piece] = []
        self.heredocs: list[tuple[str, bool]] = []

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while self.at < len(self.text):
            token = self._next()
            if token is not None and (token.operator or token.pieces):
                found.append(token)
        return found

    def _next(self) -> Token | None:
        character = self.text[self.at]
        if character in " \t\r" or (character == "\n" and not self.dialect.operators):
            self.at += 1
            return None
        if self.text.startswith("\\\n", self.at):
            self.at += 2
            return None
        start = self.at
        if self.dialect.operators:
            if character == "#":
                self._skip_line()
                return None
            if self.text.startswith("((", self.at):
                self.at = end_of(self.text, "((", "))", self.at)
                return None
            match = _OPERATOR.match(self.text, self.at)
            if match and not self.text.startswith(("<(", ">("), self.at):
                self.at = match.end()
                return self._operator(match[0], start)
        return self._word()

    def _operator(self, operator: str, start: int) -> Token | None:
        if operator in ("<<", "<<-"):
            word = self._skipped_word()
            self.heredocs.append((word, operator == "<<-"))
            return None
        if operator[0] in "<>" or operator.startswith("&>"):
            self._skipped_word()
            return None
        if operator == "\n":
            for word, tabs in self.heredocs:
                self._skip_heredoc(word, tabs=tabs)
            self.heredocs.clear()
        return Token(offset=start, operator=operator)

    def _skipped_word(self) -> str:
        """Read the word behind a redirection, which is no word of the command."""
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        if self.text[self.at : self.at + 1] in ("", "\n"):
            return ""
        token = self._word()
        return "".join(piece.text for piece in token.pieces)

    def _skip_heredoc(self, word: str, *, tabs: bool) -> None:
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            line = self.text[self.at : end]
            self.at = min(end + 1, len(self.text))
            if (line.lstrip("\t") if tabs else line) == word:
                return

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _word(self) -> Token:
        start = self.at
        outer, self.pieces = self.pieces, []
        stops = " \t\n\r" + (";&|()<>" if self.dialect.operators else "")
        run = self.at
        while self.at < len(self.text):
            character = self.text[self.at]
            if character in stops:
                if self.at > start or character not in "<>":
                    break
                self._flush(run)
                self._opaque(end_of(self.text, "(", ")", self.at + 1))  # <(command)
                run = self.at
            elif character == "\\":
                self._flush(run)
                if self.text[self.at + 1 : self.at + 2] != "\n":
                    self._add(self.text[self.at + 1 : self.at + 2], self.at, quoted=True)
                self.at += 2
                run = self.at
            elif character in "'\"":
                self._flush(run)
                self.at += 1
                self.quoted_until(character)
                run = self.at
            elif character == "`" or self._starts_expansion():
                self._flush(run)
                self._expansion(quoted=False)
                run = self.at
            else:
                self.at += 1
        self._flush(run)
        self.at = min(self.at, len(self.text))
        pieces, self.pieces = self.pieces, outer
        text = pieces[0].text if len(pieces) == 1 else ""
        if self.dialect.operators:
            if _ARRAY.fullmatch(text) and self.text[self.at : self.at + 1] == "(":
                self.at += 1
                return Token(offset=start, pieces=tuple(pieces), items=tuple(self._items()))
            if text.isdecimal() and self.text[self.at : self.at + 1] in ("<", ">"):
                # A file descriptor's number belongs to the redirection behind it.
                return Token(offset=start)
        return Token(offset=start, pieces=tuple(pieces))

    def _items(self) -> list[Token]:
        items: list[Token] = []
        while self.at < len(self.text):
            token = self._next()
            if token is None or token.operator == "\n":
                continue
            if token.operator == ")":
                break
            if not token.operator:
                items.append(token)
        return items

    def quoted_until(self, quote: str) -> None:
        """Read up to the closing quote, or to the end where it is empty."""
        expands = quote != "'" or self.dialect.dollars
        begin = run = self.at
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == quote:
                break
            if character == "\n":
                self.at += 1
                self._flush(run, quoted=True)
                run = self.at
            elif (
                character == "\\"
                and quote == '"'
                and self.text[self.at + 1 : self.at + 2] in tuple('"\\$`\n')
            ):
                self._flush(run, quoted=True)
                if self.text[self.at + 1] != "\n":
                    self._add(self.text[self.at + 1], self.at, quoted=True)
                self.at += 2
                run = self.at
            elif expands and (self._starts_expansion() or (character == "`" and not self.dialect.dollars)):
                self._flush(run, quoted=True)
                self._expansion(quoted=True)
                run = self.at
            else:
                self.at += 1
        self._flush(run, quoted=True)
        if self.at == begin and quote:
            self._add("", begin, quoted=True)
        self.at += 1

    def _flush(self, run: int, *, quoted: bool = False) -> None:
        if self.at > run:
            self._add(self.text[run : self.at], run, quoted=quoted)

    def _add(self, text: str, offset: int, *, quoted: bool) -> None:
        self.pieces.append(Piece(text=text, offset=offset, quoted=quoted))

    def _starts_expansion(self) -> bool:
        if self.text[self.at] != "$":
            return False
        following = self.text[self.at + 1 : self.at + 2]
        return bool(following) and (following in "{(" + _SPECIAL or bool(_NAME.match(following)))

    def _expansion(self, *, quoted: bool) -> None:
        start = self.at
        if self.text[start] == "`":
            end = self.text.find("`", start + 1)
            self._opaque(len(self.text) if end < 0 else end + 1, quoted=quoted)
            return
        following = self.text[start + 1]
        if following == "$" and self.dialect.dollars:
            self._add("$", start, quoted=quoted)
            self.at += 2
        elif following == "{":
            self._braced(quoted=quoted)
        elif following == "(":
            if self.dialect.dollars:
                self._add("$(", start, quoted=quoted)
                self.at += 2
            else:
                self._opaque(end_of(self.text, "(", ")", start + 1), quoted=quoted)
        elif following in _SPECIAL:
            self._variable(following, start + 2, quoted=quoted, many=following in "@*")
        else:
            match = _NAME.match(self.text, start + 1)
            if match is not None:
                self._variable(match[0], match.end(), quoted=quoted)

    def _braced(self, *, quoted: bool) -> None:
        start = self.at
        end = end_of(self.text, "{", "}", start + 1)
        inside = self.text[start + 2 : end - 1]
        match = _BRACED.match(inside)
        rest = inside[match.end() :] if match else inside
        if match is None or (rest and not match[3]) or self.depth >= MAX_DEPTH:
            self._opaque(end, quoted=quoted)
            return
        argument: tuple[Piece, ...] = ()
        if match[3]:
            inner = _Lexer(rest, self.dialect, self.depth + 1)
            inner.argument()
            begin = start + 2 + match.end()
            argument = tuple(moved(piece, begin) for piece in inner.pieces)
        self._variable(
            match[1],
            end,
            quoted=quoted,
            many=bool(match[2]) or match[1] in "@*",
            operator=match[3] or "",
            argument=argument,
        )

    def argument(self) -> None:
        """Read a text as what stands behind `:-`: quotes and expansions, spaces kept."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\n":
                self._add(self.text[self.at], self.at, quoted=False)
                self.at += 1
                continue
            before = self.at
            words = _Lexer(self.text, Dialect(operators=False, dollars=self.dialect.dollars), self.depth)
            words.at = self.at
            self.pieces += words._word().pieces
            self.at = max(words.at, before + 1)

    def _variable(
        self,
        name: str,
        end: int,
        *,
        quoted: bool,
        many: bool = False,
        operator: str = "",
        argument: tuple[Piece, ...] = (),
    ) -> None:
        self.pieces.append(
            Piece(
                text=name,
                offset=self.at,
                kind=Kind.VARIABLE,
                quoted=quoted,
                operator=operator,
                argument=argument,
                many=many,
                written=self.text[self.at : end],
            )
        )
        self.at = end

    def _opaque(self, end: int, *, quoted: bool = False) -> None:
        written = self.text[self.at : end]
        self.pieces.append(
            Piece(text=written, offset=self.at, kind=Kind.OPAQUE, quoted=quoted, written=written)
        )
        self.at = end
