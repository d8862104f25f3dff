"""Files cut off or changed anywhere: what comes out is what is in them, or our error that names file and place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.data import (
    LENGTH_FORMATS,
    DataFileError,
    JsonlSource,
    MegatronIndexedSource,
    ParquetSource,
    read_lengths,
    write_megatron_index,
)
from dcpack.errors import ArgumentError

LENGTHS = [i * 37 % 100 for i in range(60)]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a good file of every format, and of the tokens that belong to the index."""
    folder = tmp_path_factory.mktemp("good")
    np.save(folder / "a.npy", LENGTHS)
    np.savez_compressed(folder / "a.npz", x=LENGTHS)
    (folder / "a.txt").write_text("".join(f"{length}\n" for length in LENGTHS))
    (folder / "a.csv").write_text("name,length\n" + "".join(f'"x, {i}",{n}\n' for i, n in enumerate(LENGTHS)))
    records = [{"input_ids": list(range(length))} for length in LENGTHS]
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    write_megatron_index(folder / "a", [np.arange(length) for length in LENGTHS], np.uint8)
    pq.write_table(pa.table({"input_ids": [r["input_ids"] for r in records]}), folder / "a.parquet", row_group_size=25)
    return {file.suffix: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def expected_lines(data: bytes, first: int, parse: Callable[[str], int]) -> list[int] | None:
    """What is in a text file that was cut off; None where its last line is broken."""
    try:
        return [parse(line) for line in data.decode().splitlines()[first:]]
    except ValueError:
        return None


def expected(suffix: str, data: bytes, whole: bytes) -> list[int] | None:
    """What a file that was cut off still says; None where it must be refused."""
    if suffix == ".txt":
        return expected_lines(data, 0, int)
    if suffix == ".jsonl":
        return expected_lines(data, 0, lambda line: len(json.loads(line)["input_ids"]))
    return LENGTHS if data == whole else None


def read_all(suffix: str, file: Path) -> Iterator[list[int]]:
    """Read a file in all ways there are."""
    yield read_lengths(file).tolist()
    sources: dict[str, Any] = {".jsonl": JsonlSource, ".idx": MegatronIndexedSource, ".parquet": ParquetSource}
    if suffix in sources:
        source = sources[suffix](file)
        yield source.lengths().tolist()
        yield [sample["input_ids"].size for sample in source]


def attempt(read: Callable[[], Any]) -> Any:
    """What comes out, an error of ours included; any other is raised."""
    try:
        return read()
    except (DataFileError, ArgumentError) as error:
        return error


def save(place: Path, suffix: str, data: bytes, good: dict[str, bytes]) -> Path:
    (place / "a.bin").write_bytes(good[".bin"])
    file = place / f"a{suffix}"
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("suffix", sorted(set(LENGTH_FORMATS) - {".csv"}))
@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1))
def test_a_file_that_was_cut_off(suffix: str, share: float, good: dict[str, bytes], place: Path) -> None:
    whole = good[suffix]
    data = whole[: round(share * len(whole))]
    file = save(place, suffix, data, good)
    right = expected(suffix, data, whole)
    if right is not None:
        assert all(result == right for result in read_all(suffix, file))
        return
    with pytest.raises(DataFileError) as caught:
        list(read_all(suffix, file))
    assert str(file) in str(caught.value)
    assert 0 <= caught.value.offset <= max(len(data), 4)


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1))
def test_a_table_that_was_cut_off(share: float, good: dict[str, bytes], place: Path) -> None:
    whole = good[".csv"]
    data = whole[: round(share * len(whole))]
    file = save(place, ".csv", data, good)
    result = attempt(lambda: read_lengths(file).tolist())
    if isinstance(result, DataFileError):
        last_line = data.count(b"\n", 0, len(data) - 1) + 1
        assert result.place == f"line {last_line}"  # what comes before is whole
    else:
        # A number that was cut in half cannot be told from a whole one.
        assert result[:-1] == LENGTHS[: max(len(result) - 1, 0)]
        assert len(result) in (data.count(b"\n") - 1, data.count(b"\n"), 0)


@pytest.mark.parametrize("suffix", LENGTH_FORMATS)
@settings(max_examples=60, deadline=None)
@given(damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_file_that_was_changed(
    suffix: str, damage: list[tuple[float, int]], good: dict[str, bytes], place: Path
) -> None:
    data = bytearray(good[suffix])
    for share, value in damage:
        data[int(share * len(data))] = value
    file = save(place, suffix, bytes(data), good)
    results = attempt(lambda: list(read_all(suffix, file)))
    if isinstance(results, Exception):  # an ArgumentError where the name of an array or column has changed
        assert str(file) in str(results)
    else:
        assert all(min(lengths, default=0) >= 0 for lengths in results)


@pytest.mark.parametrize("suffix", LENGTH_FORMATS)
@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=200))
def test_a_file_of_anything(suffix: str, data: bytes, good: dict[str, bytes], place: Path) -> None:
    file = save(place, suffix, data, good)
    lengths = attempt(lambda: read_lengths(file))
    if isinstance(lengths, Exception):
        assert str(file) in str(lengths)
    else:
        assert suffix in (".txt", ".csv", ".jsonl")
        assert lengths.min(initial=0) >= 0


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".idx"])
def test_an_empty_file_is_none_of_these(suffix: str, good: dict[str, bytes], place: Path) -> None:
    file = save(place, suffix, b"", good)
    with pytest.raises(DataFileError, match=f"a{suffix}, byte 0: "):
        read_lengths(file)


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl"])
def test_an_empty_text_holds_no_sequences(suffix: str, good: dict[str, bytes], place: Path) -> None:
    assert read_lengths(save(place, suffix, b"", good)).tolist() == []
