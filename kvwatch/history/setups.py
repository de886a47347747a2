"""What a server is made of, as a Setup. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from kvwatch.observation import Setup

if TYPE_CHECKING:
    from kvwatch.snapshot import RankState, ServerState

_UNKNOWN = Setup()
_FIELDS = tuple(field.name for field in fields(Setup))


def setup_of(server: ServerState, rank: RankState, driver: str | None) -> Setup:
    """Return the setup of one rank; of the command line it holds what the server's own page states too."""
    reading, target = server.reading, server.target
    return Setup(
        engine=reading.engine if reading else None,
        model=reading.model if reading else None,
        version=reading.version if reading else None,
        model_hash=server.model_hash,
        fingerprint=server.fingerprint,
        settings=tuple(sorted(reading.settings)) if reading else (),
        cache_dtype=server.cache_dtype or (reading.cache_dtype if reading else None),
        tensor_parallel=target.tensor_parallel,
        pipeline_parallel=target.pipeline_parallel,
        block_size=rank.reading.block_size,
        max_num_batched_tokens=target.max_num_batched_tokens,
        share_ratio=server.share_ratio,
        pin_bytes=server.pin_bytes,
        full_length_tokens=server.full_length_tokens,
        request_limit=rank.load.request_limit,
        bytes_per_block=server.bytes_per_block,
        resident_blocks=rank.resident_blocks,
        groups=server.groups,
        devices=tuple(sorted(server.device_bytes)),
        driver=driver,
    )


def says_no_more(setup: Setup, than: Setup) -> bool:
    """Tell whether all that `setup` knows, `than` knows as well: a page that was missing changes nothing."""
    return setup == than or all(
        (value := getattr(setup, name)) == getattr(_UNKNOWN, name) or value == getattr(than, name)
        for name in _FIELDS
    )
