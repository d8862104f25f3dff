"""Text files as byte tokens: real documents on any machine, with nothing to download.

A token is a UTF-8 byte (0 to 255); token 256 ends each document.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_choice, check_int, check_items, check_kinds, check_path, frozen
from dcpack.data.arrays import ArraySource
from dcpack.data.errors import Fault
from dcpack.errors import ArgumentError

__all__ = [
    "END_OF_DOCUMENT",
    "TEXT_SUFFIXES",
    "TOKENIZERS",
    "TextDocuments",
    "byte_tokens",
    "count_tokens",
    "find_text_files",
    "installed_text_folders",
]

END_OF_DOCUMENT = 256
"""The token that ends each document."""

TEXT_SUFFIXES = frozenset((".c", ".cfg", ".css", ".h", ".html", ".js", ".json", ".md", ".py", ".pyi", ".rst", ".txt"))
"""Endings of the files that a folder is searched for; a file named by itself may have any."""

TOKENIZERS = ("bytes", "whitespace")
"""Ways to count the tokens of a text: as `byte_tokens` makes them, or words divided by white space."""


def byte_tokens(data: bytes) -> npt.NDArray[np.int32]:
    """Return the tokens of one document.

    Args:
        data: the document.

    Returns:
        int32[len(data) + 1].

    Example:
        >>> byte_tokens(b"hi").tolist()
        [104, 105, 256]
    """
    check_kinds(data=(data, bytes | bytearray | memoryview))
    return np.append(np.frombuffer(data, np.uint8).astype(np.int32), np.int32(END_OF_DOCUMENT))


def count_tokens(text: str, tokenizer: str) -> int:
    """Return the number of tokens of one document.

    Args:
        text: the document.
        tokenizer: ``"bytes"`` counts UTF-8 bytes and the end of the document, ``"whitespace"`` counts words.

    Raises:
        ArgumentError: an unknown tokenizer, or a text that cannot be UTF-8.

    Example:
        >>> count_tokens("two words", "bytes"), count_tokens("two words", "whitespace")
        (10, 2)
    """
    check_kinds(text=(text, str))
    check_choice("tokenizer", tokenizer, TOKENIZERS)
    try:
        return count_of(text, tokenizer)
    except Fault as fault:
        raise ArgumentError(str(fault)) from fault


def count_of(text: str, tokenizer: str) -> int:
    """Do what `count_tokens` does for a text out of a file; whoever reads that says where its `Fault` lies."""
    return len(text.split()) if tokenizer == "whitespace" else len(encode(text)) + 1


def encode(text: str) -> bytes:
    """Return the bytes of a text that came out of a file; halves of characters, which JSON can spell, have none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Fault(f"the text cannot be UTF-8: {error.reason} at character {error.start}") from None


def installed_text_folders() -> list[Path]:
    """Return folders with text on this machine: the standard library, and the packages installed beside it.

    Example:
        >>> all(folder.is_dir() for folder in installed_text_folders())
        True
    """
    names = ("stdlib", "purelib", "platlib")
    found = [Path(sysconfig.get_path(name)) for name in names] + [Path(sys.base_prefix) / "lib"]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def find_text_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the text files among `paths` and in the folders among them, sorted, each once.

    Args:
        paths: files of any ending, and folders that are searched for `TEXT_SUFFIXES`.

    Raises:
        ArgumentError: a path that does not exist (all are named), or no file at all.

    Example:
        >>> find_text_files(["no/such/file"])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: data not found: no/such/file
    """
    check_kinds(paths=(paths, list | tuple))
    missing = [str(path) for path in paths if not check_path("paths", path).exists()]
    if missing:
        raise ArgumentError(f"data not found: {', '.join(missing)}")
    # A file may be named twice in different ways; the spelling that comes first is kept.
    by_place: dict[str, Path] = {}
    for file in (file for path in paths for file in _files_of(Path(path))):
        by_place.setdefault(os.path.normpath(file.absolute()), file)
    found = sorted(by_place.values())
    if not found:
        raise ArgumentError(f"no text files ({', '.join(sorted(TEXT_SUFFIXES))}) in {', '.join(map(str, paths))}")
    return found


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (file for file in path.rglob("*") if file.suffix in TEXT_SUFFIXES and file.is_file())


def read_document(file: Path) -> bytes | None:
    """Return the bytes of a file, or None if it cannot be read or is no UTF-8."""
    try:
        data = file.read_bytes()
        data.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return data


@dataclass(frozen=True, kw_only=True, eq=False)
class TextDocuments:
    """Byte-token documents, held in memory as one array; `as_source` makes them samples.

    Attributes:
        tokens: int32[t], all documents end to end; `of` makes it read-only, as it makes `offsets`.
        offsets: int64[n + 1], where each begins.
        num_unreadable: files that could not be read or are no UTF-8, and were left out.

    Example:
        >>> documents = TextDocuments.of([b"hi", b"there"])
        >>> len(documents), documents[1].tolist(), documents.lengths().tolist()
        (2, [116, 104, 101, 114, 101, 256], [3, 6])
    """

    tokens: npt.NDArray[np.int32]
    offsets: Int64Array
    num_unreadable: int = 0

    def __post_init__(self) -> None:
        check_kinds(tokens=(self.tokens, np.ndarray), offsets=(self.offsets, np.ndarray))
        check_int("num_unreadable", self.num_unreadable, minimum=0)
        self.as_source()  # looks at the offsets

    @classmethod
    def of(cls, documents: Iterable[bytes], num_unreadable: int = 0) -> TextDocuments:
        """Return the source of `documents`."""
        parts = [byte_tokens(document) for document in check_items("documents", documents)]
        lengths = np.array([part.size for part in parts], np.int64)
        return cls(
            tokens=frozen(np.concatenate([np.zeros(0, np.int32), *parts])),
            offsets=frozen(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),
            num_unreadable=num_unreadable,
        )

    @classmethod
    def read(cls, files: Iterable[Path], *, max_documents: int | None = None) -> TextDocuments:
        """Read files, one document each; empty ones are left out, unreadable ones too, counted.

        Args:
            files: text files.
            max_documents: stop after so many; None reads all.
        """
        if max_documents is not None:
            check_int("max_documents", max_documents, minimum=0)
        documents: list[bytes] = []
        unreadable = 0
        for file in (check_path("files", each) for each in check_items("files", files)):
            if max_documents is not None and len(documents) >= max_documents:
                break
            data = read_document(file)
            if data is None:
                unreadable += 1
            elif data:
                documents.append(data)
        return cls.of(documents, unreadable)

    def as_source(self) -> ArraySource:
        """Return the same documents as a source for the loader: each as a mapping with ``input_ids``, not copied.

        Example:
            >>> TextDocuments.of([b"hi"]).as_source()[0]
            {'input_ids': array([104, 105, 256], dtype=int32)}
        """
        return ArraySource(self.tokens, offsets=self.offsets)

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        check_int("index", index, minimum=0, maximum=len(self) - 1)
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[npt.NDArray[np.int32]]:
        return (self[index] for index in range(len(self)))

    def lengths(self) -> Int64Array:
        """Return int64[n]: tokens of each document."""
        return np.diff(self.offsets)
