"""Findings that a file asks to leave out, and requests that are wrong themselves."""

from __future__ import annotations

import difflib
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kvwatch.check.verdict import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvwatch.check.declaration import Declaration, Ignore

WITHOUT_REASON = "ignore-without-reason"
UNUSED = "ignore-unused"


def apply_ignores(
    declaration: Declaration, findings: Sequence[Finding], severities: Mapping[str, Severity]
) -> tuple[Finding, ...]:
    """Mark the findings that a file asks to leave out, and add those about the requests.

    A request holds for findings that name a server near which it stands. One without a reason holds for
    nothing. `severities` are those of all rules by id.
    """
    near: dict[Ignore, set[str]] = {}
    for server in declaration.servers:
        for ignore in server.ignores:
            near.setdefault(ignore, set()).add(server.name)
    used: set[Ignore] = set()
    marked = []
    for finding in findings:
        match = _match(finding, near)
        if match is not None:
            used.add(match)
        marked.append(finding if match is None else replace(finding, ignored=match.reason))
    return (*marked, *_complaints(near, used, severities))


def _match(finding: Finding, near: Mapping[Ignore, set[str]]) -> Ignore | None:
    for ignore, servers in near.items():
        if (
            fnmatchcase(finding.rule, ignore.rule)
            and ignore.reason.strip()
            and servers.intersection(finding.servers)
        ):
            return ignore
    return None


def _complaints(
    near: Mapping[Ignore, set[str]], used: set[Ignore], severities: Mapping[str, Severity]
) -> Iterator[Finding]:
    for ignore, servers in near.items():
        if not ignore.reason.strip():
            rule, message = (
                WITHOUT_REASON,
                (
                    f"{ignore.rule} is to be ignored without a reason, so it is not: write why, as in"
                    f" `# kvwatch: ignore={ignore.rule} both start one after the other`."
                ),
            )
        elif ignore not in used:
            rule, message = UNUSED, _unused(ignore, severities)
        else:
            continue
        yield Finding(
            rule=rule,
            severity=severities[rule],
            message=message,
            place=ignore.place,
            servers=tuple(sorted(servers)),
        )


def _unused(ignore: Ignore, severities: Mapping[str, Severity]) -> str:
    if any(fnmatchcase(rule, ignore.rule) for rule in severities):
        return f"{ignore.rule} finds nothing here any more: drop the request to ignore it."
    near = difflib.get_close_matches(ignore.rule, severities, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"{ignore.rule} is to be ignored, but there is no such rule.{meant}"
