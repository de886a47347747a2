"""Bytes of weights from what files say: exact where they settle it, None where they do not."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.cost.gguf import GgufHeader, GgufTensor
from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.weights import (
    WeightBytes,
    checkpoint_bytes,
    gguf_weights,
    rank_weight_bytes,
    read_safetensors_header,
)
from kvwatch.readings import Reason
from tests.cost_llamacpp.files import header_of


def safetensors(table: dict[str, Any], data: int = 0) -> io.BytesIO:
    """Write a safetensors file in memory."""
    raw = json.dumps(table).encode()
    return io.BytesIO(struct.pack("<Q", len(raw)) + raw + bytes(data))


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    """Write one row of the table."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


TABLE = {
    "__metadata__": {"format": "pt"},
    "embed.weight": entry("BF16", [10, 4], 0, 80),
    "norm.weight": entry("F32", [4], 80, 96),
    "packed.weight": entry("F4", [2, 8], 96, 104),
    "new.weight": entry("F9", [3], 104, 111),
}


class TestSafetensorsHeaders:
    """Reading the table of a safetensors file."""

    def test_bytes_by_tensor_and_type(self) -> None:
        """Bytes are those of the offsets; a type that is not known is counted by them alone."""
        header = read_safetensors_header(safetensors(TABLE, 111))
        assert header.tensors == {
            "embed.weight": 80,
            "norm.weight": 16,
            "packed.weight": 8,
            "new.weight": 7,
        }
        assert header.by_dtype == {"BF16": 80, "F32": 16, "F4": 8, "F9": 7}
        assert header.header_bytes + 111 == len(safetensors(TABLE, 111).getvalue())

    @pytest.mark.parametrize(
        "raw, reason",
        [
            (b"", Reason.PARSE_ERROR),
            (struct.pack("<Q", 10) + b"{}", Reason.PARSE_ERROR),
            (struct.pack("<Q", 1 << 40), Reason.TOO_LARGE),
            (struct.pack("<Q", 4) + b"nope", Reason.PARSE_ERROR),
            (struct.pack("<Q", 2) + b"[]", Reason.PARSE_ERROR),
            (struct.pack("<Q", 9) + b'{"a": 1}\n', Reason.PARSE_ERROR),
            (struct.pack("<Q", 20_000) + b"[" * 20_000, Reason.PARSE_ERROR),
        ],
    )
    def test_a_broken_file_is_refused(self, raw: bytes, reason: Reason) -> None:
        """A file that is cut off, no table, or too deep ends in an error."""
        with pytest.raises(ModelSpecError) as caught:
            read_safetensors_header(io.BytesIO(raw))
        assert caught.value.reason is reason

    @pytest.mark.parametrize(
        "row",
        [
            entry("BF16", [10, 4], 0, 79),
            entry("BF16", [10, 4], 80, 0),
            entry("BF16", [10, -4], 0, 80),
            entry("BF16", [10, 4.0], 0, 80),  # type: ignore[list-item]
            {"dtype": "BF16", "shape": [1]},
            {"dtype": "BF16", "shape": [1], "data_offsets": [1]},
            {"dtype": 7, "shape": [1], "data_offsets": [0, 2]},
            [],
        ],
    )
    def test_a_bad_row_is_named(self, row: Any) -> None:
        """A row whose bytes do not fit its shape, or that is none, names its tensor."""
        with pytest.raises(ModelSpecError) as caught:
            read_safetensors_header(safetensors({"w": row}))
        assert caught.value.field == "w"

    @settings(deadline=None)
    @given(st.binary(max_size=200))
    def test_random_bytes_never_break_the_reader(self, raw: bytes) -> None:
        """The outcome is a table or a `ModelSpecError`."""
        try:
            header = read_safetensors_header(io.BytesIO(struct.pack("<Q", len(raw)) + raw))
        except ModelSpecError:
            return
        assert header.header_bytes == 8 + len(raw)


INDEX = {
    "metadata": {"total_size": 1000},
    "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"},
}
HEADER = read_safetensors_header(safetensors({"w": entry("BF16", [10, 4], 0, 80)}))


class TestCheckpoints:
    """A whole checkpoint's bytes from the best evidence."""

    def test_headers_are_exact(self) -> None:
        """Headers of all its files win over what the index states."""
        headers = {
            "model-1.safetensors": HEADER,
            "model-2.safetensors": HEADER,
            "consolidated.safetensors": HEADER,
        }
        found = checkpoint_bytes(headers=headers, index=INDEX)
        assert found == WeightBytes(total_bytes=160, by_dtype={"BF16": 160}, source="headers")
        alone = checkpoint_bytes(headers={"model.safetensors": HEADER})
        assert alone == WeightBytes(total_bytes=80, by_dtype={"BF16": 80}, source="headers")

    def test_the_index_states_tensors(self) -> None:
        """Without all headers, `total_size` counts where the files' sizes allow it."""
        some = {"model-1.safetensors": HEADER}
        sizes = {"model-1.safetensors": 510, "model-2.safetensors": 520}
        for evidence in ({}, {"headers": some}, {"file_sizes": sizes}):
            found = checkpoint_bytes(index=INDEX, **evidence)
            assert found == WeightBytes(total_bytes=1000, by_dtype={}, source="index")

    def test_sizes_contradict_a_wrong_index(self) -> None:
        """An index that claims more than its files hold is not believed."""
        sizes = {"model-1.safetensors": 400, "model-2.safetensors": 500, "consolidated.safetensors": 900}
        found = checkpoint_bytes(file_sizes=sizes, index=INDEX)
        assert found == WeightBytes(total_bytes=900, by_dtype={}, source="file sizes")

    @pytest.mark.parametrize("size", [None, "1000", 1000.0, True, 0, -5])
    def test_a_statement_that_is_no_size(self, size: Any) -> None:
        """Only a positive whole number is a size."""
        index = {**INDEX, "metadata": {"total_size": size}}
        assert checkpoint_bytes(index=index) is None

    @pytest.mark.parametrize("index", [None, {}, {"metadata": 3, "weight_map": []}, {"weight_map": {"a": 1}}])
    def test_no_evidence_is_no_number(self, index: Any) -> None:
        """Nothing known is None, never 0."""
        assert checkpoint_bytes(index=index) is None
        assert checkpoint_bytes(index=INDEX, file_sizes={"model-1.safetensors": 9}) == WeightBytes(
            total_bytes=1000, by_dtype={}, source="index"
        )

    @pytest.mark.parametrize(
        "ranks, dtype, by_dtype, expected",
        [
            ((1, 1), "bfloat16", {"BF16": 80}, 80),
            ((1, 1), "float16", {"BF16": 80}, None),
            ((1, 1), "bfloat16", {"BF16": 64, "F32": 16}, None),
            ((1, 1), "bfloat16", {}, None),
            ((1, 1), None, {"BF16": 80}, None),
            ((2, 1), "bfloat16", {"BF16": 80}, None),
            ((1, 2), "bfloat16", {"BF16": 80}, None),
        ],
    )
    def test_a_rank_s_share_is_given_where_it_is_exact(
        self, ranks: tuple[int, int], dtype: str | None, by_dtype: dict[str, int], expected: int | None
    ) -> None:
        """One rank in the stored type holds the checkpoint; anything else is not settled by files."""
        weights = WeightBytes(total_bytes=80, by_dtype=by_dtype, source="headers")
        tensor, pipeline = ranks
        found = rank_weight_bytes(
            weights, tensor_parallel=tensor, pipeline_parallel=pipeline, engine_dtype=dtype
        )
        assert found == expected


def shard(names: dict[str, int], **split: int) -> GgufHeader:
    """Build a header with these tensors."""
    tensors = {
        name: GgufTensor(shape=(size,), type_name="i8", size_bytes=size) for name, size in names.items()
    }
    return header_of("llama", {f"split.{key}": value for key, value in split.items()}, tensors=tensors)


class TestGguf:
    """Bytes of a GGUF model's tensors."""

    def test_one_file(self) -> None:
        """Embeddings, layers and the rest are told apart; a missing output is the embedding's copy."""
        names = {"token_embd.weight": 100, "blk.0.a": 1, "blk.1.a": 2, "blk.10.a": 4, "output_norm.weight": 8}
        weights = gguf_weights([shard(names)])
        assert weights is not None
        assert (weights.total_bytes, weights.input_bytes, weights.output_bytes) == (115, 100, 8)
        assert weights.block_bytes == (1, 2, *(0,) * 8, 4)
        assert weights.tied_output
        untied = gguf_weights([shard({**names, "output.weight": 100})])
        assert untied is not None
        assert (untied.output_bytes, untied.tied_output) == (108, False)

    def test_all_shards_are_needed(self) -> None:
        """A split model has a number only with all its headers, in order."""
        first = shard({"blk.0.a": 1, "blk.1.a": 2}, count=2, no=0, **{"tensors.count": 3})
        second = shard({"blk.2.a": 4}, count=2, no=1, **{"tensors.count": 3})
        both = gguf_weights([first, second])
        assert both is not None
        assert both.total_bytes == 7
        hostile = shard({"blk.0.a": 1}, count=1 << 63, no=0)
        for headers in ([], [first], [second], [second, first], [first, first], [hostile]):
            assert gguf_weights(headers) is None

    def test_a_table_short_of_the_stated_count(self) -> None:
        """Fewer tensors than the model states are no total."""
        first = shard({"blk.0.a": 1}, count=1, no=0, **{"tensors.count": 3})
        assert gguf_weights([first]) is None
