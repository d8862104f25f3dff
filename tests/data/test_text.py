from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.data import END_OF_DOCUMENT, TextDocuments, byte_tokens, find_text_files, installed_text_folders
from dcpack.errors import ArgumentError


@pytest.mark.parametrize("data", [b"", b"a", "\u00e4\u2211\U0001f642".encode(), bytes(range(256))])
def test_tokens_are_bytes_and_an_end(data: bytes) -> None:
    tokens = byte_tokens(data)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [*data, 256]
    assert END_OF_DOCUMENT == 256


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=20).map(str.encode), max_size=8))
def test_documents_come_back_byte_for_byte(texts: list[bytes]) -> None:
    documents = TextDocuments.of(texts)
    assert len(documents) == len(texts)
    assert documents.lengths().tolist() == [len(text) + 1 for text in texts]
    for i, text in enumerate(texts):
        assert documents[i][:-1].astype(np.uint8).tobytes() == text
        assert documents[i][-1] == END_OF_DOCUMENT


# ---- files --------------------------------------------------------------------------------------------------------


def _write(folder: Path, *names: str) -> list[Path]:
    files = [folder / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    return files


def test_a_folder_is_searched_for_text_at_any_depth(tmp_path: Path) -> None:
    wanted = _write(tmp_path, "a.txt", "deep/er/b.py", "deep/c.md", "z.json", ".hidden/d.rst")
    _write(tmp_path, "picture.png", "no_ending", "deep/library.so", "b.txt.gz")
    (tmp_path / "folder.txt").mkdir()  # named like a text
    assert find_text_files([tmp_path]) == sorted(wanted)


def test_a_file_that_is_named_may_have_any_ending(tmp_path: Path) -> None:
    files = _write(tmp_path, "notes", "data.tsv")
    assert find_text_files(files) == sorted(files)
    assert find_text_files([str(files[0])]) == [files[0]]


def test_files_are_sorted_whatever_the_order_of_the_paths(tmp_path: Path) -> None:
    files = _write(tmp_path, "b/1.txt", "a/2.txt", "a/10.txt", "c.txt")
    expected = [tmp_path / name for name in ("a/10.txt", "a/2.txt", "b/1.txt", "c.txt")]
    assert find_text_files(files) == expected
    assert find_text_files(files[::-1]) == expected
    assert find_text_files([tmp_path / "c.txt", tmp_path / "b", tmp_path / "a"]) == expected


def test_a_file_that_is_reached_twice_comes_once(tmp_path: Path) -> None:
    (file,) = _write(tmp_path, "in/a.txt")
    assert find_text_files([tmp_path, tmp_path / "in", file, str(file)]) == [file]


def test_a_file_under_two_spellings_comes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = _write(tmp_path, "in/a.txt")
    monkeypatch.chdir(tmp_path)
    assert len(find_text_files([file, "in/a.txt", tmp_path / "in" / ".." / "in"])) == 1


def test_paths_with_blanks_and_beyond_ascii(tmp_path: Path) -> None:
    files = _write(tmp_path, "my documents/first draft.txt", "\u6587\u5b57/\u00e9.txt")
    assert find_text_files([tmp_path]) == sorted(files)
    assert find_text_files([str(tmp_path / "my documents")]) == [files[0]]


def test_all_missing_paths_are_named(tmp_path: Path) -> None:
    (here,) = _write(tmp_path, "here.txt")
    with pytest.raises(ArgumentError) as caught:
        find_text_files([tmp_path / "first", here, tmp_path / "second one.txt"])
    assert str(caught.value) == f"data not found: {tmp_path / 'first'}, {tmp_path / 'second one.txt'}"


def test_a_folder_without_text(tmp_path: Path) -> None:
    _write(tmp_path, "a.png", "b/c.bin")
    with pytest.raises(ArgumentError, match=r"^no text files \(\.c, .*\.txt\) in ") as caught:
        find_text_files([tmp_path])
    assert str(caught.value).endswith(f" in {tmp_path}")


def test_no_paths_at_all() -> None:
    with pytest.raises(ArgumentError, match=r"^no text files"):
        find_text_files([])


def test_the_texts_of_this_machine() -> None:
    folders = installed_text_folders()
    assert folders
    assert all(folder.is_dir() for folder in folders)
    assert len(set(folders)) == len(folders)
    assert any((folder / "json" / "__init__.py").is_file() for folder in folders)  # the standard library


# ---- reading ------------------------------------------------------------------------------------------------------


def test_reading_leaves_out_what_is_empty_or_no_text(tmp_path: Path) -> None:
    contents = {
        "a": b"first",
        "b": b"",
        "c": b"\xff\xfe no UTF-8",
        "d": "\u00e4".encode(),
        "e": "\u00e4".encode()[:1],  # a character cut in half
        "f": b"\x00",  # odd, but UTF-8
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    documents = TextDocuments.read([*sorted(tmp_path.iterdir()), tmp_path / "gone", tmp_path])
    found = [documents[i].tolist() for i in range(len(documents))]
    assert found == [[*b"first", 256], [0xC3, 0xA4, 256], [0, 256]]
    assert documents.num_unreadable == 4  # c, e, the one that is gone, and the folder


def test_reading_stops_when_there_is_enough(tmp_path: Path) -> None:
    files = [*_write(tmp_path, "a", "b", "c"), tmp_path / "gone"]
    files[1].write_bytes(b"")
    documents = TextDocuments.read(files, max_documents=2)
    assert [documents[i].tolist() for i in range(2)] == [[ord("a"), 256], [ord("c"), 256]]
    assert documents.num_unreadable == 0  # the one that is gone was not looked at
    assert len(TextDocuments.read(files, max_documents=0)) == 0
    assert len(TextDocuments.read(files)) == len(TextDocuments.read(files, max_documents=100)) == 2
    assert TextDocuments.read(files).num_unreadable == 1


def test_a_source_without_documents() -> None:
    documents = TextDocuments.of([])
    assert len(documents) == 0
    assert documents.lengths().tolist() == []
    assert documents.tokens.dtype == np.int32
    with pytest.raises(ArgumentError, match=r"^index must be"):
        documents[0]


# ---- access -------------------------------------------------------------------------------------------------------

TWO = TextDocuments.of([b"hi", b"there"])


@pytest.mark.parametrize("index", [1, np.int64(1), np.uint8(1)])
def test_access(index: int) -> None:
    assert TWO[index].tolist() == [*b"there", 256]


@pytest.mark.parametrize("index", [2, -1, 100, np.int64(2)])
def test_out_of_range(index: int) -> None:
    with pytest.raises(ArgumentError, match=f"^index must be from 0 to 1, got {index}$"):
        TWO[index]


@pytest.mark.parametrize("index", [True, 1.0, "1", None])
def test_not_an_index(index: object) -> None:
    with pytest.raises(ArgumentError, match=r"^index must be an integer, got "):
        TWO[index]  # pyright: ignore[reportArgumentType] - the wrong type is what is tested


def test_documents_can_be_gone_through() -> None:
    # Something with a length and items is expected to end: a loop over it, list(), zip().
    assert [document.tolist() for document in TWO] == [[*b"hi", 256], [*b"there", 256]]


def test_nobody_changes_a_document_by_accident() -> None:
    # The proof of the demo compares with these; a consumer that writes into them would change the yardstick, too.
    document = TextDocuments.of([b"hi"])[0]
    with pytest.raises(ValueError, match="read-only"):
        document[0] = 0
