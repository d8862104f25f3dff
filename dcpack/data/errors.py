"""The error of a data file that does not hold what it should."""

from __future__ import annotations

from pathlib import Path

from dcpack.errors import DcpackError

__all__ = ["DataFileError"]


class DataFileError(DcpackError, ValueError):
    """A data file is truncated, corrupt, or holds something that is no length and no token.

    Attributes:
        file: the file.
        offset: the byte where the fault lies, or where the part begins that it lies in.
        place: the same in the file's own terms (``"line 3"``); empty where there are none.
        reason: what is wrong.

    Example:
        >>> error = DataFileError("lengths.txt", "'x' is no length", offset=17, place="line 3")
        >>> print(error)
        lengths.txt, line 3, byte 17: 'x' is no length
    """

    def __init__(self, file: str | Path, reason: str, *, offset: int, place: str = "") -> None:
        where = f"{place}, byte {offset}" if place else f"byte {offset}"
        super().__init__(f"{file}, {where}: {reason}")
        self.file = Path(file)
        self.offset = offset
        self.place = place
        self.reason = reason


class Fault(ValueError):
    """What is wrong with one record; whoever reads the file adds where it lies."""
