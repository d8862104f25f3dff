"""Where samples and their lengths come from."""

from dcpack.data.arrays import ArraySource
from dcpack.data.base import DataSource, TokenSource
from dcpack.data.errors import DataFileError
from dcpack.data.jsonl import JsonlSource
from dcpack.data.lengths import LENGTH_FORMATS, STANDARD_INPUT, read_lengths
from dcpack.data.megatron import MEGATRON_DTYPES, MegatronIndexedSource
from dcpack.data.megatron_writer import write_megatron_idx, write_megatron_index
from dcpack.data.parquet import ParquetSource
from dcpack.data.text import (
    END_OF_DOCUMENT,
    TOKENIZERS,
    TextDocuments,
    byte_tokens,
    count_tokens,
    find_text_files,
    installed_text_folders,
)

__all__ = [
    "END_OF_DOCUMENT",
    "LENGTH_FORMATS",
    "MEGATRON_DTYPES",
    "STANDARD_INPUT",
    "TOKENIZERS",
    "ArraySource",
    "DataFileError",
    "DataSource",
    "JsonlSource",
    "MegatronIndexedSource",
    "ParquetSource",
    "TextDocuments",
    "TokenSource",
    "byte_tokens",
    "count_tokens",
    "find_text_files",
    "installed_text_folders",
    "read_lengths",
    "write_megatron_idx",
    "write_megatron_index",
]
