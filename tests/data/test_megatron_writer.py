"""Writing Megatron-Core's indexed datasets: the bytes by hand, and what the writer refuses."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcpack.data import MegatronIndexedSource, read_lengths, write_megatron_idx, write_megatron_index
from dcpack.errors import ArgumentError


def test_the_bytes_by_hand(tmp_path: Path) -> None:
    idx_file, bin_file = write_megatron_index(tmp_path / "a", [[7, 8, 9], [5]], np.uint16, document_bounds=[0, 2])
    assert (idx_file, bin_file) == (tmp_path / "a.idx", tmp_path / "a.bin")
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 2)  # version, code of uint16, sequences, bounds
    lengths, pointers, bounds = struct.pack("<ii", 3, 1), struct.pack("<qq", 0, 6), struct.pack("<qq", 0, 2)
    assert idx_file.read_bytes() == header + lengths + pointers + bounds
    assert bin_file.read_bytes() == struct.pack("<4H", 7, 8, 9, 5)


def test_no_sequences(tmp_path: Path) -> None:
    write_megatron_index(tmp_path / "a", [], np.int32)
    source = MegatronIndexedSource(tmp_path / "a")
    assert (len(source), source.lengths().tolist(), list(source), source.num_documents) == (0, [], [], 0)
    assert read_lengths(tmp_path / "a.idx").tolist() == []


def test_a_generator_is_written(tmp_path: Path) -> None:
    write_megatron_index(tmp_path / "a", (np.arange(i) for i in range(4)), "int32")
    assert [s["input_ids"].tolist() for s in MegatronIndexedSource(tmp_path / "a")] == [[], [0], [0, 1], [0, 1, 2]]


def test_pointers_go_on_from_chunk_to_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = [list(range(i % 4)) for i in range(23)]
    write_megatron_index(tmp_path / "whole", sequences, np.int16)
    for module in ("megatron", "megatron_writer", "values"):
        monkeypatch.setattr(f"dcpack.data.{module}.CHUNK", 5)
    write_megatron_index(tmp_path / "chunks", sequences, np.int16)
    assert (tmp_path / "chunks.idx").read_bytes() == (tmp_path / "whole.idx").read_bytes()
    assert [s["input_ids"].tolist() for s in MegatronIndexedSource(tmp_path / "chunks")] == sequences


@pytest.mark.parametrize(
    ("sequences", "dtype", "reason"),
    [
        ([[1], [256]], np.uint8, "sequences must fit in uint8: sequence 1 has tokens from 256 to 256"),
        ([[-1]], np.uint16, "sequences must fit in uint16: sequence 0 has tokens from -1 to -1"),
        ([[2**63]], np.int64, "sequences must fit in int64"),
        ([[1.5]], np.int32, "sequences must hold tokens of int32: sequence 0 has dtype float64"),
        ([["a"]], np.int32, "sequence 0 has dtype <U1"),
        ([[[1]]], np.int32, r"sequences must be one-dimensional: sequence 0 has shape \(1, 1\)"),
        ([[1]], np.uint32, "dtype must be one of uint8, int8, .*, got uint32"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, sequences: list, dtype: type, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        write_megatron_index(tmp_path / "a", sequences, dtype)


@pytest.mark.parametrize("bounds", [[], [0], [1, 2], [0, 2, 1, 2], [0, 3]])
def test_bounds_that_cannot_be_written(tmp_path: Path, bounds: list[int]) -> None:
    with pytest.raises(ArgumentError, match="document_bounds must"):
        write_megatron_idx(tmp_path / "a.idx", [1, 2], np.int32, document_bounds=np.array(bounds, int))


def test_lengths_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"lengths must be at most 2147483647: lengths\[1\] = 2147483648"):
        write_megatron_idx(tmp_path / "a.idx", [1, 2**31], np.int32)
    with pytest.raises(ArgumentError, match=r"lengths must be at least 0: lengths\[0\] = -1"):
        write_megatron_idx(tmp_path / "a.idx", [-1], np.int32)


@pytest.mark.parametrize("dtype", [None, "token"])
def test_what_is_no_dtype_is_refused(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"dtype must be one of uint8, int8, .*, got {dtype!r}"):
        write_megatron_idx(tmp_path / "a.idx", [1], dtype)
    assert not (tmp_path / "a.idx").exists()
