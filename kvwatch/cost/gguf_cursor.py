"""A bounded reader over a binary stream: every length is checked before a byte of it is read."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kvwatch.cost.spec import ModelSpecError
from kvwatch.readings import Reason

if TYPE_CHECKING:
    from typing import BinaryIO

CHUNK_BYTES = 1 << 20


class GgufError(ModelSpecError):
    """A GGUF file that cannot be read: `field` is the key or tensor, `offset` the byte where it broke off."""

    def __init__(
        self, reason: Reason, detail: str, *, key: str | None, offset: int, architecture: str | None = None
    ) -> None:
        super().__init__(reason, architecture=architecture, field=key, detail=f"{detail}, at byte {offset}")
        self.offset = offset


class Cursor:
    """Reads forward through a stream in chunks, within limits; `key` names what is being read."""

    def __init__(self, stream: BinaryIO, *, limit_bytes: int, limit_texts: int) -> None:
        self._stream = stream
        self._limit = limit_bytes
        self._texts = limit_texts
        self._buffer = b""
        self._at = 0
        self._base = 0
        self.key: str | None = None
        self.architecture: str | None = None

    @property
    def offset(self) -> int:
        """Bytes consumed since the stream was handed over."""
        return self._base + self._at

    def fail(self, detail: str, reason: Reason = Reason.PARSE_ERROR) -> GgufError:
        """Build the error for this place."""
        return GgufError(reason, detail, key=self.key, offset=self.offset, architecture=self.architecture)

    def _need(self, count: int) -> None:
        """Have `count` bytes in the buffer, or raise."""
        if self.offset + count > self._limit:
            raise self.fail(f"header longer than {self._limit} bytes", Reason.TOO_LARGE)
        missing = count - (len(self._buffer) - self._at)
        if missing <= 0:
            return
        parts = [self._buffer[self._at :]]
        while missing > 0:
            part = self._stream.read(max(missing, CHUNK_BYTES))
            if not part:
                raise self.fail(f"file ends {missing} bytes early")
            parts.append(part)
            missing -= len(part)
        self._base += self._at
        self._at = 0
        self._buffer = b"".join(parts)

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        self._need(count)
        start = self._at
        self._at += count
        return self._buffer[start : self._at]

    def unpack(self, code: str) -> tuple[int | float | bool, ...]:
        """Return the next little-endian values of a `struct` code."""
        packed = struct.Struct("<" + code)
        return packed.unpack(self.take(packed.size))

    def count(self, code: str, what: str, most: int) -> int:
        """Return the next unsigned integer, at most `most`."""
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        if value > most:
            raise self.fail(f"{what} {value} is more than {most}", Reason.TOO_LARGE)
        return int(value)

    def text(self, what: str, most: int) -> str:
        """Return the next length-prefixed string of at most `most` bytes."""
        raw = self.take(self.count("Q", f"length of {what}", most))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def skip(self, count: int) -> None:
        """Pass over `count` bytes without keeping more than a chunk of them."""
        if self.offset + count > self._limit:
            raise self.fail(f"header longer than {self._limit} bytes", Reason.TOO_LARGE)
        while count > 0:
            step = min(count, CHUNK_BYTES)
            self._need(step)
            self._at += step
            count -= step

    def skip_texts(self, count: int) -> None:
        """Pass over `count` length-prefixed strings: vocabularies hold hundreds of thousands."""
        self._texts -= count
        if self._texts < 0:
            raise self.fail("too many strings", Reason.TOO_LARGE)
        read_length = struct.Struct("<Q").unpack_from
        while count > 0:
            # The inner loop walks what is in memory; only strings that cross a chunk take the slow way.
            buffer, at, end = self._buffer, self._at, len(self._buffer) - 8
            while count > 0 and at <= end:
                following = at + 8 + read_length(buffer, at)[0]
                if following > end + 8:
                    break
                at = following
                count -= 1
            self._at = at
            if count > 0:
                self.skip(self.count("Q", "string length", self._limit))
                count -= 1
