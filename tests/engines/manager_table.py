"""Compare A(L) and R(L) of the cost model with the blocks that vLLM's own KV cache manager hands out.

    python manager_table.py       in kvwatch's environment; runs manager.py in vLLM's

Stands in for what cannot run on this machine: recurrent hybrids need a GPU. The groups are those that the
cost model plans, so that both sides count the same thing.

Where the manager is known to hold other numbers than the definitions of A and R say, the case states them
(`Known`; docs/cost-model.md, "Where a live server may differ"): any other difference fails, and so does one
that is gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import CACHE
from verdict import FAIL, Verdict, judge

from kvwatch.cost.spec import Layer, LayerKind, ModelSpec, StatePart, StateRole
from kvwatch.cost.vllm import BlockPlan, VllmOptions, plan_blocks

FULL_LENGTH = 4096
LONG = 1000  # from here on every window, chunk and state is full
LENGTHS = (1, 32, 33, 64, 65, 128, 129, 161, 500, 1000, 2048, 3001, 4096)
PAST_A_BLOCK = LENGTHS[4:]  # a block of these hybrids holds 64 tokens

ADMITTED, GROWN, READ, READ_ON, TIGHT = (
    "A(L) is asked for",
    "R(L) suffices",
    "M(L) suffices to read",
    "M(L+1) suffices after",
    "R(L) is tight to a block a group",
)
Known = Mapping[str, Mapping[int, int]]
"""Claim -> length -> blocks by which the manager differs."""


def more(blocks: int, *lengths: int) -> dict[int, int]:
    """Return a known difference of as many blocks at each of these lengths."""
    return dict.fromkeys(lengths, blocks)


@dataclass(frozen=True)
class Case:
    """A model of a few layers, and how it is served."""

    layers: tuple[Layer, ...]
    prefix_caching: bool = True
    batched_tokens: int = 512
    asynchronous: bool = True
    known: Known = field(default_factory=dict)

    def plan(self) -> BlockPlan:
        """Return the cost model's plan."""
        spec = ModelSpec(
            architecture="Test",
            model_type=None,
            dtype="bfloat16",
            layers=self.layers,
            hidden_layers=len(self.layers),
            attention_heads=8,
            max_positions=FULL_LENGTH,
        )
        return plan_blocks(
            spec,
            VllmOptions(
                engine_version=(0, 32, 0),
                block_size=32,
                max_model_len=FULL_LENGTH,
                max_num_batched_tokens=self.batched_tokens,
                async_scheduling=self.asynchronous,
                prefix_caching=self.prefix_caching,
            ),
        )

    def question(self, plan: BlockPlan) -> dict[str, object]:
        """Return what manager.py is asked."""
        checkpoints = max((layer.checkpoint_blocks for layer in self.layers), default=0)
        return {
            "groups": [
                {
                    "kind": str(group.kind),
                    "block_size": group.block_size,
                    "window": group.window,
                    "checkpoints": checkpoints,
                }
                for group in plan.groups
            ],
            "prefix_caching": self.prefix_caching,
            "max_model_len": FULL_LENGTH,
            "batched_tokens": self.batched_tokens,
            "batches": 2 if self.asynchronous else 1,
            "lengths": LENGTHS,
        }


def full(count: int, first: int = 0) -> tuple[Layer, ...]:
    """Return full-attention layers."""
    return tuple(
        Layer(kind=LayerKind.FULL, index=first + index, kv_heads=2, k_width=32, v_width=32)
        for index in range(count)
    )


def local(count: int, window: int, first: int, kind: LayerKind = LayerKind.WINDOW) -> tuple[Layer, ...]:
    """Return layers that keep a window or a chunk."""
    return tuple(
        Layer(kind=kind, index=first + index, kv_heads=2, k_width=32, v_width=32, window=window)
        for index in range(count)
    )


def recurrent(count: int, first: int, *, checkpoints: int = 0) -> tuple[Layer, ...]:
    """Return layers with a state of 16 KiB."""
    state = (StatePart(role=StateRole.SSM, split=64, rest=128),)
    return tuple(
        Layer(kind=LayerKind.RECURRENT, index=first + index, state=state, checkpoint_blocks=checkpoints)
        for index in range(count)
    )


CASES = {
    "full": Case(full(4)),
    "full, no prefix caching": Case(full(4), prefix_caching=False),
    "full and windows of 128": Case(full(2) + local(10, 128, 2)),
    "full and windows of 128, synchronous": Case(full(2) + local(10, 128, 2), asynchronous=False),
    "full and windows of 128, no prefix caching": Case(full(2) + local(10, 128, 2), prefix_caching=False),
    # A batch in flight keeps the block that the window has just left.
    "full and windows of 129": Case(
        full(2) + local(4, 129, 2), known={GROWN: more(2, 161, 500, 1000, 2048, 3001, 4096)}
    ),
    "full and windows of 129, synchronous": Case(full(2) + local(4, 129, 2), asynchronous=False),
    "full and windows of 100": Case(full(2) + local(4, 100, 2)),
    "full and windows of 1000, batches of 2048": Case(full(2) + local(4, 1000, 2), batched_tokens=2048),
    "windows of 128 only": Case(local(4, 128, 0)),
    "full and chunks of 256": Case(full(2) + local(6, 256, 2, LayerKind.CHUNKED)),
    "full and chunks of 250": Case(full(2) + local(6, 250, 2, LayerKind.CHUNKED)),
    # One state more for each batch that reads the prompt and is not settled.
    "full and recurrent": Case(
        full(2) + recurrent(6, 2),
        known={READ: more(3, 1000, 2048, 3001, 4096), READ_ON: more(3, 128, 2048)},
    ),
    "full and recurrent, synchronous": Case(full(2) + recurrent(6, 2), asynchronous=False),
    "full and recurrent, no prefix caching": Case(full(2) + recurrent(6, 2), prefix_caching=False),
    # The checkpoint's state is asked for at once, and kept for each batch that is not settled.
    "full and recurrent with checkpoints": Case(
        full(2) + recurrent(6, 2, checkpoints=1),
        known={
            ADMITTED: more(3, *PAST_A_BLOCK),
            READ: {1000: 3, **more(6, 2048, 3001, 4096)},
            READ_ON: more(3, 2048),
        },
    ),
    "full and recurrent with checkpoints, synchronous": Case(
        full(2) + recurrent(6, 2, checkpoints=1),
        asynchronous=False,
        known={ADMITTED: more(3, *PAST_A_BLOCK)},
    ),
    "full and recurrent with checkpoints, no prefix caching": Case(
        full(2) + recurrent(6, 2, checkpoints=1), prefix_caching=False
    ),
    "recurrent only, no prefix caching": Case(recurrent(4, 0), prefix_caching=False),
}


def compare(name: str, case: Case, rows: list[dict[str, Any]]) -> Verdict:
    """Judge one case: A(L) is what the manager asks for, and no step holds more than R(L) or M(L)."""
    plan = case.plan()
    groups = ", ".join(f"{group.kind} x{group.layers} b{group.block_size}" for group in plan.groups)
    print(f"\n{name}: {groups}")
    print("length  A model/manager  R model/peak  steady  last  M model/prefill  after")
    differs: dict[str, dict[int, int]] = {}
    for row in rows:
        length = row["length"]
        ours, held = plan.admission_blocks(length), plan.resident_blocks(length)
        entry = max(ours, held)
        print(
            f"{length:6}  {ours:7} / {row['admission']:<5}  {held:7} / {row['peak']:<5}  {row['steady']:5}"
            f" {row['last']:5}  {entry:6} / {row['prefill']:<6}  {row['settle'] or '-':>7}"
        )
        after = max(plan.admission_blocks(length + 1), plan.resident_blocks(length + 1))
        facts = {
            ADMITTED: row["admission"] - ours,
            GROWN: max(0, row["peak"] - held),
            READ: max(0, row["prefill"] - entry),
            READ_ON: max(0, (row["settle"] or 0) - after),
            TIGHT: max(0, held - row["peak"] - len(plan.groups)) if length >= LONG else 0,
        }
        for claim, blocks in facts.items():
            if blocks:
                differs.setdefault(claim, {})[length] = blocks
    claims = {
        f"{claim} (differs by {found} blocks, known {dict(known)})": False
        for claim in (ADMITTED, GROWN, READ, READ_ON, TIGHT)
        if (found := differs.get(claim, {})) != (known := case.known.get(claim, {}))
    }
    seen = f"{len(rows)} lengths, {len(plan.groups)} groups"
    if case.known:
        seen += f"; as documented, the manager holds more: {', '.join(case.known)}"
    return judge(f"manager, {name}", claims, seen)


def main() -> int:
    """Ask vLLM's manager about all cases and compare."""
    questions = {name: case.question(case.plan()) for name, case in CASES.items()}
    driver = Path(__file__).with_name("manager.py")
    answer = subprocess.run(
        [CACHE / "vllm" / "bin" / "python", driver],
        input=json.dumps(questions),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    measured = json.loads(answer.stdout)
    verdicts = [compare(name, case, measured[name]) for name, case in CASES.items()]
    return int(any(verdict.outcome == FAIL for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
