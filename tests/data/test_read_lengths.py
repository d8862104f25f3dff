"""`read_lengths`: which reader, folders, standard input, options, and memory."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcpack.data import (
    LENGTH_FORMATS,
    DataFileError,
    TextDocuments,
    find_text_files,
    read_lengths,
    write_megatron_idx,
)
from dcpack.errors import ArgumentError, DcpackError


def write_all(folder: Path) -> dict[str, Path]:
    """The lengths 3, 0, 40 in every format that needs no further package."""
    files = {suffix: folder / f"some lengths{suffix}" for suffix in LENGTH_FORMATS if suffix != ".parquet"}
    lengths = np.array([3, 0, 40])
    np.save(files[".npy"], lengths)
    np.savez(files[".npz"], lengths)
    files[".txt"].write_text("3\n0\n40\n")
    files[".csv"].write_text("name,length\na,3\nb,0\nc,40\n")
    files[".jsonl"].write_text('{"length": 3}\n{"length": 0}\n{"length": 40}\n')
    write_megatron_idx(files[".idx"], lengths, np.int32)
    return files


# ---- which reader ----------------------------------------------------------------------------------------------------


def test_every_format_gives_the_same(tmp_path: Path) -> None:
    for suffix, file in write_all(tmp_path).items():
        copy = file.with_suffix(suffix.upper())
        copy.write_bytes(file.read_bytes())
        for path in (file, str(file), copy):
            lengths = read_lengths(path)
            assert lengths.tolist() == [3, 0, 40], path
            assert lengths.dtype.kind == "i"
            assert not lengths.flags.writeable


def test_an_unknown_ending(tmp_path: Path) -> None:
    for name in ("a.pkl", "a.json", "a", "a.bin"):
        (tmp_path / name).write_text("3")
        with pytest.raises(ArgumentError) as caught:
            read_lengths(tmp_path / name)
        assert str(caught.value) == (
            "path must end in one of .csv, .idx, .jsonl, .npy, .npz, .parquet, .txt, or be a folder or '-'; "
            f"got {tmp_path / name}"
        )


@pytest.mark.parametrize("name", ["no.npy", "no.csv", "no.parquet", "no", "no/no.txt"])
def test_what_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"data not found: .*{name}"):
        read_lengths(tmp_path / name)


@pytest.mark.parametrize("suffix", LENGTH_FORMATS)
def test_a_folder_where_a_file_is_expected(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / f"a b{suffix}"
    folder.mkdir()
    (folder / "x.txt").write_text("3")
    with pytest.raises(ArgumentError, match=f"a b{suffix} is a folder, a file is expected"):
        read_lengths(folder)


def test_a_pipe_where_a_file_is_expected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")  # to open it would wait for ever
    with pytest.raises(ArgumentError, match=r"a.txt is no regular file, a file is expected"):
        read_lengths(tmp_path / "a.txt")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".txt", ".csv", ".jsonl", ".idx", ".parquet"])
def test_errors_of_the_system_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_text("3")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataFileError, match=f"a{suffix}, byte 0: cannot be read: Permission denied"):
        read_lengths(tmp_path / f"a{suffix}")


@pytest.mark.parametrize(
    ("suffix", "options", "reason"),
    [
        (".txt", {"key": "x"}, "key is for .jsonl, .npz, -, not for .txt; got 'x'"),
        (".csv", {"key": "x"}, "key is for .jsonl, .npz, -, not for .csv; got 'x'"),
        (".jsonl", {"column": "x"}, "column is for .csv, .parquet, not for .jsonl; got 'x'"),
        (".idx", {"column": 0}, "column is for .csv, .parquet, not for .idx; got 0"),
        (".npz", {"key": 3}, r"key must be a name, got 3 \(int\)"),
        (".csv", {"column": -1}, "column must be at least 0, got -1"),
        (".csv", {"column": 1.0}, "column must be an integer, got 1.0"),
        (".csv", {"column": True}, "column must be an integer, got True"),
        (".txt", {"tokenizer": "words"}, "tokenizer must be one of 'bytes', 'whitespace', got 'words'"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, suffix: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        read_lengths(write_all(tmp_path)[suffix], **options)


# ---- the error -------------------------------------------------------------------------------------------------------


def test_the_error_is_one_of_ours_and_a_value_error() -> None:
    error = DataFileError("a b.txt", "no good", offset=7, place="line 2")
    assert isinstance(error, DcpackError)
    assert isinstance(error, ValueError)
    assert (error.file, error.reason, error.offset, error.place) == (Path("a b.txt"), "no good", 7, "line 2")
    assert str(error) == "a b.txt, line 2, byte 7: no good"
    assert str(DataFileError("a.npy", "empty", offset=0)) == "a.npy, byte 0: empty"


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "a.txt").write_text("12\n")  # inside a folder it is a document, not lengths
    (tmp_path / "in" / "b.md").write_text("two words", encoding="utf-8")
    (tmp_path / "c.py").write_text("")
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "e.bin").write_text("not asked for")
    assert read_lengths(tmp_path).tolist() == [4, 10]
    assert read_lengths(tmp_path, tokenizer="whitespace").tolist() == [1, 2]
    documents = TextDocuments.read(find_text_files([tmp_path]))
    assert read_lengths(tmp_path).tolist() == documents.lengths().tolist()


def test_a_folder_without_texts(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no text files"):
        read_lengths(tmp_path)


@pytest.mark.parametrize("options", [{"key": "x"}, {"column": "x"}])
def test_a_folder_takes_no_key_or_column(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match="not for a folder"):
        read_lengths(tmp_path, **options)


# ---- standard input --------------------------------------------------------------------------------------------------


class Pipe(io.RawIOBase):
    """Gives at most a few bytes at a time, as pipes do."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._stream.read(min(3, len(buffer)))
        buffer[: len(data)] = data
        return len(data)


def read_input(monkeypatch: pytest.MonkeyPatch, data: bytes, **options: Any) -> list[int]:
    stream = io.TextIOWrapper(io.BufferedReader(Pipe(data)))
    monkeypatch.setattr(sys, "stdin", stream)
    lengths = read_lengths("-", **options)
    assert not stream.closed
    assert lengths.dtype == np.int64
    return lengths.tolist()


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (b"", {}, []),
        (b"\n\n", {}, []),
        (b"12\n7", {}, [12, 7]),
        (b"\n \n12\n\n7\n", {}, [12, 7]),
        (b'{"length": 12}\n{"length": 7}\n', {}, [12, 7]),
        (b'\n\n {"length": 12}\n{"length": 7}', {}, [12, 7]),
        (b'\xef\xbb\xbf{"length": 12}', {}, [12]),
        (b'{"body": "two words"}', {"key": "body", "tokenizer": "whitespace"}, [2]),
    ],
)
def test_standard_input(
    monkeypatch: pytest.MonkeyPatch, data: bytes, options: dict[str, str], expected: list[int]
) -> None:
    assert read_input(monkeypatch, data, **options) == expected


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"\n12\nx\n", "line 3, byte 4: 'x' is no length"),
        (b'\n{"length": 1}\n{"length": -1}\n', "line 3, byte 15: -1 is no length"),
        (b'{"length": 1}\n12\n', "line 2, byte 14: a record must be an object, got int"),
        (b'12\n{"length": 1}\n', "line 2, byte 3: .* is no length"),
    ],
)
def test_faults_of_standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes, place: str) -> None:
    with pytest.raises(DataFileError, match=f"<standard input>, {place}"):
        read_input(monkeypatch, data)


def test_options_of_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"column is for .csv, .parquet, not for -"):
        read_lengths("-", column=1)
    with pytest.raises(ArgumentError, match="key is for records, standard input begins with b'12"):
        read_input(monkeypatch, b"12\n", key="x")


# ---- memory ----------------------------------------------------------------------------------------------------------

MEASURE = """
import json, pathlib, resource, sys
import numpy as np
from dcpack.data import read_lengths

def peak_mib():
    # The figure of resource begins with that of the parent, the one of /proc with this program.
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

before = peak_mib()
lengths = read_lengths(sys.argv[1])
print(json.dumps([lengths.size, int(lengths.sum(dtype=np.int64)), str(lengths.dtype), peak_mib() - before]))
"""


def test_ten_million_sequences_take_little_memory(tmp_path: Path) -> None:
    count = 10_000_000
    # The tables behind the lengths are a hole: what is not read needs not be written.
    file = tmp_path / "a.idx"
    write_megatron_idx(file, [], np.uint16)
    header = file.read_bytes()[:18]
    with file.open("wb") as stream:
        stream.write(header + np.array([count, 2], "<u8").tobytes())
        stream.write((np.arange(count, dtype="<i4") % 4096).tobytes())
        stream.truncate(34 + 12 * count + 16)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(file)], capture_output=True, text=True, check=True, timeout=100
    )
    size, total, dtype, mib = json.loads(done.stdout)
    assert (size, total, dtype) == (count, int((np.arange(count) % 4096).sum()), "int32")
    # The mapped table alone is 38 MiB; one copy as int64 would add 76, a list of Python's integers 300.
    assert 30 < mib < 64
