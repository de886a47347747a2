"""Sets kvwatch beside nvitop, gpustat and nvitop-exporter over the same driver: `python bench/peers.py`.

Every program runs on the stand-in library in the same state. Where a peer prints bytes, they have to be
kvwatch's. Prints a page in Markdown; exits with 1 where something differs that is not explained.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parent.parent))

import peers_programs as programs
from peers_scenarios import SCENARIOS, Scenario

from kvwatch import __version__
from tests.nvml_standin.build import build, environment, write_scenario

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PEERS = {
    "nvitop": programs.nvitop,
    "gpustat": programs.gpustat,
    "nvitop-exporter": programs.nvitop_exporter,
}
GONE_PID = 4_100_000


@dataclass(slots=True)
class Verdict:
    """How a peer compares in one scenario."""

    same: int = 0
    silent: list[str] = field(default_factory=list)
    """Figures that kvwatch shows and the peer does not."""
    more: list[str] = field(default_factory=list)
    """Figures that the peer shows and kvwatch does not."""
    differ: list[str] = field(default_factory=list)


def compare(ours: programs.Shown, theirs: programs.Shown, parts: Sequence[str]) -> Verdict:
    """Compare the processes and those parts of the memory that the peer ever shows, figure by figure."""
    verdict = Verdict()
    for name, own, other in _pairs(ours, theirs, parts):
        if other == own:
            verdict.same += own is not None
        elif other is None:
            verdict.silent.append(name)
        elif own is None:
            verdict.more.append(name)
        else:
            verdict.differ.append(f"{name} {other} for {own}")
    return verdict


def _pairs(
    ours: programs.Shown, theirs: programs.Shown, parts: Sequence[str]
) -> Iterator[tuple[str, int | None, int | None]]:
    for uuid in sorted({*ours, *theirs}):
        own, other = ours.get(uuid, programs.Figures()), theirs.get(uuid, programs.Figures())
        place = _place(uuid)
        for part in parts:
            yield f"{place} {part}", getattr(own, part), getattr(other, part)
        for pid in sorted({*own.processes, *other.processes}):
            yield f"{place} process", own.processes.get(pid), other.processes.get(pid)


def _place(target: str) -> str:
    """Return a short name of a device or instance: the stand-in numbers them at the end of the UUID."""
    return ("MIG" if target.startswith("MIG") else "GPU") + target[-1:]


def cell(verdict: Verdict, explanation: str | None) -> tuple[str, bool]:
    """Return a cell of the table, and whether all that differs is explained."""
    parts = [f"same {verdict.same}"]
    if verdict.silent:
        parts.append(f"silent {len(verdict.silent)} ({', '.join(verdict.silent)})")
    if verdict.more:
        parts.append(f"prints {len(verdict.more)} more ({', '.join(verdict.more)})")
    if verdict.differ:
        parts.append(f"differs {len(verdict.differ)} ({', '.join(verdict.differ)})")
    return "; ".join(parts), not (verdict.more or verdict.differ) or explanation is not None


def rows(installed: Mapping[str, Path], pids: Mapping[str, int], folder: Path) -> Iterator[tuple[str, bool]]:
    """Run every scenario; yield its row of the table, and whether all is explained."""
    for scenario in SCENARIOS:
        text = scenario.text
        for name, pid in pids.items():
            text = text.replace(f"{{{name}}}", str(pid))
        path = folder / "nvml.scenario"
        write_scenario(path, text)
        variables = environment(build(hidden=scenario.hidden), path)
        ours, reasons = programs.kvwatch(variables, folder)
        cells = []
        good = True
        for name, run in PEERS.items():
            if name not in installed:
                cells.append("not installed")
                continue
            theirs = run(installed[name], variables)
            explanation = (scenario.explained or {}).get(name)
            parts = ("total", "used") if name == "gpustat" else ("total", "used", "free")
            shown, explained = cell(compare(ours, theirs, parts), explanation)
            cells.append(shown if theirs else "prints nothing, or fails")
            good &= explained
        said = ", ".join(f"{_place(target)} {reason}" for target, reason in sorted(reasons.items()))
        yield f"| {scenario.name} | {said or 'all known'} | {' | '.join(cells)} |", good


def explanations() -> Iterator[str]:
    """Yield what is said of scenarios in which peers differ."""
    by_text: dict[str, list[Scenario]] = {}
    for scenario in SCENARIOS:
        for text in dict.fromkeys((scenario.explained or {}).values()):
            by_text.setdefault(text, []).append(scenario)
    for text, scenarios in by_text.items():
        yield f"- {'; '.join(scenario.name for scenario in scenarios)}: {text}."


def main() -> int:
    """Compare and print."""
    installed = {name: folder for name in PEERS if (folder := programs.program(name)) is not None}
    versions = ", ".join(
        [
            f"kvwatch {__version__}",
            "nvitop 1.7.2",
            *sorted({programs.PACKAGES[name].replace("==", " ") for name in PEERS}),
        ]
    )
    print(f"{datetime.now(UTC):%Y-%m-%d}; {versions}; stand-in driver.\n")
    print("| the driver | kvwatch says | nvitop | gpustat | nvitop-exporter |\n|---|---|---|---|---|")
    sleepers = [subprocess.Popen(["sleep", "900"]) for _ in range(2)]
    try:
        pids = {"a": sleepers[0].pid, "b": sleepers[1].pid, "gone": GONE_PID}
        good = True
        with tempfile.TemporaryDirectory() as name:
            for row, explained in rows(installed, pids, Path(name)):
                print(row if explained else f"{row} UNEXPLAINED", flush=True)
                good &= explained
    finally:
        for process in sleepers:
            process.kill()
            process.wait()
    print("\n" + "\n".join(explanations()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
