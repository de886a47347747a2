"""llama-server's reasons not to start, with their numbers (llama.cpp 2023-11 to b11434)."""

from __future__ import annotations

import re

from kvwatch.byte_sizes import size
from kvwatch.startup_log.amounts import NUMBER, mib
from kvwatch.startup_log.facts import Failure

_ALLOCATING = re.compile(
    rf"allocating ({NUMBER}) MiB on device (\d+): \w+ failed: (?P<why>.{{1,80}})"
    rf"|attempted to allocate ({NUMBER}) MB"
)
_BUFFER = re.compile(
    r"failed to allocate (\w+) buffer of size (\d{1,18})|failed to allocate buffer of size (\d{1,18})"
)
_RETRIED = re.compile(r"retrying without pipeline parallelism")
_DEVICE_ERROR = re.compile(
    r"(?:CUDA|ROCm|HIP) error: (out of memory|.{1,80})|cudaMalloc failed: out of memory"
)
_FLASH = re.compile(r"(?i)(?:quantized )?V cache (?:quantization )?requires flash_attn")
_PURPOSES = (
    (
        re.compile(r"failed to allocate (?:memory|buffer) for (?:kv|rs) cache|kv_cache_init\(?\)? failed"),
        "the KV cache",
    ),
    (re.compile(r"failed to allocate compute (?:pp |tg )?buffers"), "the compute buffers"),
    (
        re.compile(r"unable to allocate \S+ (?:\S+ )?buffer|error loading model: failed to allocate buffer"),
        "the weights",
    ),
    (re.compile(r"failed to allocate output buffer"), "the output buffer"),
)
_ENDED = re.compile(
    r"exiting due to model loading error|unable to load model|failed to load (?:the )?model|error loading"
    r" model|failed to create_?\s?context|failed to initialize the context"
)
_WHY = re.compile(r"error loading model: (.*)|failed to initialize the context: (.*)", re.DOTALL)
_LONGEST = 300

WORDS = (
    "failed",
    "attempted to allocate",
    "unable to",
    "retrying without",
    "error loading",
    "CUDA error",
    "ROCm error",
    "HIP error",
    "flash_attn",
    "exiting due",
)


class LlamaFailure:
    """Puts together what several lines say of one failure; an allocation that is tried again is none."""

    def __init__(self) -> None:
        self._line = 0
        self._numbers: dict[str, int | float] = {}
        self._device: str | None = None
        self._purpose: str | None = None
        self._reason: str | None = None
        self._flash = False
        self.ended = False

    def read(self, text: str, line: int) -> bool:
        """Take a line in; say whether it is part of a failure."""
        if _RETRIED.search(text):
            self._numbers, self._device, self._purpose = {}, None, None
            return True
        known = self._allocation(text)
        for pattern, purpose in _PURPOSES:
            if pattern.search(text):
                self._purpose = self._purpose or purpose
                known = True
        if _FLASH.search(text):
            self._flash = known = True
        error = _DEVICE_ERROR.search(text)
        if error is not None and not known:
            self._reason = self._reason or f"the device reports: {error.group(1) or 'out of memory'}"
            self.ended = known = True
        if _ENDED.search(text):
            self.ended = known = True
            why = _WHY.search(text)
            if why is not None:
                self._reason = self._reason or (why.group(1) or why.group(2)).strip()[:_LONGEST]
        if known:
            self._line = self._line or line
        return known

    def _allocation(self, text: str) -> bool:
        found = _ALLOCATING.search(text)
        if found is not None:
            # One is enough: a server that tries again with less says so first.
            self._numbers.setdefault("tried_bytes", mib(found.group(1) or found.group(4)))
            if found.group(2) is not None:
                self._device = self._device or f"device {found.group(2)}"
            return True
        found = _BUFFER.search(text)
        if found is not None:
            self._numbers["tried_bytes"] = int(found.group(2) or found.group(3))
            self._device = found.group(1) or self._device
            return True
        return False

    def result(self, *, context: int | None, deficit: int | None) -> Failure | None:
        """Return the failure; None where nothing says that it ended the start.

        `context` is the n_ctx of the context that was being made, `deficit` what `--fit` found missing.
        """
        if not self.ended:
            return None
        numbers = dict(self._numbers)
        if self._flash:
            kind = "flash_attention"
            text = "a quantised V cache needs flash attention: set --flash-attn on, or --cache-type-v f16"
        elif "tried_bytes" in numbers:
            kind = "out_of_memory"
            text = self._allocation_text(numbers, context, deficit)
        else:
            kind = "failed"
            text = self._reason or "the server says no more than that the model could not be loaded"
        return Failure(kind=kind, text=text, line=self._line, numbers=numbers)

    def _allocation_text(
        self, numbers: dict[str, int | float], context: int | None, deficit: int | None
    ) -> str:
        tried = int(numbers["tried_bytes"])
        where = "" if self._device is None else f" on {self._device}"
        said = [f"{size(tried)} for {self._purpose or 'a buffer'} could not be allocated{where}"]
        if self._purpose == "the KV cache" and context:
            numbers["max_model_len"] = context
            said.append(f"--ctx-size {context:,} costs {size(tried * 1024 // context)} for each 1,024 tokens")
            if deficit is not None and deficit < tried:
                # Compute buffers shrink too, so this length is on the safe side.
                fitting = (context - -(-deficit * context // tried)) // 256 * 256
                numbers["estimated_max_model_len"] = fitting
                said.append(f"by its own projection about {fitting:,} fit")
        return "; ".join(said)
