"""Which planner rules a vLLM release follows, read from the sources of the releases named."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """The rules of one release that changed between releases."""

    hybrid_groups: bool
    """Local layers get groups of their own (0.9.0), they are not allocated like full ones."""
    mixed_pages: bool
    """Full layers with pages of several sizes may share a group (0.11.0)."""
    scaled_blocks: bool
    """Groups with pages of several sizes are made equal by larger blocks (0.12.0)."""
    padded_pages: bool
    """Pages that no whole ratio makes equal are padded (0.25.0)."""
    group_tolerance: float
    """The largest bucket below this multiple of the smallest sets the group size (1.25, from 0.18.1 1.5)."""
    value_widths: bool
    """Full layers store values at their own width (0.14.0), not at the keys'."""
    local_value_widths: bool
    """So do window and chunked layers (0.28.0)."""
    counts_batches: bool
    """Windows reserve for every batch in flight (0.26.0), not for one."""
    overlapped_pipeline: bool
    """Asynchronous scheduling keeps one batch more in flight with pipeline ranks too (0.29.0)."""
    chunked_groups: bool
    """Chunked layers get groups of their own by default (0.14.0)."""
    hybrid_prefixes: bool
    """Prefix caching is on by default for models with recurrent layers (0.26.0)."""
    all_states_default: bool
    """With prefix caching, Mamba layers keep a state for each block by default (before 0.28.0)."""
    checkpoints: bool
    """Mamba 2 prompts keep a checkpoint more (0.32.0)."""
    latent_hybrid_alignment: int
    """Tokens that the block of a latent hybrid is a multiple of (64 before 0.20, 128 from 0.27)."""
    hopper_latent_block: bool
    """Latent attention on Hopper takes blocks of 64 (before 0.18)."""
    concurrency_by_tokens: bool
    """The printed concurrency is cache tokens / full length (before 0.9.1), not blocks / A_start."""
    tokens_by_concurrency: bool
    """The printed cache size is concurrency x full length (0.20.2), not blocks / groups x block size."""
    null_block_reserved: bool
    """The startup check keeps the null block apart (0.29.0)."""


def rules_of(version: tuple[int, ...]) -> EngineRules:
    """Return the rules of a release; those before 0.8.5 are taken to follow the oldest planner read."""
    return EngineRules(
        hybrid_groups=version >= (0, 9),
        mixed_pages=version >= (0, 11),
        scaled_blocks=version >= (0, 12),
        padded_pages=version >= (0, 25),
        group_tolerance=1.5 if version >= (0, 18) else 1.25 if version >= (0, 12) else 0.0,
        value_widths=version >= (0, 14),
        local_value_widths=version >= (0, 28),
        counts_batches=version >= (0, 26),
        overlapped_pipeline=version >= (0, 29),
        chunked_groups=version >= (0, 14),
        hybrid_prefixes=version >= (0, 26),
        all_states_default=version < (0, 28),
        checkpoints=version >= (0, 32),
        latent_hybrid_alignment=128 if version >= (0, 27) else 0 if version >= (0, 20) else 64,
        hopper_latent_block=version < (0, 18),
        concurrency_by_tokens=version < (0, 9, 1),
        tokens_by_concurrency=version >= (0, 20, 2),
        null_block_reserved=version >= (0, 29),
    )
