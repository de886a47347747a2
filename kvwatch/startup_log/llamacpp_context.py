"""One llama_context of a llama-server: its settings and the buffers it made on each device."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvwatch.startup_log import llamacpp_lines as lines

MOST_DEVICES = 256
PER_CONTEXT = (
    ("kv", lines.KV, True),
    ("recurrent", lines.RECURRENT, True),
    ("output", lines.OUTPUT, False),
    ("compute", lines.COMPUTE, False),
)
"""Window and recurrent caches print a line each, so those add up; a graph reserved again"
" replaces the last."""


@dataclass
class Context:
    """One llama_context: the model's own, or a draft's."""

    settings: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, dict[str, int]] = field(
        default_factory=lambda: {name: {} for name, _, _ in PER_CONTEXT}
    )
    kv_sizes: int | None = None
    recurrent_sizes: int | None = None
    types: tuple[str | None, str | None] | None = None

    @property
    def kv_bytes(self) -> int | None:
        """Return the caches, by their buffers or by their sum."""
        return sum(self.buffers["kv"].values()) if self.buffers["kv"] else self.kv_sizes

    @property
    def recurrent_bytes(self) -> int | None:
        """Return the states, by their buffers or by their sum."""
        return sum(self.buffers["recurrent"].values()) if self.buffers["recurrent"] else self.recurrent_sizes


def is_over(context: Context, text: str) -> bool:
    """Say whether the next context begins: the same setting again, or after memory was made."""
    if "constructing" in text:
        return bool(context.settings) or any(context.buffers.values())
    setting = lines.SETTING.search(text)
    return setting is not None and setting.group(1) in context.settings and any(context.buffers.values())


def device_name(name: str) -> str:
    """Return the device whose memory a buffer lies in."""
    return name.removesuffix("_Mapped")


def add(buffers: dict[str, int], name: str, size: int) -> None:
    """Add to a device's buffers."""
    key = device_name(name)
    if key in buffers or len(buffers) < MOST_DEVICES:
        buffers[key] = buffers.get(key, 0) + size
