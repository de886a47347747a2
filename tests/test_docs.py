"""The documents keep up with the code: every metric, dependency and link."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kvwatch.metrics import CATALOGUE

ROOT = Path(__file__).parents[1]
METRICS = ROOT / "docs" / "metrics.md"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def metrics_table() -> str:
    """Return the catalogue as a Markdown table."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.help} |"
        for metric in CATALOGUE
    ]
    return "\n".join(["| family | type | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"


def test_the_table_of_metrics_is_the_catalogue(update_golden: bool) -> None:  # noqa: FBT001 - a fixture
    """`docs/metrics.md` ends with exactly the catalogue."""
    head, marker, table = METRICS.read_text().partition("| family |")
    if update_golden:
        METRICS.write_text(head + metrics_table())
        return
    assert marker + table == metrics_table(), "run: make golden"


def test_every_dependency_earns_its_line() -> None:
    """A package of pyproject.toml without a line in docs/dependencies.md is refused, and the reverse."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[<>=~! ]", name)[0] for name in wanted} - {"kvwatch"}
    text = (ROOT / "docs" / "dependencies.md").read_text()
    lines = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    explained = {name.split("(")[0].strip() for line in lines for name in line.split(",")}
    assert names <= explained
    assert explained - names <= {"package", "for development"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    """A relative link names a file that exists."""
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), link
