"""Arguments that name a file of lengths."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack.data import LENGTH_FORMATS, TOKENIZERS, read_lengths

__all__ = ["add_length_arguments", "lengths_of"]

_LONGEST_NUMBER = 9  # digits; what is longer can only be the name of a column


def add_length_arguments(parser: Any) -> None:
    """Add the arguments that say where lengths come from."""
    parser.add_argument(
        "lengths",
        metavar="LENGTHS",
        help=f"a file of lengths ({', '.join(LENGTH_FORMATS)}), a folder of text files, or - for standard input",
    )
    parser.add_argument("--key", default=None, help="key of a .jsonl record, or name of an array in .npz")
    parser.add_argument("--column", default=None, help="column of a .csv or .parquet file, by name or number")
    parser.add_argument("--tokenizer", choices=TOKENIZERS, default="bytes", help="how texts are counted")


def lengths_of(args: argparse.Namespace) -> npt.NDArray[np.integer[Any]]:
    """Return the lengths that the arguments name: read-only, memory-mapped where the format allows."""
    column = args.column
    if column is not None and column.isdecimal() and len(column) <= _LONGEST_NUMBER:
        column = int(column)
    return read_lengths(args.lengths, key=args.key, column=column, tokenizer=args.tokenizer)
