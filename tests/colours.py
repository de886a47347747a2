"""Grafana's named colours as people see them whose eyes lack one kind of cone."""

from __future__ import annotations

import math

Rgb = tuple[float, float, float]
Lab = tuple[float, float, float]

SHADES = {
    "light": {
        "text": "#24292e", "green": "#56a64b", "blue": "#3274d9", "orange": "#ff780a", "red": "#e02f44",
        "yellow": "#f2cc0c", "purple": "#a352cc",
    },
    "dark": {
        "text": "#ccccdc", "green": "#73bf69", "blue": "#5794f2", "orange": "#ff9830", "red": "#f2495c",
        "yellow": "#fade2a", "purple": "#b877d9",
    },
}  # fmt: skip
"""Grafana 11 (packages/grafana-data, themes/createVisualizationColors.ts and createColors.ts)."""

FORMS: dict[str, tuple[Rgb, Rgb, Rgb]] = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""On linear RGB: Machado, Oliveira and Fernandes 2009, table 1, severity 1."""
_TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE = (0.95047, 1.0, 1.08883)


def seen(colour: str, form: str) -> Lab:
    """Return CIE Lab of a colour (#rrggbb) as it looks with a form of colour blindness."""
    linear = [_linear(int(colour[start : start + 2], 16) / 255) for start in (1, 3, 5)]
    looked_at = [min(1.0, max(0.0, _dot(row, linear))) for row in FORMS[form]]
    x, y, z = (_root(_dot(row, looked_at) / white) for row, white in zip(_TO_XYZ, _WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(one: Lab, other: Lab) -> float:
    """Return how far apart two colours look (CIE 1976)."""
    return math.dist(one, other)


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _root(value: float) -> float:
    return math.cbrt(value) if value > (6 / 29) ** 3 else value / (3 * (6 / 29) ** 2) + 4 / 29


def _dot(row: Rgb, vector: list[float]) -> float:
    return sum(a * b for a, b in zip(row, vector, strict=True))
