"""The GGUF header reader: what it keeps, what it leaves out, and what it says of broken and hostile files."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
from typing import TYPE_CHECKING, cast

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvwatch.cost.gguf import GgufError, read_gguf_header
from kvwatch.cost.gguf_types import CACHE_TYPES, TENSOR_TYPES
from kvwatch.readings import Reason
from tests.cost_llamacpp.files import raw_gguf, read, text

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from hypothesis.strategies import DrawFn

UINT32, STRING, ARRAY, UINT64 = (struct.pack("<I", tag) for tag in (4, 8, 9, 10))


def small_file(path: Path) -> Path:
    """Write a small model with one value of each type, a tokenizer and three tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -30_000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -7)
    writer.add_uint64("a.u64", 1 << 40)
    writer.add_int64("a.i64", -(1 << 40))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.25)
    writer.add_bool("a.bool", val=True)
    writer.add_string("a.text", "größer")
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.flags", [True, False])
    writer.add_array("a.texts", ["x", "yz"])
    writer.add_token_list([f"token{index}" for index in range(500)])
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.zeros((16, 32), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((8, 32), np.float16))
    quantised = np.zeros((4, 34 * 2), np.uint8)
    writer.add_tensor("blk.0.ffn_up.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class TestReading:
    """Headers that are fine."""

    def test_every_value_type_is_read(self, tmp_path: Path) -> None:
        """Numbers, flags, strings and arrays come back as they were written."""
        metadata = read(small_file(tmp_path / "m.gguf")).metadata
        kept = {key: value for key, value in metadata.items() if key.startswith("a.")}
        assert kept == {
            "a.u8": 200,
            "a.i8": -3,
            "a.u16": 60_000,
            "a.i16": -30_000,
            "a.u32": 4_000_000_000,
            "a.i32": -7,
            "a.u64": 1 << 40,
            "a.i64": -(1 << 40),
            "a.f32": 0.5,
            "a.f64": 0.25,
            "a.bool": True,
            "a.text": "größer",
            "a.numbers": (1, 2, 3),
            "a.flags": (True, False),
        }

    def test_the_tokenizer_is_left_out(self, tmp_path: Path) -> None:
        """Neither the vocabulary nor the chat template nor arrays of strings are kept; their sizes are."""
        header = read(small_file(tmp_path / "m.gguf"))
        assert not any(key.startswith("tokenizer.") for key in header.metadata)
        assert header.skipped == {"a.texts": 2, "tokenizer.ggml.tokens": 500, "tokenizer.chat_template": 14}

    def test_the_tensor_table_is_read(self, tmp_path: Path) -> None:
        """Shapes are fastest dimension first, and bytes count the scales of quantised blocks."""
        tensors = read(small_file(tmp_path / "m.gguf")).tensors
        table = {name: (one.shape, one.type_name, one.size_bytes) for name, one in tensors.items()}
        assert table == {
            "token_embd.weight": ((32, 16), "f32", 2048),
            "blk.0.attn_q.weight": ((32, 8), "f16", 512),
            "blk.0.ffn_up.weight": ((64, 4), "q8_0", 272),
        }

    def test_the_weights_start_where_the_writer_put_them(self, tmp_path: Path) -> None:
        """`data_offset` and the tensors' bytes, each padded to the alignment, make up the file."""
        path = small_file(tmp_path / "m.gguf")
        header = read(path)
        padded = sum(-(-tensor.size_bytes // 32) * 32 for tensor in header.tensors.values())
        assert path.stat().st_size == header.data_offset + padded

    def test_version_2_is_read(self) -> None:
        """GGUF 2 has the layout of GGUF 3."""
        stream = raw_gguf(text("llama.block_count"), UINT32, struct.pack("<I", 4), keys=1, version=2)
        assert read_gguf_header(stream).metadata == {"llama.block_count": 4}

    def test_a_first_shard_says_so(self) -> None:
        """The numbers of a split model are noted."""
        parts = [
            text("split.count") + struct.pack("<IH", 2, 3),
            text("split.no") + struct.pack("<IH", 2, 0),
            text("split.tensors.count") + struct.pack("<Ii", 5, 291),
        ]
        header = read_gguf_header(raw_gguf(*parts, keys=3))
        assert (header.split_count, header.split_no, header.split_tensors) == (3, 0, 291)

    def test_weights_are_not_read(self, tmp_path: Path) -> None:
        """A sparse file of a terabyte takes no longer than its header."""
        path = small_file(tmp_path / "m.gguf")
        with path.open("r+b") as file:
            file.truncate(1 << 40)
        started = time.perf_counter()
        header = read(path)
        assert len(header.tensors) == 3
        assert time.perf_counter() - started < 1

    @settings(deadline=None)
    @given(steps=st.lists(st.integers(1, 400), min_size=1, max_size=8))
    def test_any_read_sizes_give_the_same(self, steps: list[int]) -> None:
        """A stream that hands out its bytes in small pieces is read as one that does not."""
        tokens = b"".join(text("t" * (index % 70)) for index in range(300))
        body = [
            text("tokenizer.ggml.tokens") + ARRAY + STRING + struct.pack("<Q", 300) + tokens,
            text("llama.block_count") + UINT32 + struct.pack("<I", 4),
        ]
        raw = raw_gguf(*body, keys=2).getvalue()
        header = read_gguf_header(cast("BinaryIO", Pieces(raw, steps)))
        assert (header.metadata, header.skipped) == ({"llama.block_count": 4}, {"tokenizer.ggml.tokens": 300})

    def test_a_large_vocabulary_takes_little_memory(self) -> None:
        """Vocabularies are walked, not stored: of 40 MB the peak stays below a few chunks."""
        tokens = text("x" * 1990) * 20_000
        parts = [
            text("tokenizer.ggml.tokens") + ARRAY + STRING + struct.pack("<Q", 20_000) + tokens,
            text("llama.block_count") + UINT32 + struct.pack("<I", 4),
        ]
        stream = raw_gguf(*parts, keys=2)
        tracemalloc.start()
        header = read_gguf_header(stream)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert header.metadata == {"llama.block_count": 4}
        assert peak < 8 << 20


class Pieces(io.RawIOBase):
    """A stream that returns at most so many bytes a read, in turn."""

    def __init__(self, raw: bytes, steps: list[int]) -> None:
        self._inner = io.BytesIO(raw)
        self._steps = steps
        self._turn = 0

    def read(self, size: int = -1) -> bytes:
        """Return fewer bytes than asked for."""
        self._turn += 1
        step = self._steps[self._turn % len(self._steps)]
        return self._inner.read(min(step, size) if size >= 0 else step)


HUGE = struct.pack("<Q", (1 << 64) - 1)
REFUSED = {
    "not gguf": (io.BytesIO(b"PK\x03\x04" + bytes(20)), Reason.PARSE_ERROR, "not a GGUF file"),
    "empty file": (io.BytesIO(b""), Reason.PARSE_ERROR, "ends 4 bytes early"),
    "big endian": (
        io.BytesIO(b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
        Reason.NOT_SUPPORTED,
        "big-endian GGUF",
    ),
    "version 1": (raw_gguf(version=1), Reason.NOT_SUPPORTED, "GGUF version 1"),
    "version 4": (raw_gguf(version=4), Reason.NOT_SUPPORTED, "GGUF version 4"),
    "too many keys": (raw_gguf(keys=(1 << 63)), Reason.TOO_LARGE, "number of keys"),
    "too many tensors": (raw_gguf(tensors=(1 << 63)), Reason.TOO_LARGE, "number of tensors"),
    "endless key": (raw_gguf(HUGE, keys=1), Reason.TOO_LARGE, "length of key"),
    "key is not text": (raw_gguf(text(b"\xff\xfe"), keys=1), Reason.PARSE_ERROR, "not UTF-8"),
    "empty key": (raw_gguf(text(""), UINT32, bytes(4), keys=1), Reason.PARSE_ERROR, "empty"),
    "endless string": (raw_gguf(text("a"), STRING, HUGE, keys=1), Reason.TOO_LARGE, "string length"),
    "endless array": (raw_gguf(text("a"), ARRAY, UINT64, HUGE, keys=1), Reason.TOO_LARGE, "array length"),
    "array of arrays": (
        raw_gguf(text("a"), ARRAY, ARRAY, struct.pack("<Q", 1), keys=1),
        Reason.PARSE_ERROR,
        "array of arrays",
    ),
    "unknown value type": (
        raw_gguf(text("a"), struct.pack("<I", 13), keys=1),
        Reason.PARSE_ERROR,
        "value type 13",
    ),
    "key twice": (
        raw_gguf(*[text("a") + UINT32 + bytes(4)] * 2, keys=2),
        Reason.PARSE_ERROR,
        "appears twice",
    ),
    "skipped key twice": (
        raw_gguf(*[text("tokenizer.a") + UINT32 + bytes(4)] * 2, keys=2),
        Reason.PARSE_ERROR,
        "appears twice",
    ),
    "alignment 7": (
        raw_gguf(text("general.alignment"), UINT32, struct.pack("<I", 7), keys=1),
        Reason.PARSE_ERROR,
        "no power of two",
    ),
    "nine dimensions": (
        raw_gguf(text("w"), struct.pack("<I", 9), tensors=1),
        Reason.TOO_LARGE,
        "dimensions",
    ),
    "overflowing shape": (
        raw_gguf(text("w"), struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0), tensors=1),
        Reason.PARSE_ERROR,
        "too many elements",
    ),
    "removed tensor type": (
        raw_gguf(text("w"), struct.pack("<IQIQ", 1, 32, 4, 0), tensors=1),
        Reason.NOT_SUPPORTED,
        "tensor type 4",
    ),
    "broken blocks": (
        raw_gguf(text("w"), struct.pack("<IQIQ", 1, 33, 8, 0), tensors=1),
        Reason.PARSE_ERROR,
        "do not divide",
    ),
    "blocks without a row": (
        raw_gguf(text("w"), struct.pack("<IIQ", 0, 3, 0), tensors=1),
        Reason.PARSE_ERROR,
        "rows of 1 do not divide",
    ),
    "tensor twice": (
        raw_gguf(*[text("w") + struct.pack("<IQIQ", 1, 32, 0, 0)] * 2, tensors=2),
        Reason.PARSE_ERROR,
        "appears twice",
    ),
    "long tensor name": (raw_gguf(text("w" * 64), tensors=1), Reason.TOO_LARGE, "length of tensor name"),
}


class TestRefusing:
    """Headers that are not."""

    @pytest.mark.parametrize("situation", REFUSED)
    def test_a_bad_header_is_named(self, situation: str) -> None:
        """The error has a reason, says what is wrong and where."""
        stream, reason, words = REFUSED[situation]
        stream.seek(0)
        with pytest.raises(GgufError, match=words) as caught:
            read_gguf_header(stream)
        assert caught.value.reason is reason
        assert f"at byte {caught.value.offset}" in str(caught.value)

    def test_a_truncated_file_names_key_and_offset(self, tmp_path: Path) -> None:
        """Wherever the header is cut, the error tells how far it came."""
        path = small_file(tmp_path / "m.gguf")
        whole = path.read_bytes()
        end = whole.index(b"blk.0.ffn_up.weight") + 19 + 4 + 16 + 4 + 8
        for length in range(0, end, 7):
            with pytest.raises(GgufError, match="early") as caught:
                read_gguf_header(io.BytesIO(whole[:length]))
            assert caught.value.offset <= length
        cut = whole.index(b"a.u8") + 4 + 4
        with pytest.raises(GgufError, match=r"field a\.u8") as caught:
            read_gguf_header(io.BytesIO(whole[:cut]))
        assert caught.value.field == "a.u8"
        assert caught.value.architecture == "llama"

    def test_a_vocabulary_bomb_ends_soon(self) -> None:
        """More strings than any vocabulary has are refused before they are walked."""
        array = ARRAY + STRING + struct.pack("<Q", 1 << 22)
        parts = [text(f"tokenizer.{index}") + array + bytes(8 << 22) for index in range(2)]
        started = time.perf_counter()
        with pytest.raises(GgufError, match="too many strings"):
            read_gguf_header(raw_gguf(*parts, keys=2))
        assert time.perf_counter() - started < 5

    def test_metadata_is_kept_up_to_a_limit(self) -> None:
        """Long strings are left out, and many short of that end in an error."""
        value = "x" * 65_536
        parts = [text(f"key{index}") + STRING + text(value) for index in range(300)]
        with pytest.raises(GgufError, match="metadata over"):
            read_gguf_header(raw_gguf(*parts, keys=300))
        longer = raw_gguf(text("key"), STRING, text(value + "y"), keys=1)
        assert read_gguf_header(longer).skipped == {"key": 65_537}

    def test_long_arrays_are_left_out(self) -> None:
        """An array longer than any model has layers is passed over."""
        numbers = struct.pack("<Q", 5_000) + bytes(5_000 * 8)
        header = read_gguf_header(raw_gguf(text("a"), ARRAY, UINT64, numbers, keys=1))
        assert (header.metadata, header.skipped) == ({}, {"a": 5_000})

    @settings(deadline=None)
    @given(st.data())
    def test_a_damaged_file_never_breaks_the_reader(self, data: st.DataObject) -> None:
        """Whatever bytes change, the outcome is a header or a `GgufError`."""
        damaged = bytearray(VALID)
        for _ in range(data.draw(st.integers(1, 6))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        read_or_refuse(bytes(damaged))

    @settings(deadline=None)
    @given(st.binary(max_size=300))
    @example(b"")
    def test_random_bytes_never_break_the_reader(self, raw: bytes) -> None:
        """Random bytes after the magic are refused."""
        read_or_refuse(b"GGUF\x03\x00\x00\x00" + raw)

    @settings(deadline=None)
    @given(st.data())
    def test_lying_counts_never_break_the_reader(self, data: st.DataObject) -> None:
        """Counts and lengths of any size are checked against what follows."""
        read_or_refuse(data.draw(lying_headers()))


VALID = raw_gguf(
    text("general.architecture") + STRING + text("llama"),
    text("llama.block_count") + UINT32 + struct.pack("<I", 4),
    text("llama.attention.head_count_kv") + ARRAY + UINT32 + struct.pack("<Q4I", 4, 1, 2, 1, 2),
    text("tokenizer.ggml.tokens") + ARRAY + STRING + struct.pack("<Q", 2) + text("a") + text("bc"),
    text("blk.0.w") + struct.pack("<IQQIQ", 2, 32, 4, 8, 0),
    keys=4,
    tensors=1,
).getvalue()


@st.composite
def lying_headers(draw: DrawFn) -> bytes:
    """Draw headers whose counts and lengths promise more than there is."""
    number = st.one_of(st.integers(0, 40), st.integers(0, (1 << 64) - 1))
    parts = [b"GGUF" + struct.pack("<IQQ", 3, draw(number), draw(number))]
    for _ in range(draw(st.integers(0, 4))):
        parts.append(struct.pack("<Q", draw(number)) + draw(st.binary(max_size=12)))
        parts.append(struct.pack("<I", draw(st.integers(0, 14))))
        parts.append(struct.pack("<Q", draw(number)))
    return b"".join(parts)


def read_or_refuse(raw: bytes) -> None:
    """Read; a refusal must name a place within the file."""
    try:
        read_gguf_header(io.BytesIO(raw))
    except GgufError as error:
        place = error.offset
    else:
        place = 0
    assert place <= len(raw)


class TestTypes:
    """Sizes of the element types."""

    def test_sizes_agree_with_the_gguf_package(self) -> None:
        """Block sizes are the package's, but for the one type that it pads and no file stores."""
        known = {
            int(kind): (elements, size)
            for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items()
            if kind is not gguf.GGMLQuantizationType.Q8_1
        }
        ours = {number: (kind.block_elements, kind.block_bytes) for number, kind in TENSOR_TYPES.items()}
        assert known == {number: ours[number] for number in known}

    @pytest.mark.parametrize(
        "name, bits",
        [
            ("f32", 32),
            ("f16", 16),
            ("bf16", 16),
            ("q8_0", 8.5),
            ("q5_1", 6),
            ("q5_0", 5.5),
            ("q4_1", 5),
            ("q4_0", 4.5),
            ("iq4_nl", 4.5),
        ],
    )
    def test_cache_types_have_their_bits(self, name: str, bits: float) -> None:
        """The nine cache types take their documented bits a value, scales included."""
        kind = CACHE_TYPES[name]
        assert kind.block_bytes * 8 == bits * kind.block_elements
        assert len(CACHE_TYPES) == 9
