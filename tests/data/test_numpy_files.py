"""Lengths in .npy and .npz files."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dcpack.data import DataFileError, read_lengths
from dcpack.errors import ArgumentError

# Version 1.0, a header that fills up the first 128 bytes, then 3 and 258 in two bytes each: written out by hand.
HEADER_TEXT = b"{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }"
HAND_MADE = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + HEADER_TEXT.ljust(117) + b"\n" + b"\x03\x00\x02\x01"


def npy_bytes(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


class Bomb:
    """Whoever unpickles this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


# ---- .npy ------------------------------------------------------------------------------------------------------------


def test_a_file_made_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "with blank.npy"
    file.write_bytes(HAND_MADE)
    lengths = read_lengths(file)
    assert lengths.dtype == np.int16
    assert lengths.tolist() == [3, 258]


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", ">i2", "<i4", ">u4", "<i8", ">i8", "<u8"])
def test_all_integer_dtypes(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "a.npy", np.array([0, 5, 127], dtype))
    assert read_lengths(tmp_path / "a.npy").tolist() == [0, 5, 127]


def test_the_array_is_the_mapped_file_and_read_only(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5))
    lengths = read_lengths(tmp_path / "a.npy")
    assert not lengths.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        lengths[0] = 7


def test_no_sequences(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(0, np.int64))
    assert read_lengths(tmp_path / "a.npy").tolist() == []


@pytest.mark.parametrize(
    ("array", "offset", "reason"),
    [
        (np.array([1, -2, -3]), 128 + 8, "value 1 is -2 is no length"),
        (np.array([1, 2**63], np.uint64), 128 + 8, "value 1 is 9223372036854775808 is no length"),
        (np.array([1.0, np.nan]), 0, "holds float64 of shape .2,., lengths are integers in one dimension"),
        (np.array([True]), 0, "holds bool"),
        (np.array([[1, 2]]), 0, "holds int64 of shape .1, 2."),
        (np.array(3), 0, r"holds int64 of shape \(\)"),
        (np.array(["a"]), 0, "holds <U1"),
        (np.zeros(2, [("a", "<i8")]), 0, "holds"),
    ],
)
def test_what_is_no_length(tmp_path: Path, array: np.ndarray, offset: int, reason: str) -> None:
    file = tmp_path / "a.npy"
    np.save(file, array)
    with pytest.raises(DataFileError, match=reason) as caught:
        read_lengths(file)
    assert (caught.value.file, caught.value.offset) == (file, offset)
    assert str(file) in str(caught.value)
    assert f"byte {offset}" in str(caught.value)


def test_a_bad_value_far_behind_is_found(tmp_path: Path) -> None:
    values = np.zeros(2_500_000, np.int32)
    values[2_400_000] = -1
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(DataFileError, match=f"byte {128 + 4 * 2_400_000}: value 2400000 is -1"):
        read_lengths(tmp_path / "a.npy")


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_nothing_is_unpickled(tmp_path: Path, suffix: str) -> None:
    array = np.empty(1, object)
    array[0] = Bomb(tmp_path / "exploded")
    file = tmp_path / f"a{suffix}"
    (np.save if suffix == ".npy" else np.savez)(file, array)  # both pickle what they must
    with pytest.raises(DataFileError, match="holds Python objects, which are never unpickled"):
        read_lengths(file)
    assert not (tmp_path / "exploded").exists()
    np.load(file, allow_pickle=True)[... if suffix == ".npy" else "arr_0"]
    assert (tmp_path / "exploded").exists()  # a guard: the bomb does go off


@pytest.mark.parametrize(
    ("change", "offset", "reason"),
    [
        (lambda data: b"", 0, "empty"),
        (lambda data: b"\x94" + data[1:], 0, r"no .npy file: it begins with b'\\x94NUMPY'"),
        (lambda data: b"PK\x03\x04", 0, "no .npy file"),
        (lambda data: data[:6], 6, "truncated or corrupt header"),
        (lambda data: data[:9], 9, "truncated or corrupt header"),
        (lambda data: data[:100], 100, "truncated or corrupt header"),
        (lambda data: data[:6] + b"\x09" + data[7:], 8, r"version \(9, 0\) is not one of"),
        (lambda data: data[:-1], 131, "truncated: 2 values of int16 begin at byte 128"),
        (lambda data: data[:128], 128, "truncated: 2 values"),
        (lambda data: data.replace(b"(2,), }", b"(9999999999999999999999,), }")[: len(data)], 132, "truncated: 9999"),
        (lambda data: data.replace(b"(2,)", b"(-2,)"), 133, "truncated: -2 values"),
        (lambda data: data.replace(b"<i2", b"zz2"), 128, "corrupt header"),
        (lambda data: data.replace(b"'shape'", b"'sha\\e'"), 128, "corrupt header"),
        (lambda data: data[:8] + b"\xff\xff" + data[10:], 132, "truncated or corrupt header"),
    ],
)
def test_truncated_and_corrupt(tmp_path: Path, change: Callable[[bytes], bytes], offset: int, reason: str) -> None:
    file = tmp_path / "a.npy"
    file.write_bytes(change(HAND_MADE))
    with pytest.raises(DataFileError, match=reason) as caught:
        read_lengths(file)
    assert caught.value.offset == offset


# ---- .npz ------------------------------------------------------------------------------------------------------------


def test_one_array_needs_no_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", lengths=np.array([4, 9], np.uint16))
    lengths = read_lengths(tmp_path / "a.npz")
    assert lengths.tolist() == [4, 9]
    assert lengths.dtype == np.uint16
    assert not lengths.flags.writeable
    assert read_lengths(tmp_path / "a.npz", key="lengths").tolist() == [4, 9]


def test_several_arrays_need_a_key(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez_compressed(file, train=np.arange(3), test=np.arange(2))
    assert read_lengths(file, key="test").tolist() == [0, 1]
    with pytest.raises(ArgumentError, match=r"key must name one array of .*a.npz, which has 'train', 'test'"):
        read_lengths(file)
    with pytest.raises(ArgumentError, match=r"key 'valid' is no array of .*a.npz, which has 'train', 'test'"):
        read_lengths(file, key="valid")


def test_an_archive_without_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz")
    with pytest.raises(ArgumentError, match="which has none"):
        read_lengths(tmp_path / "a.npz")


def test_a_bad_value_names_its_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", first=np.arange(3), second=np.array([1, -5]))
    with pytest.raises(DataFileError, match=r"array 'second', byte .*: value 1 is -5 is no length") as caught:
        read_lengths(tmp_path / "a.npz", key="second")
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert caught.value.offset == archive.getinfo("second.npy").header_offset > 0


def test_what_is_no_archive(tmp_path: Path) -> None:
    for data in (b"", b"PK", b"not a zip file at all", HAND_MADE):
        (tmp_path / "a.npz").write_bytes(data)
        with pytest.raises(DataFileError, match=r"a.npz, byte 0: a broken .npz archive"):
            read_lengths(tmp_path / "a.npz")


def test_damage_is_seen_by_the_checksum(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, np.arange(100))
    data = bytearray(file.read_bytes())
    data[400] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataFileError, match=r"a broken .npz archive: Bad CRC-32"):
        read_lengths(file)


def test_an_array_that_is_none(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"hello")
    with pytest.raises(DataFileError, match=r"array 'x', byte 0: no .npy file"):
        read_lengths(tmp_path / "a.npz")


def test_an_unusual_compression_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", HAND_MADE)
    with pytest.raises(DataFileError, match="compression type 14 is neither stored nor deflated"):
        read_lengths(tmp_path / "a.npz")


def test_a_size_that_cannot_be_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez_compressed(file, x=np.arange(4))
    data = bytearray(file.read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = struct.pack("<I", 0xFFFFFFF0)  # the size after unpacking
    file.write_bytes(data)
    with pytest.raises(DataFileError, match="bytes cannot hold the 4294967280 announced"):
        read_lengths(file)


def test_an_array_that_claims_more_than_its_member_holds(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(np.arange(4)).replace(b"(4,)", b"(9,)"))
    with pytest.raises(DataFileError, match=r"array 'x', byte 0: truncated: 9 values of int64 begin at byte 128"):
        read_lengths(tmp_path / "a.npz")
