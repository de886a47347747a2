"""Typed access to the keys of a GGUF header, as llama.cpp's loader reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.cost.spec import ModelSpecError
from kvwatch.readings import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.cost.gguf import GgufHeader, GgufValue

MAX_LAYERS = 512
"""`LLAMA_MAX_LAYERS`: more than any public model has, and a limit for arrays of one value a layer."""
MAX_WHOLE = (1 << 32) - 1


class Keys:
    """The keys of one architecture; `whole("x.y")` reads `<architecture>.x.y`."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.architecture = architecture
        self.tensors = header.tensors
        self.shards = header.split_count
        self._header = header

    def refuse(self, key: str, detail: str, reason: Reason = Reason.MISSING_FIELD) -> ModelSpecError:
        """Build the error that names the architecture and the key."""
        return ModelSpecError(
            reason, architecture=self.architecture, field=f"{self.architecture}.{key}", detail=detail
        )

    def _raw(self, key: str) -> GgufValue | None:
        full = f"{self.architecture}.{key}"
        if full in self._header.skipped:
            raise self.refuse(key, "a number or an array of one number a layer is expected")
        return self._header.metadata.get(full)

    def optional(self, key: str) -> int | None:
        """Return an unsigned 32-bit number, None where the key is missing."""
        value = self._raw(key)
        return None if value is None else self._whole(key, value)

    def whole(self, key: str, absent: int) -> int:
        """Return an unsigned 32-bit number, `absent` where the key is missing."""
        value = self.optional(key)
        return absent if value is None else value

    def truth(self, key: str, *, absent: bool) -> bool:
        """Return a flag, `absent` where the key is missing."""
        value = self._raw(key)
        return absent if value is None else bool(value)

    def required(self, key: str) -> int:
        """Return an unsigned 32-bit number that must be there."""
        value = self.optional(key)
        if value is None:
            raise self.refuse(key, "required")
        return value

    def per_layer(self, key: str, layers: int) -> tuple[int, ...] | None:
        """Return one number a layer: the scalar repeated, or an array of exactly that length."""
        value = self._raw(key)
        if value is None:
            return None
        if isinstance(value, tuple):
            if len(value) != layers:
                raise self.refuse(key, f"{len(value)} values for {layers} layers")
            return tuple(self._whole(key, int(one) if one is True or one is False else one) for one in value)
        return (self._whole(key, value),) * layers

    def flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """Return one flag a layer from an array of any length, None where the key is missing or a scalar."""
        value = self._raw(key)
        if not isinstance(value, tuple):
            return None
        if len(value) > MAX_LAYERS or any(isinstance(one, float) for one in value):
            raise self.refuse(key, "an array of at most 512 flags is expected")
        return tuple(bool(one) for one in (*value, *(0,) * layers)[:layers])

    def list_of(self, key: str) -> tuple[int, ...] | None:
        """Return an array of numbers, None where the key is missing."""
        value = self._raw(key)
        if value is None:
            return None
        if not isinstance(value, tuple):
            raise self.refuse(key, "an array is expected")
        return tuple(self._whole(key, one) for one in value)

    def _whole(self, key: str, value: GgufValue) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_WHOLE:
            raise self.refuse(key, f"{value!r} is no unsigned 32-bit number")
        return value


def by_layer(layers: int, rule: Callable[[int], bool]) -> tuple[bool, ...]:
    """Return the layers' flags by a rule over their index."""
    return tuple(rule(index) for index in range(layers))
