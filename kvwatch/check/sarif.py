"""A check as SARIF 2.1.0, which code scanning and editors read."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kvwatch import __version__
from kvwatch.check.rules import RULES
from kvwatch.check.verdict import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.declaration import Declaration, Place
    from kvwatch.check.rule import Rule
    from kvwatch.check.verdict import Finding

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_PAGES = "https://example.com/kvwatch/docs/checks"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def sarif(declaration: Declaration, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return one run with all rules; ignored findings are suppressed results with their reason."""
    index = {rule.id: number for number, rule in enumerate(RULES)}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kvwatch check",
                        "version": __version__,
                        "informationUri": f"{_PAGES}/README.md",
                        "rules": [_rule(rule) for rule in RULES],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {
                                "level": "warning",
                                "message": {"text": problem.message},
                                "locations": [_location(problem.place)],
                            }
                            for problem in declaration.problems
                        ],
                    }
                ],
                "results": [_result(finding, index[finding.rule]) for finding in findings],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.id.split("-")),
        "shortDescription": {"text": rule.summary},
        "helpUri": f"{_PAGES}/{rule.id}.md",
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [_location(finding.place)],
        "properties": {
            "card": finding.card,
            "servers": list(finding.servers),
            "numbers": dict(finding.numbers),
        },
    }
    if finding.ignored is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.ignored}]
    return result


def _location(place: Place) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(place.file)}}
    if place.line is not None:
        physical["region"] = {"startLine": place.line}
    return {"physicalLocation": physical}


def _uri(file: str) -> str:
    """Return a path as a URI reference: relative as it was given, absolute with its scheme."""
    path = PurePosixPath(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
