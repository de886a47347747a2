"""Declarations built in code: a server by its command, as the readers would declare it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from kvwatch.check.declaration import Card, Declaration, DeclaredServer, Place
from kvwatch.check.rules import check
from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.weights import WeightBytes
from kvwatch.flags import llamacpp, vllm
from kvwatch.flags.command import Command
from kvwatch.plan import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.check.verdict import Finding

MIB, GIB = 1 << 20, 1 << 30
A40 = Card(name="0", total_bytes=46_068 * MIB)


def model(config: Mapping[str, Any], weights_bytes: int | None = None, **by_dtype: int) -> Model:
    """Return a model whose checkpoint has so many bytes, all of them bfloat16 unless told."""
    weights = None
    if weights_bytes is not None:
        types = by_dtype or {"BF16": weights_bytes}
        weights = WeightBytes(total_bytes=weights_bytes, by_dtype=types, source="headers")
    return Model(spec=read_hf_config(config), hash="0" * 12, weights=weights)


def server(
    name: str,
    command: str,
    *,
    version: tuple[int, ...] | None = (0, 32, 0),
    cards: tuple[str, ...] | None = ("0",),
    line: int = 1,
    **fields: Any,
) -> DeclaredServer:
    """Return a declared server; its settings stand where its command does."""
    parse = llamacpp.parse if command.startswith("llama-server") else vllm.parse
    launch = parse(Command(argv=tuple(shlex.split(command))), version=version, config_text=None)
    place = Place(file="fleet.yaml", line=line)
    return DeclaredServer(
        name=name,
        place=place,
        places=dict.fromkeys(launch.stated, place),
        launch=launch,
        version=version,
        cards=cards,
        **fields,
    )


def found(*servers: DeclaredServer, cards: tuple[Card, ...] = (A40,)) -> dict[str, Finding]:
    """Return the findings that count, by rule; the last of each."""
    declaration = Declaration(servers=servers, cards=cards)
    return {finding.rule: finding for finding in check(declaration) if finding.ignored is None}
