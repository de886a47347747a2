"""A server's plan: what must be known before a llama-server's bytes are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.cost.llamacpp import LlamaPool
from kvwatch.flags.command import Command
from kvwatch.flags.llamacpp import parse
from kvwatch.plan import GgufModel, plan_slots
from kvwatch.readings import EngineReading, RankReading, Reason, SlotPool, SourceError
from tests.cost_llamacpp.files import model_of

MODEL = GgufModel(llama=model_of("llama"), hash="0" * 12)
LAUNCH = parse(Command(argv=("llama-server", "-m", "a.gguf", "-c", "8192", "-np", "4")), version=(11434,))
READING = EngineReading(
    engine="llamacpp",
    ranks=(RankReading(rank="0", slots=SlotPool(total_slots=4, slot_limit_tokens=2048, busy_slots=0)),),
)
DECIDING = (
    "cache_type_k",
    "cache_type_v",
    "batch_size",
    "ubatch_size",
    "swa_full",
    "no_kv_offload",
    "kv_unified",
    "kv_unified_per_slot",
    "draft_model",
)


def test_with_all_settled_the_pool_is_reckoned() -> None:
    """4,096 bytes a token for 4 slots of 2,048."""
    plan = plan_slots(MODEL, LAUNCH, READING)
    assert isinstance(plan, LlamaPool)
    assert (plan.bytes_per_token, plan.total_bytes) == (4096, 32 << 20)


@pytest.mark.parametrize("name", DECIDING)
@pytest.mark.parametrize("origin", ["unknown", "given, but not readable"])
def test_one_setting_that_is_not_known_makes_the_bytes_unknown(name: str, origin: str) -> None:
    """Neither silence nor an unreadable value is taken for the default."""
    stated = LAUNCH.stated - {name} if origin == "unknown" else LAUNCH.stated | {name}
    launch = replace(LAUNCH, stated=stated, defaulted=LAUNCH.defaulted - {name}, **{name: None})
    refused = plan_slots(MODEL, launch, READING)
    assert isinstance(refused, SourceError)
    assert refused.reason is Reason.MISSING_FIELD
    assert name in refused.detail
