"""Write `json/*.json` from `*.dashboard.py`, and Grafana's alerts from Prometheus' rules.

With --check it says which files differ, and changes nothing.
"""

from __future__ import annotations

import io
import runpy
import sys
from pathlib import Path

from grafanalib._gen import write_dashboard

from dashboards import alerts

_FOLDER = Path(__file__).parent
_DEPLOY = _FOLDER.parent / "deploy"
RULES = _DEPLOY / "prometheus" / "kvwatch.rules.yml"
GRAFANA_ALERTS = _DEPLOY / "grafana" / "alerting" / "kvwatch-rules.yml"
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


def outputs() -> dict[Path, tuple[Path, str]]:
    """Return every generated file: what it is made from, and its text."""
    made = {target_of(definition): (definition, render(definition)) for definition in definitions()}
    made[GRAFANA_ALERTS] = (RULES, alerts.render(RULES))
    return made


def main(arguments: list[str]) -> int:
    """Write or check every file; return 1 when a check finds a difference."""
    check = arguments == ["--check"]
    if arguments and not check:
        print("usage: python -m dashboards.build [--check]", file=sys.stderr)
        return 2
    differing = 0
    for target, (source, text) in outputs().items():
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        differing += 1
        if check:
            print(f"{target.name} differs from what {source.name} makes of it", file=sys.stderr)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            print(f"wrote {target}")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
