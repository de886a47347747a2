"""Grafana's transformations that the dashboards use: merge, organize, grouping to a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.previews.answers import Series

Value = float | str | None
Row = dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Columns in order, and rows; a row lacks what is not known."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def merged(answers: Mapping[str, Sequence[Series]]) -> Frame:
    """Join the answers by refId on the labels that all of them have.

    An answer without series has no labels, and says nothing about what the others share.
    """
    frames = {ref: series for ref, series in answers.items() if series}
    shared = (
        set.intersection(*({name for one in series for name in one.labels} for series in frames.values()))
        if frames
        else set()
    )
    rows: list[Row] = []
    for ref, series in frames.items():
        for one in series:
            new: Row = {**one.labels, f"Value #{ref}": one.last}
            fitting = (row for row in rows if _fits(row, new, shared))
            row = next(fitting, None)
            if row is None:
                rows.append(new)
            else:
                row |= new
    names = dict.fromkeys(name for row in rows for name in row)
    return Frame(columns=tuple(names), rows=tuple(rows))


def _fits(row: Row, new: Row, shared: set[str]) -> bool:
    return all(row.get(name) == new.get(name) for name in shared) and all(
        row[name] == value for name, value in new.items() if name in row
    )


def organized(frame: Frame, options: Mapping[str, Any]) -> Frame:
    """Hide, order and rename columns; those with a name stay even when no row has a value for them."""
    hidden = {name for name, hide in options["excludeByName"].items() if hide}
    order: Mapping[str, int] = options["indexByName"]
    names: Mapping[str, str] = options["renameByName"]
    known = sorted({*frame.columns, *order} - hidden, key=lambda name: order.get(name, len(order)))
    rows = tuple({names.get(name, name): row.get(name) for name in known} for row in frame.rows)
    return Frame(columns=tuple(names.get(name, name) for name in known), rows=rows)


def by_column(frame: Frame, column: str) -> Frame:
    """Sort as Grafana's table does: nothing first, then numbers or words upwards."""

    def key(row: Row) -> tuple[bool, float, str]:
        value = row[column]
        if value is None or value == "":
            return (False, 0.0, "")
        return (True, 0.0, value.lower()) if isinstance(value, str) else (True, value, "")

    return Frame(columns=frame.columns, rows=tuple(sorted(frame.rows, key=key)))


def matrix(series: Sequence[Series], options: Mapping[str, Any]) -> Frame:
    """Turn one column's values into columns: a row for each value of `rowField`."""
    rows: dict[str, Row] = {}
    for one in series:
        name = one.labels.get(options["rowField"], "")
        rows.setdefault(name, {options["rowField"]: name})[one.labels.get(options["columnField"], "")] = (
            one.last
        )
    names = dict.fromkeys(name for row in rows.values() for name in row)
    return Frame(columns=tuple(names), rows=tuple(rows.values()))
