"""PrometheusRule objects made of deploy/prometheus/*.rules.yml, one for each file, comments and all.

python deploy/kubernetes/rules.py           writes components/prometheus-operator/prometheus-rules.yaml
python deploy/kubernetes/rules.py --check   compares only
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "prometheus"
TARGET = HERE / "components" / "prometheus-operator" / "prometheus-rules.yaml"

_HEAD = (
    "# Made of deploy/prometheus/*.rules.yml by deploy/kubernetes/rules.py: change those and run it again.\n"
)

_OBJECT = """\
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: kvwatch
spec:
{spec}"""


def render(sources: Path = SOURCES) -> str:
    """Return the manifest of all rule files of a folder."""
    return _HEAD + "".join(_object(file) for file in sorted(sources.glob("*.rules.yml")))


def _object(file: Path) -> str:
    """Return one rule file as an object; its text is kept, so that a reader finds the same comments."""
    name = file.name.removesuffix(".rules.yml").replace(".", "-")
    return _OBJECT.format(name=name, spec=textwrap.indent(file.read_text(encoding="utf-8"), "  "))


def main() -> int:
    """Write the manifest, or say whether it is current."""
    parser = argparse.ArgumentParser(description="Make the PrometheusRule objects of the rule files.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where the file is not current"
    )
    text = render()
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET} is not current: run python {Path(__file__).name}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
