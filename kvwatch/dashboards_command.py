"""`kvwatch dashboards`: write the dashboards, rules and alerts that belong to this version into a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_PACKAGED = Path(__file__).parent / "monitoring"
_SOURCE_TREE = Path(__file__).parents[1]
_SOURCES = {
    "dashboards": "dashboards/json/*.json",
    "prometheus": "deploy/prometheus/kvwatch*.rules.yml",
    "alertmanager": "deploy/alertmanager/alertmanager.yml",
    "grafana-alerting": "deploy/grafana/alerting/*.yml",
}
"""Folder that is written -> what of the source tree; the wheel holds copies (pyproject.toml)."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `kvwatch dashboards`."""
    command.add_argument(
        "--out",
        type=Path,
        default=Path("kvwatch-monitoring"),
        metavar="DIR",
        help="folder to write into, made if it is not there (default: kvwatch-monitoring)",
    )
    command.add_argument(
        "--force", action="store_true", help="replace files that differ; without it they are left and named"
    )


def run_dashboards(options: argparse.Namespace) -> int:
    """Write the files; return 0, or 1 with the reason where one could not be written or was left."""
    files = list(_files())
    if not files:
        print("kvwatch dashboards: this installation has no dashboards; install the wheel", file=sys.stderr)
        return 1
    left = 0
    for folder, source in files:
        target = options.out / folder / source.name
        try:
            state = _write(target, source.read_bytes(), force=options.force)
        except OSError as error:
            print(f"kvwatch dashboards: {target}: {error.strerror}", file=sys.stderr)
            return 1
        left += state == "differs"
        print(f"{state:<9} {target}")
    if left:
        print(
            f"kvwatch dashboards: {left} files differ and were left; --force replaces them", file=sys.stderr
        )
    return 1 if left else 0


def _files() -> Iterator[tuple[str, Path]]:
    """Yield each file with the folder that it goes into."""
    for folder, pattern in _SOURCES.items():
        packaged = sorted((_PACKAGED / folder).glob("*"))
        for file in packaged or sorted(_SOURCE_TREE.glob(pattern)):
            yield folder, file


def _write(target: Path, content: bytes, *, force: bool) -> str:
    if target.exists():
        if target.read_bytes() == content:
            return "unchanged"
        if not force:
            return "differs"
    target.parent.mkdir(parents=True, exist_ok=True)
    # A reader such as Grafana's folder watcher must never see half a file.
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(content)
    part.replace(target)
    return "wrote"
