"""Tables: a row for each set of labels that the queries share, a column for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attr

from dashboards.fields import Json, override
from dashboards.panels import Panel, Query, ref_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@attr.s(auto_attribs=True, frozen=True, kw_only=True)
class Column:
    """A column of a table: a label of the queries, or the values of `expr`."""

    title: str
    label: str = ""
    expr: str = ""
    settings: Json = attr.ib(factory=dict)


def table(title: str, columns: Sequence[Column], *, description: str, sort_by: str) -> Panel:
    """Return a table with one row for each set of shared labels; a value that is not there is `unknown`.

    A column with both a label and an `expr` shows the label of series whose value says nothing.
    """
    targets: list[Query] = []
    names: dict[str, str] = {}
    hidden = {"Time": True}
    for column in columns:
        if not column.expr:
            names[column.label] = column.title
            continue
        ref = ref_of(len(targets))
        targets.append(Query(expr=column.expr, instant=True, format="table", refId=ref))
        if column.label:
            names[column.label] = column.title
            hidden[f"Value #{ref}"] = True
        else:
            names[f"Value #{ref}"] = column.title
    organize = {
        "excludeByName": hidden,
        "indexByName": {name: index for index, name in enumerate(names)},
        "renameByName": names,
    }
    return Panel(
        kind="table",
        title=title,
        description=description,
        unit="none",
        targets=targets,
        custom={
            "align": "auto",
            "cellOptions": {"type": "auto"},
            "filterable": True,
            "inspect": False,
            "minWidth": 60,
        },
        overrides=[override(column.title, column.settings) for column in columns if column.settings],
        transformations=[{"id": "merge", "options": {}}, {"id": "organize", "options": organize}],
        options={
            "cellHeight": "sm",
            "footer": {"countRows": False, "fields": "", "reducer": ["sum"], "show": False},
            "showHeader": True,
            "sortBy": [{"desc": False, "displayName": sort_by}],
        },
    )
