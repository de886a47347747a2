"""Whatever is declared: a check ends, in every form, and no number is born that JSON does not have."""

from __future__ import annotations

import json
import shlex

from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.check.declaration import Card, Declaration, DeclaredServer, Ignore, Place
from kvwatch.check.formats import FORMATS, render
from kvwatch.check.rules import check
from tests.check.fleet import GIB, model, server
from tests.cost.agreement import load

CONFIGS = load("configs")
OPTIONS = [
    "--max-model-len",
    "--max-num-seqs",
    "--kv-cache-memory-bytes",
    "--gpu-memory-utilization",
    "-tp",
    "-pp",
    "-dp",
    "-dcp",
    "--num-gpu-blocks-override",
    "--block-size",
    "--kv-cache-dtype",
    "--dtype",
    "--runner",
    "--max-num-batched-tokens",
    "--disable-hybrid-kv-cache-manager",
    "--swap-space",
    "--foo",
]
SLOT_OPTIONS = [
    "-c",
    "-np",
    "-kvu",
    "--kv-unified-per-slot",
    "-ctk",
    "-ctv",
    "-b",
    "-ub",
    "--swa-full",
    "-ngl",
    "-nkvo",
    "-sm",
    "-fa",
    "-dev",
    "--foo",
]
VALUES = [
    "0",
    "1",
    "-1",
    "-5",
    "2",
    "3",
    "7",
    "16",
    "512",
    "100000",
    "1000000000",
    "x",
    "${V}",
    "auto",
    "2G",
    "0.5",
    "0.97",
    "fp8",
    "q8_0",
    "tensor",
    "on",
    "off",
    "none",
    "pooling",
    "float32",
    "all",
]


@st.composite
def servers(draw: st.DrawFn) -> DeclaredServer:
    """Draw a server with any settings, sensible or not."""
    slots = draw(st.booleans())
    names = draw(st.lists(st.sampled_from(SLOT_OPTIONS if slots else OPTIONS), max_size=5, unique=True))
    words = [f"{name} {shlex.quote(draw(st.sampled_from(VALUES)))}" for name in names]
    known = None
    if not slots and draw(st.booleans()):
        known = model(
            CONFIGS[draw(st.sampled_from(sorted(CONFIGS)))], draw(st.sampled_from([None, 16 * GIB]))
        )
    ignore = Ignore(
        rule=draw(st.sampled_from(["*", "shares-over-limit", "x"])),
        reason=draw(st.sampled_from(["", "reason"])),
        place=Place(file="f"),
    )
    return server(
        draw(st.uuids()).hex,
        " ".join(["llama-server -m x" if slots else "vllm serve m", *words]),
        version=draw(st.sampled_from([None, (9450,), (11434,)] if slots else [None, (0, 8, 5), (0, 32, 0)])),
        cards=draw(st.sampled_from([None, (), ("0",), ("0", "1"), ("0", "0")])),
        model=known,
        replicas=draw(st.integers(1, 2)),
        measured_bytes=draw(st.sampled_from([None, 10 * GIB])),
        ignores=draw(st.sampled_from([(), (ignore,)])),
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(servers(), max_size=3), st.sampled_from([None, 1, 46_068 << 20]))
def test_any_fleet_is_judged(fleet: list[DeclaredServer], total_bytes: int | None) -> None:
    """No exception, and JSON without NaN or infinity."""
    cards = tuple(Card(name=name, total_bytes=total_bytes) for name in ("0", "1"))
    declaration = Declaration(servers=tuple(fleet), cards=cards)
    findings = check(declaration)
    for form in FORMATS:
        text = render(declaration, findings, form)
        if form in ("json", "sarif"):
            json.loads(text, parse_constant=AssertionError)
            assert "NaN" not in text
            assert "Infinity" not in text
