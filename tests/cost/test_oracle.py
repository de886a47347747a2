"""Every row that vLLM 0.32.0's own planner computed, reproduced."""

from __future__ import annotations

import pytest

from kvwatch.cost.hf import read_hf_config
from tests.cost.agreement import Outcome, compare_oracle, compare_planner_row, load


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[Outcome]]:
    """Compare all rows once, by model."""
    found: dict[str, list[Outcome]] = {}
    for outcome in compare_oracle():
        found.setdefault(outcome.family, []).append(outcome)
    return found


@pytest.mark.parametrize("model", sorted(load("configs")))
def test_every_row_of_a_model_is_exact(model: str, outcomes: dict[str, list[Outcome]]) -> None:
    """Blocks, A_start, concurrency, tokens and whether it starts equal the planner's, to the last digit."""
    assert [outcome.detail for outcome in outcomes[model] if outcome.result != "exact"] == []


def test_the_oracle_is_whole() -> None:
    """All 4,437 rows of 79 models are there."""
    rows = load("oracle")
    assert len({row["model"] for row in rows}) == 79
    assert sum(len(row["pools"]) for row in rows) == 4437


@pytest.mark.parametrize("row", load("planner_rows"), ids=lambda row: row["name"])
def test_further_models_agree_with_the_planner(row: dict[str, object]) -> None:
    """Models that the oracle lacks agree with what vLLM's model classes and planner say."""
    outcome = compare_planner_row(row)
    assert outcome.result == "exact", outcome.detail


def test_no_rule_reads_a_models_name() -> None:
    """A model's path or name in its config changes nothing."""
    for config in load("configs").values():
        assert read_hf_config(config) == read_hf_config({**config, "_name_or_path": "someone/else"})
