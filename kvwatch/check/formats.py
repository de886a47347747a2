"""The forms in which a check is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvwatch.check.document import document
from kvwatch.check.sarif import sarif
from kvwatch.check.text import render_text
from kvwatch.check.verdict import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.declaration import Declaration
    from kvwatch.check.verdict import Finding

FORMATS = ("text", "json", "github", "sarif")
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render(declaration: Declaration, findings: Sequence[Finding], form: str) -> str:
    """Return a check in one of `FORMATS`, with a newline at its end where it is not empty."""
    match form:
        case "json":
            return json.dumps(document(declaration, findings), indent=2) + "\n"
        case "sarif":
            return json.dumps(sarif(declaration, findings), indent=2) + "\n"
        case "github":
            return _annotations(declaration, findings)
    return render_text(declaration, findings)


def _annotations(declaration: Declaration, findings: Sequence[Finding]) -> str:
    """Return workflow commands of GitHub Actions, one a line; what is ignored is left out."""
    lines = [
        _annotation("warning", problem.place.file, problem.place.line, "kvwatch", problem.message)
        for problem in declaration.problems
    ]
    lines += [
        _annotation(
            _COMMANDS[finding.severity],
            finding.place.file,
            finding.place.line,
            f"kvwatch {finding.rule}",
            finding.message,
        )
        for finding in findings
        if finding.ignored is None
    ]
    return "".join(f"{line}\n" for line in lines)


def _annotation(command: str, file: str, line: int | None, title: str, message: str) -> str:
    properties = f"file={_property(file)}" + ("" if line is None else f",line={line}")
    return f"::{command} {properties},title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    """Escape what ends a command (actions/toolkit, packages/core/src/command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
