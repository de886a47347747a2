"""docs/faults.md: every row names tests that exist, and every reason has a row."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from kvwatch.readings import Reason

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs" / "faults.md").read_text()
HEADS = ("| fault | what kvwatch shows | proved by |", "| fault or change | what kvwatch shows | proved by |")
FEWEST_ROWS = 40


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of all tables: fault, what is shown, the test."""
    found = []
    for line in TEXT.splitlines():
        if line.startswith("| ") and line not in HEADS:
            fault, shown, test = (cell.strip() for cell in line.strip("|").split("|"))
            found.append((fault, shown, test))
    return found


@functools.cache
def tree(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the test functions of a file and all texts in it, without running it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return frozenset(functions), frozenset(texts)


def test_the_tables_are_long_enough() -> None:
    """Each fault stands there once, in all tables together."""
    faults = [fault for fault, _, _ in rows()]
    assert len(faults) >= FEWEST_ROWS
    assert len(set(faults)) == len(faults)


@pytest.mark.parametrize("fault, shown, test", rows(), ids=[fault for fault, _, _ in rows()])
def test_the_test_of_a_row_exists(fault: str, shown: str, test: str) -> None:
    """A file, a function in it, and a case that its source names."""
    named = re.fullmatch(r"([\w/]+\.py)::(test_\w+)(?:\[(.+)\])?", test)
    assert named, test
    functions, texts = tree(TESTS / named[1])
    assert named[2] in functions
    assert named[3] is None or named[3] in texts


def test_every_reason_has_a_row() -> None:
    """Whatever kvwatch may say is explained by a fault, and nothing else is said."""
    said = {word for _, shown, _ in rows() for word in re.findall(r"`([a-z_]+)`", shown)}
    assert {reason.value for reason in Reason} - said == set()
