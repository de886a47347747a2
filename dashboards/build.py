"""Write `json/*.json` from `*.dashboard.py`; with --check say which files differ, and change nothing."""

from __future__ import annotations

import io
import runpy
import sys
from pathlib import Path

from grafanalib._gen import write_dashboard

_FOLDER = Path(__file__).parent
_SUFFIX = ".dashboard.py"


def definitions() -> list[Path]:
    """Return the files that define a dashboard."""
    return sorted(_FOLDER.glob(f"*{_SUFFIX}"))


def target_of(definition: Path) -> Path:
    """Return the file that is generated from a definition."""
    return _FOLDER / "json" / f"{definition.name.removesuffix(_SUFFIX)}.json"


def render(definition: Path) -> str:
    """Return the JSON of a definition."""
    stream = io.StringIO()
    write_dashboard(runpy.run_path(str(definition))["dashboard"], stream)
    return stream.getvalue()


def main(arguments: list[str]) -> int:
    """Write or check every file; return 1 when a check finds a difference."""
    check = arguments == ["--check"]
    if arguments and not check:
        print("usage: python -m dashboards.build [--check]", file=sys.stderr)
        return 2
    differing = 0
    for definition in definitions():
        text, target = render(definition), target_of(definition)
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        differing += 1
        if check:
            print(f"{target.name} differs from what {definition.name} makes of it", file=sys.stderr)
        else:
            target.parent.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8")
            print(f"wrote {target}")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
