"""Follow a shell script far enough to know which commands it runs and with which variables; run nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Place
from kvwatch.check.reading.expansion import Variables, expand, value_of
from kvwatch.check.reading.shell_lexer import split
from kvwatch.check.reading.shell_tokens import Kind, Piece, Token
from kvwatch.check.reading.words import Word, either, lines_of, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvwatch.check.reading.words import Lines

MAX_COMMANDS = 5_000
MAX_ROUNDS = 16
"""Of one `for` whose words are known, as many as a machine has cards; with more its variable is unknown."""
MAX_LIST = 2_000
MAX_WORK = 100_000
"""Words that one script's expansions may come to, long ones counted by their length."""
MAX_NESTING = 12
"""Of loops and of files read by `source`."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_RANGE = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}", re.ASCII)
_SEPARATORS = frozenset({"\n", ";", "&", "&&", "||", "|", "|&", "(", ")", ";;", ";&", ";;&"})
_DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})
_TESTS = frozenset({"[", "[[", "test", "!", "grep", "command", "which", "type"})
_PASSED_OVER = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "{", "time"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that a script runs: its words, and the variables that it is given.

    Attributes:
        conditional: it runs only where a condition holds, which no file settles.

    """

    words: tuple[Word, ...]
    environ: Mapping[str, Word]
    conditional: bool = False


@dataclass(slots=True, kw_only=True)
class Script:
    """What following a script came to; `read` gives name and text of a file that it sources."""

    file: str
    lines: Lines
    variables: Variables = field(default_factory=Variables)
    exported: set[str] = field(default_factory=set)
    read: Callable[[str, str], tuple[str, str] | None] | None = None
    ran: list[Ran] = field(default_factory=list)
    commands: int = 0
    work: int = 0
    exports_all: bool = False
    nesting: int = 0

    @property
    def exhausted(self) -> bool:
        """Say whether the script does more than is followed here."""
        return self.commands > MAX_COMMANDS or self.work > MAX_WORK


def run_script(script: Script, text: str) -> list[Ran]:
    """Return the commands that a script's text runs, in order; `script.exhausted` where some are left out."""
    _Run(script).block(split(text))
    return script.ran


class _Run:
    """One block of a script: conditions change variables only for what stands inside them."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.outer: list[tuple[dict[str, Word], bool]] = []
        """Variables before each branch that is open, and whether it is one of several (not of a loop)."""

    def block(self, tokens: Sequence[Token]) -> None:
        position = 0
        start = 0
        joined = ""
        while position <= len(tokens):
            operator = tokens[position].operator if position < len(tokens) else "\n"
            if operator not in _SEPARATORS:
                position += 1
                continue
            words = tokens[start:position]
            if words and words[0].literal == "for":
                position = start = self._loop(tokens, start)
                joined = ""
                continue
            tested = self._command(words, conditional=joined in ("||", "test"))
            if operator == "&&":
                joined = "test" if tested or joined in ("||", "test") else ""
            else:
                joined = "||" if operator == "||" else ""
            if operator == ";;":
                self._leave()
                self._enter()
            position += 1
            start = position

    def _loop(self, tokens: Sequence[Token], start: int) -> int:
        """Run `for NAME in WORDS; do ...; done` once for each word; return the position behind it."""
        body = next((i for i in range(start, len(tokens)) if tokens[i].literal == "do"), len(tokens))
        end, depth = body, 0
        while end < len(tokens):
            word = tokens[end].literal
            depth += (word == "do") - (word == "done")
            if depth <= 0:
                break
            end += 1
        head = [token for token in tokens[start:body] if not token.operator]
        script = self.script
        name = (head[1].literal if len(head) > 1 else None) or "?"
        place = Place(file=script.file, line=script.lines(tokens[start].offset))
        values = self._loop_values(head[3:])
        if not values or len(values) > MAX_ROUNDS or script.nesting >= MAX_NESTING:
            values = [unknown(f"${name}", place)]
        script.nesting += 1
        for value in values:
            if script.exhausted:
                break
            script.variables.put(name, value)
            _Run(script).block(tokens[body + 1 : end])
        script.nesting -= 1
        return min(end + 1, len(tokens) + 1)

    def _loop_values(self, tokens: Sequence[Token]) -> list[Word]:
        values: list[Word] = []
        for token in tokens:
            match = _RANGE.fullmatch(token.literal or "")
            if match:
                first, last = int(match[1]), int(match[2])
                place = Place(file=self.script.file, line=self.script.lines(token.offset))
                count = range(first, min(last, first + MAX_ROUNDS) + 1)
                values += [Word(text=str(number), place=place) for number in count]
            else:
                values += self._expand(token)
        return [] if any(value.open or value.unresolved for value in values) else values

    def _command(self, tokens: Sequence[Token], *, conditional: bool) -> bool:
        """Run one simple command; say whether it is a test."""
        script = self.script
        script.commands += 1
        if script.exhausted:
            return False
        tokens = self._reserved(tokens)
        count = 0
        while count < len(tokens) and _assigned(tokens[count]) is not None:
            count += 1
        name = tokens[count].literal if count < len(tokens) else None
        if count == len(tokens):
            for token in tokens:
                self._assign(token, conditional=conditional)
        elif name in _DECLARING:
            for token in tokens[count + 1 :]:
                self._declare(token, exports=name == "export", conditional=conditional)
        elif name == "set":
            options = {token.literal for token in tokens}
            if options & {"-a", "allexport", "-ae", "-ea", "-eua"}:
                script.exports_all = "+o" not in options
            elif "+a" in options:
                script.exports_all = False
        elif name == "unset":
            for token in tokens[count + 1 :]:
                script.variables.values.pop(token.literal or "", None)
        elif name in ("source", "."):
            self._source(tokens[count + 1 :])
        else:
            self._record(tokens[:count], tokens[count:], conditional=conditional)
        return name in _TESTS

    def _reserved(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """Take the words off that open and close conditions."""
        while tokens:
            word = tokens[0].literal
            if word in ("then", "do"):
                self._enter(conditional=word == "then")
            elif word == "else":
                self._leave()
                self._enter()
            elif word in ("elif", "fi", "done", "esac"):
                self._leave()
            elif word == "case":
                self._enter()
                return ()
            if word in ("fi", "done", "esac", "}"):
                return ()
            if word not in _PASSED_OVER:
                break
            tokens = tokens[1:]
        return tokens

    def _enter(self, *, conditional: bool = True) -> None:
        if len(self.outer) < MAX_NESTING:
            self.outer.append((dict(self.script.variables.values), conditional))

    def _leave(self) -> None:
        """End a branch: what it set may have been set or not."""
        if not self.outer:
            return
        before, _ = self.outer.pop()
        now = self.script.variables.values
        for name in [name for name, value in now.items() if before.get(name) != value]:
            now[name] = either(name, before.get(name), now[name])

    def _assign(self, token: Token, *, conditional: bool) -> None:
        found = _assigned(token)
        if found is None:
            return
        name, adds, rest = found
        variables = self.script.variables
        if token.items is not None:
            items = [word for item in token.items for word in self._expand(item)]
            items = [*(variables.lists.get(name, ()) if adds else ()), *items]
            variables.lists[name] = tuple(items[:MAX_LIST])
            return
        value = value_of(rest, variables, self.script.file, self.script.lines)
        self.script.work += len(value.text) // 64
        if adds and name in variables.values:
            value = replace(value, text=variables.values[name].text + value.text)
        if conditional and variables.values.get(name) != value:
            value = either(name, variables.values.get(name), value)
        variables.put(name, value)
        if self.script.exports_all:
            self.script.exported.add(name)

    def _declare(self, token: Token, *, exports: bool, conditional: bool) -> None:
        found = _assigned(token)
        name = found[0] if found else token.literal
        if name is None:
            return
        if found:
            self._assign(token, conditional=conditional)
        if exports:
            self.script.exported.add(name)

    def _source(self, tokens: Sequence[Token]) -> None:
        """Go on with the commands of another file."""
        script = self.script
        words = [word for token in tokens[:1] for word in self._expand(token)]
        if not words or words[0].unresolved or script.read is None or script.nesting >= MAX_NESTING:
            return
        found = script.read(words[0].text, script.file)
        if found is None:
            return
        file, lines = script.file, script.lines
        script.file, text = found
        script.lines = lines_of(text)
        script.nesting += 1
        _Run(script).block(split(text))
        script.nesting -= 1
        script.file, script.lines = file, lines

    def _record(self, before: Sequence[Token], tokens: Sequence[Token], *, conditional: bool) -> None:
        script = self.script
        words = [word for token in tokens for word in self._expand(token)]
        if not words:
            return
        environ = {name: value for name, value in script.variables.values.items() if name in script.exported}
        for token in before:
            found = _assigned(token)
            if found is not None:
                name, _, rest = found
                environ[name] = value_of(rest, script.variables, script.file, script.lines)
        script.ran.append(
            Ran(
                words=tuple(words),
                environ=environ,
                conditional=conditional or any(branch for _, branch in self.outer),
            )
        )

    def _expand(self, token: Token) -> tuple[Word, ...]:
        words = expand(token, self.script.variables, self.script.file, self.script.lines, assigns=True)
        self.script.work += len(words) + sum(len(word.text) for word in words) // 64
        return words


def _assigned(token: Token) -> tuple[str, bool, Token] | None:
    """Return the name, whether it adds, and the value of `NAME=value`; None for another word."""
    first = token.pieces[0] if token.pieces else None
    if first is None or first.kind is not Kind.TEXT or first.quoted:
        return None
    match = _ASSIGNMENT.match(first.text)
    if match is None:
        return None
    rest = first.text[match.end() :]
    pieces: tuple[Piece, ...] = token.pieces[1:]
    if rest:
        pieces = (replace(first, text=rest, offset=first.offset + match.end()), *pieces)
    return match[1], bool(match[2]), Token(offset=token.offset, pieces=pieces)
