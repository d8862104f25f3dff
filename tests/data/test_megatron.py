"""Megatron-Core's indexed datasets: the format, byte by byte, and the source."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from dcpack.data import (
    MEGATRON_DTYPES,
    DataFileError,
    MegatronIndexedSource,
    read_lengths,
    write_megatron_idx,
    write_megatron_index,
)
from dcpack.errors import ArgumentError

# Two sequences, [7, 8, 9] and [5], in uint16, one document. Written out by hand.
MAGIC = b"MMIDIDX\0\0"
VERSION = struct.pack("<Q", 1)
CODE = bytes([8])
COUNTS = struct.pack("<QQ", 2, 2)
LENGTHS = struct.pack("<ii", 3, 1)
POINTERS = struct.pack("<qq", 0, 6)
BOUNDS = struct.pack("<qq", 0, 2)
INDEX = MAGIC + VERSION + CODE + COUNTS + LENGTHS + POINTERS + BOUNDS
TOKENS = struct.pack("<4H", 7, 8, 9, 5)


def save(folder: Path, index: bytes = INDEX, tokens: bytes = TOKENS) -> Path:
    (folder / "my corpus.v1.idx").write_bytes(index)
    (folder / "my corpus.v1.bin").write_bytes(tokens)
    return folder / "my corpus.v1"


def idx_of(prefix: Path) -> Path:
    return Path(f"{prefix}.idx")


# ---- what is right ---------------------------------------------------------------------------------------------------


def test_the_format_by_hand(tmp_path: Path) -> None:
    prefix = save(tmp_path)
    source = MegatronIndexedSource(prefix)
    assert [sample["input_ids"].tolist() for sample in source] == [[7, 8, 9], [5]]
    assert source[0]["input_ids"].dtype == source.dtype == np.uint16
    assert source.lengths().tolist() == [3, 1]
    assert source.lengths().dtype == np.int64
    assert source.document_bounds.tolist() == [0, 2]
    assert source.num_documents == 1
    assert read_lengths(idx_of(prefix)).tolist() == [3, 1]


@pytest.mark.parametrize("ending", ["", ".idx", ".bin"])
def test_the_prefix_or_either_file(tmp_path: Path, ending: str) -> None:
    assert len(MegatronIndexedSource(f"{save(tmp_path)}{ending}")) == 2


def test_modes_of_multimodal_data_may_follow(tmp_path: Path) -> None:
    prefix = save(tmp_path, INDEX + b"\0\1")
    assert read_lengths(idx_of(prefix)).tolist() == [3, 1]
    assert len(MegatronIndexedSource(prefix)) == 2


def test_the_codes_are_those_of_megatron() -> None:
    names = "uint8 int8 int16 int32 int64 float64 float32 uint16".split()
    assert {code: dtype.name for code, dtype in MEGATRON_DTYPES.items()} == dict(enumerate(names, start=1))


@pytest.mark.parametrize("code", range(1, 9))
def test_every_dtype(tmp_path: Path, code: int) -> None:
    dtype = MEGATRON_DTYPES[code]
    sequences = [[1, 2, 3], [], [127]]
    write_megatron_index(tmp_path / "a", sequences, dtype)
    source = MegatronIndexedSource(tmp_path / "a")
    assert (tmp_path / "a.idx").read_bytes()[17] == code
    assert (tmp_path / "a.bin").stat().st_size == 4 * dtype.itemsize
    assert [sample["input_ids"].tolist() for sample in source] == sequences
    assert {sample["input_ids"].dtype for sample in source} == {dtype}
    assert source.document_bounds.tolist() == [0, 1, 2, 3]


def test_lengths_are_the_mapped_table(tmp_path: Path) -> None:
    lengths = read_lengths(idx_of(save(tmp_path)))
    assert lengths.dtype == np.int32
    assert not lengths.flags.owndata
    assert not lengths.flags.writeable


def test_tokens_are_views_that_nobody_changes(tmp_path: Path) -> None:
    tokens = MegatronIndexedSource(save(tmp_path))[0]["input_ids"]
    assert not tokens.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 0


def test_sequences_may_lie_in_any_order_and_overlap(tmp_path: Path) -> None:
    index = INDEX.replace(POINTERS, struct.pack("<qq", 2, 0))
    assert [s["input_ids"].tolist() for s in MegatronIndexedSource(save(tmp_path, index))] == [[8, 9, 5], [7]]


def test_lengths_come_without_the_other_tables_and_tokens(tmp_path: Path) -> None:
    index = INDEX.replace(POINTERS, b"\xff" * 16).replace(BOUNDS, b"\xff" * 16)
    prefix = save(tmp_path, index)
    Path(f"{prefix}.bin").unlink()
    assert read_lengths(idx_of(prefix)).tolist() == [3, 1]


def test_a_file_of_tokens_far_beyond_memory(tmp_path: Path) -> None:
    count = 2**31 - 1
    write_megatron_idx(tmp_path / "a.idx", [count, 3, count], np.int64)
    with (tmp_path / "a.bin").open("wb") as stream:
        stream.truncate(8 * (2 * count + 3))  # a hole of 32 GiB
        stream.seek(8 * count)
        stream.write(struct.pack("<3q", 1, 2, 3))
    source = MegatronIndexedSource(tmp_path / "a")
    assert source.lengths().tolist() == [count, 3, count]
    assert source[1]["input_ids"].tolist() == [1, 2, 3]
    assert source[2]["input_ids"].size == count


# ---- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "offset", "reason"),
    [
        (b"", 0, "empty"),
        (b"MMIDIDX\0\1" + INDEX[9:], 0, r"no Megatron index: it begins with b'MMIDIDX\\x00\\x01'"),
        (b"mmididx\0\0" + INDEX[9:], 0, "no Megatron index"),
        (b"TNTIDX\0\0" + INDEX[8:], 0, "no Megatron index"),  # the older format
        (INDEX[:5], 5, "truncated: the header takes 34 bytes"),
        (INDEX[:9], 9, "truncated: the header takes 34 bytes"),
        (INDEX[:17], 17, "truncated: the header takes 34 bytes"),
        (INDEX[:18], 18, "truncated: the header takes 34 bytes"),
        (INDEX[:33], 33, "truncated: the header takes 34 bytes"),
        (INDEX[:34], 34, "truncated: 2 sequences and 2 document bounds take 74 bytes, the file has 34"),
        (INDEX[:42], 42, "truncated: .* the file has 42"),
        (INDEX[:58], 58, "truncated: .* the file has 58"),
        (INDEX[:73], 73, "truncated: .* the file has 73"),
        (INDEX + b"\0", 74, "too long: .* take 74 bytes, the file has 75"),
        (INDEX + b"\0\0\0", 74, "too long"),
        (MAGIC + struct.pack("<Q", 2) + INDEX[17:], 9, "version must be 1, got 2"),
        (INDEX[:17] + b"\0" + INDEX[18:], 17, "dtype code must be from 1 to 8, got 0"),
        (INDEX[:17] + b"\x09" + INDEX[18:], 17, "dtype code must be from 1 to 8, got 9"),
        (INDEX[:18] + struct.pack("<QQ", 2**64 - 1, 2) + LENGTHS, 42, "truncated: 18446744073709551615 sequences"),
        (
            INDEX[:18] + struct.pack("<QQ", 2, 2**64 - 1) + LENGTHS,
            42,
            "truncated: 2 sequences and 18446744073709551615",
        ),
        (INDEX[:18] + struct.pack("<QQ", 2**62, 2**62) + LENGTHS, 42, "truncated"),  # 12 * 2^62 is 0 in 64 bits
        (INDEX.replace(LENGTHS, struct.pack("<ii", 3, -1)), 38, "-1 is no length"),
    ],
)
def test_an_index_that_is_none(tmp_path: Path, index: bytes, offset: int, reason: str) -> None:
    prefix = save(tmp_path, index)
    for read in (lambda: read_lengths(idx_of(prefix)), lambda: MegatronIndexedSource(prefix)):
        with pytest.raises(DataFileError, match=reason) as caught:
            read()
        assert (caught.value.file, caught.value.offset) == (idx_of(prefix), offset)
        assert f"my corpus.v1.idx, {'sequence 1, ' if offset == 38 else ''}byte {offset}: " in str(caught.value)


@pytest.mark.parametrize(
    ("pointers", "tokens", "bad", "reason"),
    [
        ((0, 7), TOKENS, 1, "2 bytes from byte 7 on are not within the 8 bytes of the .bin file"),
        ((3, 0), TOKENS, 0, "6 bytes from byte 3 on"),
        ((0, -1), TOKENS, 1, "2 bytes from byte -1 on"),
        ((0, 2**63 - 1), TOKENS, 1, "2 bytes from byte 9223372036854775807 on"),  # their sum is beyond int64
        ((0, 6), TOKENS[:-1], 1, "2 bytes from byte 6 on are not within the 7 bytes"),
        ((0, 6), b"", 0, "6 bytes from byte 0 on are not within the 0 bytes"),
    ],
)
def test_sequences_outside_the_tokens(
    tmp_path: Path, pointers: tuple[int, int], tokens: bytes, bad: int, reason: str
) -> None:
    prefix = save(tmp_path, INDEX.replace(POINTERS, struct.pack("<qq", *pointers)), tokens)
    with pytest.raises(DataFileError, match=f"sequence {bad}, byte {42 + 8 * bad}: {reason}"):
        MegatronIndexedSource(prefix)


@pytest.mark.parametrize(
    ("bounds", "bad", "reason"),
    [
        ((1, 2), 0, "the first must be 0, got 1"),
        ((-1, 2), 0, "the first must be 0, got -1"),
        ((0, 3), 1, "the last must be 2, the number of sequences, got 3"),
        ((0, 1), 1, "the last must be 2, the number of sequences, got 1"),
        ((0, 2, 1, 2), 2, "they must not fall, the one before is 2, got 1"),
        ((0, 2**63 - 1, -(2**63), 2), 2, "they must not fall"),  # their difference is beyond int64
    ],
)
def test_documents_out_of_order(tmp_path: Path, bounds: tuple[int, ...], bad: int, reason: str) -> None:
    index = INDEX[:26] + struct.pack("<Q", len(bounds)) + INDEX[34:58] + struct.pack(f"<{len(bounds)}q", *bounds)
    with pytest.raises(DataFileError, match=f"document bound {bad}, byte {58 + 8 * bad}: document bounds .*: {reason}"):
        MegatronIndexedSource(save(tmp_path, index))


def test_no_document_bounds(tmp_path: Path) -> None:
    prefix = save(tmp_path, INDEX[:26] + struct.pack("<Q", 0) + INDEX[34:58])
    with pytest.raises(DataFileError, match="byte 26: there are no document bounds"):
        MegatronIndexedSource(prefix)
    assert read_lengths(idx_of(prefix)).tolist() == [3, 1]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"data not found: .*no.idx"):
        MegatronIndexedSource(tmp_path / "no")
    prefix = save(tmp_path)
    Path(f"{prefix}.bin").unlink()
    with pytest.raises(ArgumentError, match=r"data not found: .*my corpus.v1.bin"):
        MegatronIndexedSource(prefix)
    Path(f"{prefix}.bin").mkdir()
    with pytest.raises(ArgumentError, match=r"my corpus.v1.bin is a folder, a file is expected"):
        MegatronIndexedSource(prefix)


@pytest.mark.parametrize("index", [-1, 2, 0.5, True])
def test_an_index_that_is_no_sample(tmp_path: Path, index: int) -> None:
    with pytest.raises(ArgumentError, match="index must be"):
        MegatronIndexedSource(save(tmp_path))[index]


def test_a_fault_far_behind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_megatron_index(tmp_path / "a", [[1]] * 23, np.int8)
    (tmp_path / "a.bin").write_bytes(bytes(17))
    monkeypatch.setattr("dcpack.data.megatron.CHUNK", 5)
    with pytest.raises(DataFileError, match=f"sequence 17, byte {34 + 4 * 23 + 8 * 17}: 1 bytes from byte 17 on"):
        MegatronIndexedSource(tmp_path / "a")
