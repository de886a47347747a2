"""One panel as HTML: its answers, drawn as its kind and its options say."""

from __future__ import annotations

import re
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING, Any

from tests.previews import bars, curves, frames
from tests.previews.cells import cell, colour_at, fixed_colour, settings_of, widths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.previews.answers import Asker, Series

Panel = dict[str, Any]
Size = tuple[float, float]


def body_of(panel: Panel, asker: Asker, size: Size, marks: Sequence[curves.Mark]) -> str:
    """Return what is under a panel's title. Raises KeyError for a kind that no dashboard has had so far."""
    if panel["type"] == "text":
        return markdown(asker.filled(panel["options"]["content"]))
    answers = {
        target["refId"]: (asker.instant if target["instant"] else asker.range)(target["expr"])
        for target in panel["targets"]
    }
    if not any(answers.values()):
        (unknown, colour) = _unknown(panel)
        return f'<div class="nothing" style="color:{colour}">{escape(unknown)}</div>'
    if panel["type"] == "timeseries":
        return _timeseries(panel, answers, asker, size, marks)
    return {"stat": _stat, "table": _table, "barchart": _bars}[panel["type"]](panel, answers, size)


def _unknown(panel: Panel) -> tuple[str, str]:
    nothing = cell(None, settings_of(panel, ""))
    return nothing.text, nothing.colour if panel["type"] == "stat" else "#6e7079"


def _stat(panel: Panel, answers: Mapping[str, Sequence[Series]], size: Size) -> str:
    found = [one for series in answers.values() for one in series]
    settings = settings_of(panel, "Value")
    texts = [cell(one.last, settings) for one in found]
    largest = min(size[1] * 0.42, size[0] / max(len(one.text) for one in texts) / len(texts) * 1.25, 56)
    return (
        '<div class="stats">'
        + "".join(
            f'<div style="color:{one.colour};font-size:{largest:.0f}px">{escape(one.text)}</div>'
            for one in texts
        )
        + "</div>"
    )


def _table(panel: Panel, answers: Mapping[str, Sequence[Series]], size: Size) -> str:
    frame = frames.merged(answers)
    for transformation in panel["transformations"]:
        if transformation["id"] == "organize":
            frame = frames.organized(frame, transformation["options"])
    frame = frames.by_column(frame, panel["options"]["sortBy"][0]["displayName"])
    settings = {name: settings_of(panel, name) for name in frame.columns}
    columns = widths(list(settings.values()), size[0])
    group = "".join(f'<col style="width:{width:.0f}px">' for width in columns)
    head = "".join(f"<th>{escape(name)}</th>" for name in frame.columns)
    rows = "".join(
        f"<tr>{''.join(_table_cell(row[name], settings[name]) for name in frame.columns)}</tr>"
        for row in frame.rows
    )
    table = f"<colgroup>{group}</colgroup><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="table"><table style="width:{sum(columns):.0f}px">{table}</table></div>'


def _table_cell(value: frames.Value, settings: Mapping[str, Any]) -> str:
    one = cell(value, settings)
    side = "right" if isinstance(value, float) and not settings.get("mappings") else "left"
    linked = ' class="linked"' if settings.get("links") and value else ""
    return f'<td style="color:{one.colour};text-align:{side}"{linked}>{escape(one.text)}</td>'


def _bars(panel: Panel, answers: Mapping[str, Sequence[Series]], size: Size) -> str:
    (series,) = answers.values()
    last = panel["transformations"][-1]
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if last["id"] != "groupingToMatrix":
        settings = settings_of(panel, "Value")
        made = []
        for one in series:
            text = cell(one.last, settings).text
            part = bars.Part(value=one.last, text=text, colour=colour_at(one.last, settings))
            made.append(bars.Bar(name=" ".join(one.labels.values()), parts=[part]))
        return bars.drawn(made, width=size[0], height=size[1], unit=unit)
    frame = frames.matrix(series, last["options"])
    names = frame.columns[1:]
    palette = dict(zip(names, cycle(curves.PALETTE), strict=False))
    colours = {name: fixed_colour(settings_of(panel, name), colour) for name, colour in palette.items()}
    made = []
    for row in frame.rows:
        parts = [
            bars.Part(value=value, text=cell(value, settings_of(panel, name)).text, colour=colours[name])
            for name in names
            if isinstance(value := row.get(name), float)
        ]
        made.append(bars.Bar(name=_short(str(row[frame.columns[0]])), parts=parts))
    legend = _legend((name, colours[name], False) for name in names)
    return bars.drawn(made, width=size[0], height=size[1] - 22, unit=unit) + legend


def _timeseries(
    panel: Panel,
    answers: Mapping[str, Sequence[Series]],
    asker: Asker,
    size: Size,
    marks: Sequence[curves.Mark],
) -> str:
    lines = []
    colours = cycle(curves.PALETTE)
    for target in panel["targets"]:
        template = asker.filled(target["legendFormat"])
        for one in answers[target["refId"]]:
            name = curves.legend_of(template, {key: _short(text) for key, text in one.labels.items()})
            settings = settings_of(panel, name)
            lines.append(
                curves.Curve(
                    name=name,
                    points=one.values,
                    colour=fixed_colour(settings, next(colours)),
                    dashed=settings.get("custom.lineStyle", {}).get("fill") == "dash",
                    filled=settings["custom.fillOpacity"] / 100,
                    stacked=settings["custom.stacking"]["mode"] == "normal",
                )
            )
    legend = _legend((line.name, line.colour, line.dashed) for line in lines)
    low, high = curves.bounds(lines, panel["fieldConfig"]["defaults"])
    axes = curves.Axes(
        width=size[0],
        height=size[1] - 20 * _rows_of_legend([line.name for line in lines], size[0]),
        start=asker.start,
        end=asker.end,
        step=asker.step,
        unit=panel["fieldConfig"]["defaults"]["unit"],
        low=low,
        high=high,
    )
    return curves.drawn(lines, axes, marks) + legend


def _rows_of_legend(names: Sequence[str], width: float) -> int:
    return 1 + int(sum(len(name) * 6.6 + 30 for name in names) // width)


def _legend(entries: Iterable[tuple[str, str, bool]]) -> str:
    parts = []
    for name, colour, dashed in entries:
        kind = ' class="dashed"' if dashed else ""
        parts.append(f'<span><i{kind} style="border-color:{colour}"></i>{escape(name)}</span>')
    return f'<div class="legend">{"".join(parts)}</div>'


def _short(text: str) -> str:
    """Shorten a device's UUID: the picture is narrower than a screen."""
    return re.sub(r"\b(GPU-[0-9a-f]{8})-[0-9a-f-]{27}\b", r"\1…", text)


def markdown(text: str) -> str:
    """Return HTML of the little Markdown that text panels use: lists, bold, italics, code."""
    html = escape(text)
    html = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html)
    html = re.sub(r"\*(.+?)\*", r"<em>\1</em>", html)
    html = re.sub(r"`(.+?)`", r"<code>\1</code>", html)
    lines = []
    for line in re.sub(r"\n +(?![- ])", " ", html).splitlines():
        item = re.match(r"( *)(?:\d+\.|-) (.*)", line)
        if item:
            lines.append(f'<p class="item{" inner" if item[1] else ""}">{line.strip()}</p>')
        elif line:
            lines.append(f"<p>{line}</p>")
    return f'<div class="words">{"".join(lines)}</div>'
