"""SGLang's two lines about its pool, as public reports quote them; it prints GiB and calls them GB."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.startup_log.amounts import NUMBER, gib
from kvwatch.startup_log.facts import Memory, Start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.startup_log.unwrap import Entry

_POOL = re.compile(
    rf"KV Cache is allocated\..*?#tokens: (\d{{1,12}}), K size: ({NUMBER}) GB, V size: ({NUMBER}) GB"
)
_WEIGHTS = re.compile(rf"Load weight end\..*?mem usage=({NUMBER}) GB")
_LIMITS = re.compile(r"max_total_num_tokens=(\d{1,12}),.*?context_len=(\d{1,12})")
_READY = re.compile(r"The server is fired up and ready to roll")

WORDS = ("KV Cache is allocated", "Load weight end", "max_total_num_tokens=", "fired up and ready")


class SglangReader:
    """Reads the lines of one source; a pool allocated again is the next start."""

    def __init__(self) -> None:
        self._first: Entry | None = None
        self._facts: dict[str, int] = {}
        self._ready = False

    def read(self, entry: Entry) -> Iterator[Start | bool]:
        """Take a line in; yield a start that ends before it, and True if the line meant anything."""
        text = entry.text
        pool, weights, limits = _POOL.search(text), _WEIGHTS.search(text), _LIMITS.search(text)
        if not (pool or weights or limits or _READY.search(text)):
            return
        if (weights or pool) and self._ready:
            yield from self.finish()
        self._first = self._first or entry
        if pool is not None:
            # Tensor-parallel ranks print one each; the pool is the smallest's.
            kv_bytes = gib(pool.group(2)) + gib(pool.group(3))
            self._facts["kv_bytes"] = min(kv_bytes, self._facts.get("kv_bytes", kv_bytes))
            self._facts["kv_tokens"] = min(
                int(pool.group(1)), self._facts.get("kv_tokens", int(pool.group(1)))
            )
        if weights is not None:
            self._facts["weights_bytes"] = gib(weights.group(1))
        if limits is not None:
            self._facts["kv_tokens"] = int(limits.group(1))
            self._facts["max_model_len"] = int(limits.group(2))
        self._ready = self._ready or _READY.search(text) is not None
        yield True

    def finish(self) -> Iterator[Start]:
        """Yield the start that is under way."""
        if self._first is not None:
            yield Start(
                engine="sglang",
                source=self._first.source,
                line=self._first.number,
                moment=self._first.moment,
                ready=self._ready,
                memory=Memory(
                    kv_bytes=self._facts.get("kv_bytes"), weights_bytes=self._facts.get("weights_bytes")
                ),
                kv_tokens=self._facts.get("kv_tokens"),
                max_model_len=self._facts.get("max_model_len"),
                settings={},
                configuration={},
            )
        self._first, self._facts, self._ready = None, {}, False
