"""The custom resources of these manifests against the definitions that their operators publish.

    python deploy/kubernetes/check_crds.py FOLDER            FOLDER holds CustomResourceDefinition files
    python deploy/kubernetes/check_crds.py FOLDER --record   writes proven-fields.txt too

The definitions are not in this repository. What passed once is recorded as the fields that were used, and a
test refuses a manifest with another field: then get the definitions again, and run this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).resolve().parent
PROVEN = HERE / "proven-fields.txt"
CUSTOM_GROUPS = ("monitoring.coreos.com", "keda.sh")

Kind = tuple[str, str]
"""apiVersion and kind."""


def rendered(folder: Path) -> list[dict[str, Any]]:
    """Return the objects that kubectl makes of a kustomization."""
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def kustomizations() -> list[Path]:
    """Return what a user may apply."""
    return sorted(
        file.parent
        for part in ("overlays", "autoscaling")
        for file in HERE.glob(f"{part}/*/kustomization.yaml")
    )


def is_custom(thing: Mapping[str, Any]) -> bool:
    """Tell whether an object is of a kind that Kubernetes does not bring itself."""
    return str(thing["apiVersion"]).partition("/")[0] in CUSTOM_GROUPS


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field of an object, list positions left out; map keys of labels are values."""
    if isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            yield here
            if key not in {"matchLabels", "labels", "annotations"}:
                yield from fields(item, here)
    elif isinstance(value, list):
        for item in value:
            yield from fields(item, f"{path}[]")


def proven_fields(things: list[dict[str, Any]]) -> set[str]:
    """Return one line for each field that the custom ones of some objects use."""
    return {
        f"{thing['apiVersion']} {thing['kind']} {field}"
        for thing in things
        if is_custom(thing)
        for field in fields(
            {key: thing[key] for key in thing if key not in {"apiVersion", "kind", "metadata"}}
        )
    }


def definitions(folder: Path) -> dict[Kind, dict[str, Any]]:
    """Return the schema of each kind that a folder defines, closed: a field it does not name is refused."""
    found: dict[Kind, dict[str, Any]] = {}
    for file in sorted(folder.rglob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                kind = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                found[kind] = closed(version["schema"]["openAPIV3Schema"], top=True)
    return found


def closed(schema: Any, *, top: bool = False) -> Any:
    """Return a schema in which an object has only the fields it names: the API server would drop others."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: {name: closed(item) for name, item in value.items()} if key == "properties" else closed(value)
        for key, value in schema.items()
        if key not in {"default", "example", "description"}
    }
    keeps = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and not keeps:
        made["additionalProperties"] = False
    if top:
        made["properties"]["metadata"] = {"type": "object"}
    return made


def main() -> int:
    """Check every custom resource; return 1 where one is refused or its kind is not defined."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - tests use the rest without it

    parser = argparse.ArgumentParser(description="Check custom resources against their definitions.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the definitions lie")
    parser.add_argument("--record", action="store_true", help="write down which fields were proven")
    options = parser.parse_args()
    schemas = definitions(options.folder)
    refused = 0
    things = [thing for folder in kustomizations() for thing in rendered(folder) if is_custom(thing)]
    for thing in things:
        kind = (thing["apiVersion"], thing["kind"])
        problems = (
            [
                f"{error.json_path}: {error.message}"
                for error in Draft202012Validator(schemas[kind]).iter_errors(thing)
            ]
            if kind in schemas
            else ["no definition of this kind"]
        )
        refused += bool(problems)
        print(f"{' '.join(kind)} {thing['metadata']['name']}: {'; '.join(problems) or 'ok'}")
    if options.record and not refused:
        PROVEN.write_text("\n".join(sorted(proven_fields(things))) + "\n", encoding="utf-8")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
