"""A GGUF model as llama.cpp sees it: its contexts' memories and what its options may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.llamacpp_architectures import ARCHITECTURES
from kvwatch.cost.llamacpp_fields import Fields, read_fields
from kvwatch.cost.llamacpp_keys import Keys
from kvwatch.cost.llamacpp_memories import LlamaContext, draft_head_context, is_windowed, main_context
from kvwatch.cost.llamacpp_rules import Memory
from kvwatch.cost.spec import ModelSpecError
from kvwatch.readings import Reason

if TYPE_CHECKING:
    from kvwatch.cost.gguf import GgufHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaModel:
    """What a model's contexts allocate, before the server's options."""

    architecture: str
    layers: int
    context_train: int
    main: LlamaContext
    draft_head: LlamaContext | None
    """Memories of a context over the model's own draft (MTP) layers; None where it has none."""
    window: int | None
    """Tokens of its sliding or chunked window."""
    has_memory: bool
    """False for encoders and diffusion models."""
    same_cache_types: bool
    """The engine refuses different K and V types."""
    head_widths: tuple[tuple[int, int], ...]
    """Key and value head widths that the block of a quantised cache type must divide."""
    flash_attention: bool
    causal: bool
    """False: a micro-batch may be longer than the context."""
    rollback: bool
    draft_only: bool

    @classmethod
    def from_header(cls, header: GgufHeader) -> LlamaModel:
        """Read a model from the header of its only or first file; raises `ModelSpecError`."""
        name = header.architecture
        if name is None:
            raise ModelSpecError(Reason.MISSING_FIELD, field="general.architecture")
        rules = ARCHITECTURES.get(name)
        if rules is None:
            raise ModelSpecError(Reason.UNKNOWN_ARCHITECTURE, architecture=name, field="general.architecture")
        if header.split_no:
            raise ModelSpecError(
                Reason.MISSING_FIELD,
                architecture=name,
                field="split.no",
                detail=f"shard {header.split_no + 1} of {header.split_count}: the keys are in the first",
            )
        fields = read_fields(Keys(header, name), rules)
        return cls(
            architecture=name,
            layers=fields.layers,
            context_train=fields.context_train,
            main=main_context(fields, rules),
            draft_head=draft_head_context(fields, rules) if fields.draft_layers else None,
            window=None if fields.window is None else fields.window.size,
            has_memory=rules.memory is not Memory.NONE,
            same_cache_types=fields.latent or rules.memory is Memory.COMPRESSED,
            head_widths=_head_widths(fields),
            causal=fields.causal,
            flash_attention=rules.flash_attention,
            rollback=rules.rollback,
            draft_only=rules.draft_only,
        )


def _head_widths(fields: Fields) -> tuple[tuple[int, int], ...]:
    """Return the distinct key and value widths of the trunk's heads."""
    heads = fields.heads
    full, windowed = (heads.key, heads.value), (heads.window_key, heads.window_value)
    return tuple(sorted({windowed if is_windowed(fields, index) else full for index in range(fields.trunk)}))
