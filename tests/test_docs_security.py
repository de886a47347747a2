"""docs/security.md: every threat has something that is done, and a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_docs_faults import tree

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs" / "security.md").read_text()
SECTIONS = (
    "Who reaches it",
    "Clients that want to stop it",
    "A compromised engine",
    "Requests to where nobody meant (SSRF)",
    "A local user without rights",
    "Secrets",
    "Without root",
)


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of all tables: threat, what is done, the test."""
    found = []
    for line in TEXT.splitlines():
        if line.startswith("| ") and not line.endswith("| proved by |"):
            threat, done, test = (cell.strip() for cell in line.strip("|").split("|"))
            found.append((threat, done, test))
    return found


@pytest.mark.parametrize("threat, done, test", rows(), ids=[f"{row[2]} {row[0]}"[:80] for row in rows()])
def test_the_test_of_a_row_exists(threat: str, done: str, test: str) -> None:
    """A file, a function in it, and a case that its source names."""
    named = re.fullmatch(r"([\w/]+\.py)::(test_\w+)(?:\[(.+)\])?", test)
    assert named, test
    functions, texts = tree(TESTS / named[1])
    assert named[2] in functions
    assert named[3] is None or named[3] in texts
    assert threat
    assert done


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_rows(section: str) -> None:
    """None of the kinds of attackers is forgotten."""
    _, _, rest = TEXT.partition(f"\n## {section}\n")
    assert "\n| " in rest.partition("\n## ")[0]


def test_no_test_is_named_twice() -> None:
    """Each row has a proof of its own."""
    tests = [test for _, _, test in rows()]
    assert sorted(set(tests)) == sorted(tests)
